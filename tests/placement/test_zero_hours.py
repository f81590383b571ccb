"""Hours without requests need nothing: as cheap as any fleet by hand, ready when requests come, checked."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.window import Segment
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.workload import FleetLimits, Serving
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement.replan.warm import WarmStart
from tests.placement.brute_force import best_total
from tests.placement.market import at, offer, plan, planner, request, serving, total, training

ANY = FleetLimits(4, 4)


def drawn(seed: int, hours: int = 4) -> tuple[Serving, list[Offer]]:
    """A service with hours of zero at one place or two, and two offers."""
    lots = random.Random(seed)
    rates = [lots.choice([0.0, 0.0, 3.0, 5.0]) for _ in range(hours)]
    rates[lots.randrange(hours)] = 3.0
    service = serving("chat", rates, zones=lots.choice([1, 1, 2]), spare=lots.choice([0, 1]), fleet=ANY)
    offers = [
        offer(
            name,
            lots.choice(["0.70", "1.00", "1.30", "2.20"]),
            zone=name,
            provider=seller,
            nodes=2,
            billing_increment_s=lots.choice([60, 3600]),
        )
        for name, seller in (("a", "lambda"), ("b", "runpod"))
    ]
    return service, offers


@pytest.mark.parametrize("seed", range(12))
def test_no_fleet_by_hand_is_cheaper(seed: int) -> None:
    service, offers = drawn(seed)
    asked = request(service, hours=4)
    best = best_total(asked, offers)
    found = plan(asked, offers, time_limit_s=2.0)
    if best is None:
        assert found.status is PlanStatus.INFEASIBLE
        return
    assert found.bound_usd is not None
    assert found.bound_usd <= best == total(found)


def test_the_check_asks_for_nothing_in_hours_of_zero_and_for_all_in_others() -> None:
    asked = request(serving(hourly=[0.0] * 8 + [3.0] * 8 + [0.0] * 8, zones=2, spare=1), hours=24)
    offers = [offer("a", "1.00", zone="a"), offer("b", "1.00", zone="b", provider="runpod")]
    found = plan(asked, offers, time_limit_s=2.0)
    assert not planner().check(found, asked, offers)
    first, *rest = found.placements
    (held,) = first.segments
    assert at(7) <= held.start < at(8)
    assert held.end == at(16)
    late = replace(first, segments=(Segment(held.start + timedelta(hours=2), held.end, held.nodes),))
    wrong = planner().check(replace(found, placements=(late, *rest)), asked, offers)
    assert any("replicas stand in 1 zones" in words for words in wrong)


def test_a_service_without_any_requests_is_neither_placed_nor_left_out() -> None:
    """Its list has requests on the second day only, and the horizon is the first."""
    asked = request(serving(hourly=[0.0] * 24 + [3.0] * 24), hours=24)
    found = plan(asked, [offer("a", "1.00")])
    assert found.status is PlanStatus.OPTIMAL
    assert not found.placements
    assert not found.unplaced
    assert any("nothing is held for chat" in note for note in found.notes)


def test_a_service_that_follows_a_run_into_hours_of_zero_holds_nothing() -> None:
    run = training("run", 10, deadline=at(14))
    service = serving(hourly=[3.0] * 10 + [0.0] * 14, starts_after="run")
    found = plan(request(run, service, hours=24), [offer("a", "1.00")])
    assert [placement.workload for placement in found.placements] == ["run"]
    assert not found.unplaced
    assert found.status is PlanStatus.OPTIMAL


def test_a_later_start_within_hours_of_zero_costs_what_its_requests_do() -> None:
    hourly = [3.0] * 4 + [0.0] * 8 + [3.0] * 4 + [0.0] * 8
    offers = [offer("a", "1.00", billing_increment_s=60)]
    whole = plan(request(serving(hourly=hourly), hours=24), offers)
    later = plan(request(serving(hourly=hourly, starts_at=at(6)), hours=24), offers)
    assert total(later) < total(whole) * Decimal("0.55")
    assert later.placements[0].segments[0].start >= at(11)


@pytest.mark.parametrize("seed", range(6))
def test_hours_of_zero_at_the_end_cost_nothing(seed: int) -> None:
    lots = random.Random(seed)
    rates = [lots.choice([1.0, 3.0, 5.0, 9.0]) for _ in range(12)]
    offers = [
        offer(name, lots.choice(["0.70", "1.00", "1.30"]), nodes=4, zone=name, billing_increment_s=3600)
        for name in ("a", "b", "c")
    ]
    zones = lots.choice([1, 2])
    short = plan(request(serving(hourly=rates, zones=zones), hours=12), offers, time_limit_s=2.0)
    idle = plan(
        request(serving(hourly=[*rates, *[0.0] * 12], zones=zones), hours=24), offers, time_limit_s=2.0
    )
    assert total(idle) == total(short)


@pytest.mark.parametrize("seed", range(4))
def test_another_day_of_a_flat_service_costs_a_day(seed: int) -> None:
    lots = random.Random(seed)
    offers = [
        offer(name, lots.choice(["0.70", "1.00", "1.30"]), nodes=4, zone=name, available_until=until)
        for name, until in (("a", at(lots.choice([30, 40]))), ("b", None), ("c", None))
    ]
    service = serving(hourly=[lots.choice([3.0, 5.0])])
    two, three = (
        plan(request(service, hours=hours), offers, time_limit_s=3.0, limit_clock=LimitClock.WORK)
        for hours in (48, 72)
    )
    dearest = max(one.price_usd_per_node_hour for one in offers) * 2
    assert total(two) < total(three) <= total(two) + 24 * dearest + 1


def test_what_is_left_of_a_service_after_its_last_request_is_nothing() -> None:
    asked = request(serving(hourly=[3.0] * 8 + [0.0] * 16), hours=24)
    offers = [offer("a", "1.00")]
    old = plan(asked, offers, time_limit_s=2.0)
    options = PlanOptions(time_limit_s=2.0, baselines=False)
    found = planner().replan(asked, offers, at(10), options, WarmStart(old)).plan
    assert (found.status, found.cost_usd) == (PlanStatus.OPTIMAL, Decimal(0))
    assert not found.placements
    assert not found.unplaced


def test_a_plan_of_the_day_keeps_its_node_for_the_hours_that_are_left() -> None:
    asked = request(serving(hourly=[3.0] * 4 + [0.0] * 8 + [3.0] * 8 + [0.0] * 4), hours=24)
    offers = [offer("a", "1.00"), offer("b", "1.00", provider="runpod")]
    old = plan(asked, offers, time_limit_s=2.0)
    (before,) = old.placements
    options = PlanOptions(time_limit_s=2.0, baselines=False)
    again = planner().replan(asked, offers, at(8), options, WarmStart(old, leaving_usd={"chat": Decimal(1)}))
    (kept,) = again.plan.placements
    assert kept.offer_id == before.offer_id
    assert [(s.start, s.end) for s in kept.segments] == [(s.start, s.end) for s in before.segments[1:]]
