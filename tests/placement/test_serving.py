"""Fleets: demand, zones, spares, cold starts, commitments, order; and batch."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Obstacle
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, batch, offer, plan, request, serving, training


def test_a_flat_service_holds_what_it_needs() -> None:
    found = plan(request(serving(hourly=[7.0])), [offer("a", "1.00")])
    (placed,) = found.placements
    assert (placed.nodes, placed.replicas, len(placed.segments)) == (2, 2, 1)
    assert found.cost_usd == Decimal("96.00") == found.bound_usd


def test_a_service_that_runs_already_is_planned_within_a_second() -> None:
    found = plan(request(serving(hourly=[3.0])), [offer("a", "1.00")], at(5.0001))
    assert found.placements[0].segments[0].start == at(5) + timedelta(seconds=1)


def test_a_fleet_follows_traffic_and_starts_nodes_early() -> None:
    found = plan(request(serving(hourly=[3.0] * 12 + [7.0] * 12), hours=24), [offer("a", "1.00")])
    (placed,) = found.placements
    assert found.cost_usd == Decimal("37.00") == found.bound_usd
    assert placed.segments[1].start == at(12 - 1 / 6)


def test_a_short_gap_is_held_through() -> None:
    hourly = [7.0] * 5 + [3.0] + [7.0] * 6
    found = plan(request(serving(hourly=hourly), hours=12), [offer("a", "1.00")])
    assert found.cost_usd == Decimal("24.00")


def test_commitment_carries_the_base_and_on_demand_the_peak() -> None:
    offers = [offer("committed", "0.60", tier=Tier.COMMITTED, min_hours=48.0), offer("od", "1.00")]
    found = plan(request(serving(hourly=[3.0] * 20 + [7.0] * 4)), offers)
    held = {p.offer_id: p.nodes for p in found.placements}
    assert held == {"committed": 1, "od": 1}
    assert found.cost_usd == Decimal("28.80") + Decimal("10.00")


def test_redundancy_needs_distinct_zones() -> None:
    one_zone = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(serving(hourly=[3.0], zones=2))
    left = plan(asked, one_zone).unplaced[0]
    assert left.reason is Obstacle.REDUNDANCY
    assert left.nearest_fix == "redundancy.zones of 1: it then costs $48.00"
    found = plan(asked, [*one_zone, offer("c", "1.50", zone="east-b")])
    assert {p.offer_id for p in found.placements} == {"a", "c"}
    assert found.cost_usd == Decimal("120.00") == found.bound_usd


def test_spare_replicas_stand_above_demand() -> None:
    found = plan(request(serving(hourly=[7.0], spare=1)), [offer("a", "1.00")])
    assert found.placements[0].replicas == 3
    assert found.cost_usd == Decimal("144.00") == found.bound_usd


def test_small_and_large_kinds_mix_when_that_is_cheapest() -> None:
    offers = [offer("big", "2.00"), offer("tiny", "0.70", gpu="TINY")]
    found = plan(request(serving(hourly=[5.0])), offers)
    assert {p.offer_id: p.nodes for p in found.placements} == {"big": 1, "tiny": 1}
    assert found.cost_usd == Decimal("129.60") == found.bound_usd


def test_a_replica_larger_than_a_node_needs_joined_nodes() -> None:
    core = FakeEstimator(replica_sizes=(2,))
    found = plan(
        request(serving(hourly=[7.0])), [offer("pair", "1.00", gpus=2), offer("x", "0.1")], estimator=core
    )
    assert {p.offer_id for p in found.placements} == {"pair"}


def test_a_service_starts_when_its_run_ends() -> None:
    found = plan(request(training(gpu_hours=10), serving(starts_after="run")), [offer("a", "1.00", nodes=2)])
    (chat,) = found.placements_of("chat")
    assert chat.segments[0].start == at(10)
    assert found.cost_usd == Decimal("48.00") == found.bound_usd


def test_without_its_run_a_service_asks_for_nothing() -> None:
    run = training(gpu_hours=1000, unplaced_usd=Decimal("10"))
    found = plan(request(run, serving(starts_after="run")), [offer("a", "1.00")])
    assert not found.placements
    run_left, chat_left = found.unplaced
    assert (run_left.workload, chat_left.workload) == ("run", "chat")
    assert (chat_left.reason, chat_left.fixes) == (Obstacle.DEPENDENCY, ())
    assert found.penalty_usd == Decimal("10.00")


def test_a_known_start_is_met_warm() -> None:
    (placed,) = plan(request(serving(starts_at=at(10))), [offer("a", "1.00")]).placements
    assert placed.segments[0].start == at(10 - 1 / 6)


def test_two_services_share_scarce_cheap_stock() -> None:
    offers = [offer("cheap", "1.00", nodes=2), offer("dear", "2.00")]
    found = plan(request(serving("one", [7.0]), serving("two", [3.0]), hours=10), offers)
    assert found.cost_usd == Decimal("40.00")
    used = {(p.workload, p.offer_id): p.nodes for p in found.placements}
    assert sum(n for (_, o), n in used.items() if o == "cheap") == 2


def test_stock_too_small_for_the_peak_is_named() -> None:
    found = plan(request(serving(hourly=[50.0])), [offer("a", "1.00", nodes=3)])
    assert found.unplaced[0].reason is Obstacle.STOCK


@pytest.mark.parametrize("zones", [1, 2, 3])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_every_redundancy_passes_the_check(zones: int, spare: int) -> None:
    offers = [
        offer(f"{gpu}{zone}", price, gpu=gpu, zone=zone, nodes=6)
        for gpu, price in (("BIG", "2.00"), ("MID", "1.30"), ("TINY", "0.60"))
        for zone in ("a", "b", "c")
    ]
    asked = request(serving(hourly=[1, 4, 9, 12, 9, 4], zones=zones, spare=spare))
    found = plan(asked, offers)
    assert found.placements
    assert found.bound_usd is not None
    assert found.bound_usd <= found.cost_usd


def test_a_batch_takes_its_cold_start_and_its_requests() -> None:
    found = plan(request(batch(requests=4 * 3600 * 9.0)), [offer("a", "1.00"), offer("b", "2.00", gpu="MID")])
    (placed,) = found.placements
    assert placed.offer_id == "a"
    assert found.cost_usd == Decimal("10.00")
    assert found.bound_usd is not None
    assert Decimal("9.00") < found.bound_usd <= found.cost_usd
