"""Runs: cost, tiers, windows, deadlines, joined nodes, stock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal

import pytest

from broker.domain.basics.errors import InputError
from broker.domain.market.offer import Tier, WindowKind
from broker.domain.planning.plan import Obstacle, PlanStatus
from broker.domain.planning.workload import Batch, GpuRange, Policy, Providers, Training
from tests.fakes.examples import waiting_terms
from tests.placement.market import at, batch, offer, plan, request, serving, total, training, window


def test_the_cheapest_offer_wins_and_its_gap_is_proven() -> None:
    found = plan(request(training(gpu_hours=10)), [offer("a", "2.00"), offer("b", "3.00")])
    (placed,) = found.placements
    assert placed.offer_id == "a"
    assert found.cost_usd == Decimal("20.00") == found.bound_usd
    assert found.status is PlanStatus.OPTIMAL
    assert placed.why.runner_up is not None
    assert placed.why.runner_up.offer_id == "b"
    assert placed.why.runner_up.cost_usd == Decimal("30.00")
    assert "cheapest of 2 offers" in placed.why.binding[0]


def test_dearer_offers_never_enter_a_cheapest_plan() -> None:
    offers = [offer("a", "2.00"), *(offer(f"dear{i}", f"{3 + i}.00") for i in range(5))]
    found = plan(request(training(), serving(hourly=[3.0, 7.0])), offers)
    assert {p.offer_id for p in found.placements} == {"a"}


def test_spot_is_only_for_interruptible_training() -> None:
    offers = [offer("spot", "0.50", tier=Tier.SPOT, interruptions_per_hour=0.02), offer("od", "2.00")]
    assert plan(request(training()), offers).placements[0].offer_id == "od"
    spot = plan(request(training(interruptible=True)), offers).placements[0]
    assert spot.offer_id == "spot"
    assert spot.estimate["hours"] == pytest.approx(10 * 1.02)
    assert spot.cost_usd == Decimal("5.50")
    assert plan(request(serving()), offers).placements[0].offer_id == "od"


def test_the_minimum_term_of_a_commitment_is_billed() -> None:
    committed = offer("committed", "1.50", tier=Tier.COMMITTED, min_hours=24.0)
    assert plan(request(training(gpu_hours=10)), [committed]).cost_usd == Decimal("36.00")
    both = plan(request(training(gpu_hours=10)), [committed, offer("od", "2.00")])
    assert both.placements[0].offer_id == "od"
    long = plan(request(training(gpu_hours=40)), [committed, offer("od", "2.00")])
    assert long.cost_usd == Decimal("60.00")


def test_a_listed_window_is_bought_whole() -> None:
    terms = window(WindowKind.LISTED, (6, 30, 2))
    listed = offer("block", "1.00", tier=Tier.WINDOW, window=terms, upfront_usd=Decimal("48.00"))
    found = plan(request(training(gpu_hours=10)), [listed, offer("od", "3.00")])
    (placed,) = found.placements
    assert placed.offer_id == "block"
    assert found.cost_usd == Decimal("24.00")
    assert (placed.segments[0].start, placed.segments[0].end) == (at(6), at(30))
    assert placed.paid_unused_usd == Decimal("14.00")


def test_a_listed_window_too_short_is_not_bought() -> None:
    terms = window(WindowKind.LISTED, (0, 8, 1))
    listed = offer("block", "0.10", tier=Tier.WINDOW, window=terms)
    found = plan(request(training(gpu_hours=10)), [listed, offer("od", "3.00")])
    assert found.placements[0].offer_id == "od"


def test_a_slot_is_cut_on_its_grid_after_its_lead() -> None:
    terms = window(
        WindowKind.SLOTS,
        (0, 96, 4),
        anchor_utc=time(11, 30),
        step_hours=24.0,
        durations_hours=(24.0, 48.0),
        lead_hours=13.0,
    )
    slots = offer("slots", "1.00", tier=Tier.WINDOW, window=terms)
    (placed,) = plan(request(training(deadline=at(90)), hours=96), [slots]).placements
    assert placed.segments[0].start == at(35.5)
    assert placed.segments[0].end == at(59.5)
    assert placed.cost_usd == Decimal("24.00")


def test_a_count_off_the_menu_is_rounded_outward_and_the_rest_is_shown_as_unused() -> None:
    terms = window(WindowKind.LISTED, (0, 24, 8), node_counts=(1, 2, 4, 8))
    block = offer("block", "1.00", tier=Tier.WINDOW, window=terms, joined=8)
    run = training(gpu_hours=60, gpus=GpuRange(3, 3), deadline=at(24))
    (placed,) = plan(request(run), [block]).placements
    assert (placed.nodes, placed.gpus, placed.segments[0].nodes) == (3, 3, 4)
    assert placed.cost_usd == Decimal("96.00")
    assert placed.paid_unused_usd == Decimal("36.00")
    assert "3 of 4 bought nodes work: this seller sells one of 1, 2, 4, 8" in placed.why.binding


def test_a_seller_whose_largest_count_is_too_small_is_no_choice() -> None:
    terms = window(WindowKind.LISTED, (0, 24, 8), node_counts=(1, 2))
    block = offer("block", "0.10", tier=Tier.WINDOW, window=terms, joined=8)
    run = training(gpu_hours=60, gpus=GpuRange(3, 3), deadline=at(24))
    assert plan(request(run), [block, offer("od", "9.00", joined=8)]).placements[0].offer_id == "od"


@pytest.mark.parametrize("kind", [training, batch])
def test_lots_are_bought_whole(kind: Callable[..., Training | Batch]) -> None:
    terms = window(WindowKind.SLOTS, (0, 48, 40), lot_nodes=18)
    (placed,) = plan(
        request(kind()), [offer("lots", "1.00", tier=Tier.WINDOW, window=terms, joined=36)]
    ).placements
    assert placed.segments[0].nodes == 18


def test_a_window_that_begins_when_capacity_appears_is_planned_at_its_latest_start() -> None:
    flex = offer("flex", "1.00", tier=Tier.WINDOW, window=waiting_terms(2.0))
    run = training(gpu_hours=10, earliest_start=at(1), deadline=at(13.5))
    (placed,) = plan(request(run), [flex, offer("od", "3.00")]).placements
    assert placed.offer_id == "flex"
    assert (placed.segments[0].start, placed.segments[0].end) == (at(3), at(13))
    assert any(
        "ordered 2 h before its start, an assumed wait (a test)" in rule for rule in placed.why.binding
    )
    hasty = training(gpu_hours=10, earliest_start=at(1), deadline=at(12.5))
    assert plan(request(hasty), [flex, offer("od", "3.00")]).placements[0].offer_id == "od"


def test_a_run_too_long_for_the_seller_waits_for_nothing() -> None:
    terms = replace(waiting_terms(2.0), durations_hours=(1.0, 2.0))
    flex = offer("flex", "0.10", tier=Tier.WINDOW, window=terms)
    found = plan(request(training(deadline=at(20))), [flex, offer("od", "3.00")])
    assert found.placements[0].offer_id == "od"


def test_nodes_need_a_fabric() -> None:
    asked = request(training(gpu_hours=100, deadline=at(20)))
    alone = plan(asked, [offer("single", "1.00"), offer("joined", "2.00", joined=16)])
    (placed,) = alone.placements
    assert (placed.offer_id, placed.nodes >= 5) == ("joined", True)
    only_single = plan(asked, [offer("single", "1.00")])
    assert only_single.unplaced[0].reason is Obstacle.DEADLINE
    later = "deadline of 2026-11-27T04:00Z, 80 h later, and horizon.days of 5: it then costs $100.00"
    assert only_single.unplaced[0].nearest_fix == later
    assert only_single.status is PlanStatus.INFEASIBLE
    assert only_single.bound_usd is None


def test_the_asked_gpu_range_binds() -> None:
    found = plan(
        request(training(gpu_hours=64, gpus=GpuRange(8, 16))), [offer("joined", "2.00", joined=32, gpus=2)]
    )
    assert 8 <= found.placements[0].gpus <= 16


def test_lateness_is_paid_when_that_is_cheaper() -> None:
    run = training(gpu_hours=50, deadline=at(40), late_usd_per_hour=Decimal("1.00"))
    found = plan(request(run, hours=96), [offer("slow", "1.00"), offer("fast", "4.00", gpu="BIG", gpus=2)])
    assert found.placements[0].offer_id == "slow"
    assert found.cost_usd == Decimal("50.00")
    assert found.penalty_usd == Decimal("10.00")


def test_two_runs_share_one_node_in_turn() -> None:
    runs = [training("first", 10), training("second", 10)]
    offers = [offer("only", "1.00", nodes=1), offer("dear", "5.00")]
    found = plan(request(*runs), offers)
    assert found.cost_usd == Decimal("20.00") == found.bound_usd
    assert {p.offer_id for p in found.placements} == {"only"}


def test_stock_that_cannot_wait_sends_one_run_elsewhere() -> None:
    runs = [training("first", 10, deadline=at(12)), training("second", 10, deadline=at(12))]
    offers = [offer("only", "1.00", nodes=1), offer("dear", "5.00")]
    found = plan(request(*runs), offers)
    assert found.cost_usd == Decimal("60.00") == found.bound_usd
    assert found.status is PlanStatus.OPTIMAL


def test_what_no_stock_is_left_for_is_named() -> None:
    runs = [training("first", 10, deadline=at(12)), training("second", 10, deadline=at(12))]
    found = plan(request(*runs), [offer("only", "1.00", nodes=1)])
    (left,) = found.unplaced
    assert left.reason is Obstacle.CONTENTION
    assert left.nearest_fix == "deadline of 2026-11-23T20:00Z, 8 h later: it then costs $10.00"


def test_the_budget_is_kept_and_named() -> None:
    runs = [
        training("first", 10, unplaced_usd=Decimal("100")),
        training("second", 20, unplaced_usd=Decimal("90")),
    ]
    found = plan(request(*runs, budget_usd=Decimal("45")), [offer("a", "2.00")])
    assert found.cost_usd == Decimal("20.00")
    assert found.penalty_usd == Decimal("90.00")
    assert [(u.workload, u.reason) for u in found.unplaced] == [("second", Obstacle.BUDGET)]
    assert found.unplaced[0].nearest_fix == "a budget of $60, $15.00 higher: it then costs $40.00"
    assert total(found) == found.bound_usd


def test_leaving_out_is_chosen_when_placing_costs_more() -> None:
    found = plan(request(training(unplaced_usd=Decimal("5"))), [offer("a", "2.00")])
    assert found.unplaced[0].reason is Obstacle.PRICE
    assert found.penalty_usd == Decimal("5.00") == found.bound_usd


@pytest.mark.parametrize(
    ("policy", "obstacle", "fix"),
    [
        (Policy(providers=Providers(only=("aws",))), Obstacle.POLICY, "providers with lambda"),
        (Policy(tiers=(Tier.SPOT,)), Obstacle.TIER, "tiers with on_demand"),
        (Policy(countries=("DE",)), Obstacle.RESIDENCY, "countries with unknown ones"),
        (Policy(geography=("eu",)), Obstacle.RESIDENCY, "countries with unknown ones"),
        (Policy(min_reliability=0.9), Obstacle.POLICY, "min_reliability of 0"),
        (Policy(compliance=("hipaa",)), Obstacle.COMPLIANCE, "compliance without hipaa"),
        (Policy(regions=("eu-*",)), Obstacle.POLICY, "regions with us-east"),
    ],
)
def test_the_first_gate_that_lets_nothing_through_is_named(
    policy: Policy, obstacle: Obstacle, fix: str
) -> None:
    found = plan(request(training(policy=policy)), [offer("a", "2.00")])
    (left,) = found.unplaced
    outside = "(outside the policy: nothing that it allows can run this): it then costs $20.00"
    assert (left.reason, left.nearest_fix) == (obstacle, f"{fix} {outside}")


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [({"nodes": 0}, Obstacle.STOCK), ({"gpu": "NONE"}, Obstacle.GPU_UNKNOWN)],
)
def test_stock_and_silicon_are_gates(changes: dict[str, object], obstacle: Obstacle) -> None:
    found = plan(request(training()), [offer("a", "2.00", **changes)])
    assert found.unplaced[0].reason is obstacle


def test_an_empty_market_leaves_everything_out() -> None:
    found = plan(request(training(), serving(unplaced_usd=Decimal("7"))), [])
    assert found.status is PlanStatus.INFEASIBLE
    assert {u.reason for u in found.unplaced} == {Obstacle.POLICY}


def test_nothing_is_held_before_now() -> None:
    now = datetime(2026, 11, 23, 5, 0, 30, tzinfo=UTC)
    (placed,) = plan(request(training()), [offer("a", "2.00")], as_of=now).placements
    assert placed.segments[0].start == now


@pytest.mark.parametrize(
    "asked",
    [
        request(training("same"), training("same")),
        request(training(deadline=at(0))),
        request(serving(starts_after="nobody")),
        request(training(tokens=-1.0)),
    ],
)
def test_a_request_that_means_nothing_is_refused(asked: object) -> None:
    with pytest.raises(InputError):
        plan(asked, [offer("a", "2.00")])  # type: ignore[arg-type]
