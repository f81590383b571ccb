"""The planner against enumeration: it never claims a bound above the optimum, and it finds the optimum."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import PlanRequest
from tests.depth import examples
from tests.placement.brute_force import best_total
from tests.placement.market import at, offer, plan, request, serving, total, training

PROFILE = settings(max_examples=examples(20), derandomize=True, deadline=None)

prices = st.sampled_from(["0.50", "0.90", "1.00", "1.37", "2.00", "2.49", "3.10"])


@st.composite
def markets(
    draw: st.DrawFn, count: int, gpus: tuple[str, ...], stocks: tuple[int | None, ...] = (1, 2, None)
) -> list[Offer]:
    return [
        offer(
            f"o{i}",
            draw(prices),
            gpu=draw(st.sampled_from(gpus)),
            nodes=draw(st.sampled_from(stocks)),
            zone=draw(st.sampled_from(["a", "b"])),
        )
        for i in range(count)
    ]


@st.composite
def run_problems(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    runs = [
        training(
            f"run{i}",
            draw(st.sampled_from([2, 3, 4])),
            earliest_start=at(draw(st.integers(0, 3))),
            deadline=at(draw(st.integers(8, 14))),
            unplaced_usd=draw(st.sampled_from([None, Decimal("4.00"), Decimal("50.00")])),
        )
        for i in range(draw(st.integers(2, 3)))
    ]
    return request(*runs, hours=24), draw(markets(draw(st.integers(2, 4)), ("BIG",)))


@st.composite
def service_problems(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    service = serving(
        hourly=draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0, 6.0]), min_size=4, max_size=4)),
        zones=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 2)),
    )
    offers = draw(markets(2, ("BIG", "MID", "TINY"), (1, 2)))
    terms = st.sampled_from([0.0, 0.0, 2.0, 4.0, 6.0])
    return request(service, hours=4), [replace(o, tier=Tier.COMMITTED, min_hours=draw(terms)) for o in offers]


@PROFILE
@given(run_problems())
def test_runs_are_placed_at_the_optimum(problem: tuple[PlanRequest, list[Offer]]) -> None:
    asked, offers = problem
    best = best_total(asked, offers)
    found = plan(asked, offers)
    if best is None:
        assert found.bound_usd is None
        return
    assert found.bound_usd is not None
    assert found.bound_usd <= best
    assert total(found) == best


@PROFILE
@given(service_problems())
def test_the_bound_of_a_service_never_passes_the_optimum(problem: tuple[PlanRequest, list[Offer]]) -> None:
    asked, offers = problem
    best = best_total(asked, offers)
    found = plan(asked, offers)
    if best is None or found.bound_usd is None:
        return
    assert found.bound_usd <= best
    assert total(found) >= best - Decimal("0.01")
    assert total(found) <= best * Decimal("1.25")


@st.composite
def mixed_fleet_problems(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    """Three nodes of one or two GPUs: configurations and offers mix, and change with the hours."""
    service = serving(
        hourly=draw(st.lists(st.sampled_from([0.5, 2.5, 4.0, 6.0, 8.0]), min_size=3, max_size=3)),
        zones=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 1)),
    )
    offers = [
        offer(
            f"o{i}",
            draw(prices),
            gpu=draw(st.sampled_from(["BIG", "MID", "TINY"])),
            gpus=gpus,
            nodes=1,
            zone=draw(st.sampled_from(["a", "b"])),
            billing_increment_s=draw(st.sampled_from([1, 600, 3600])),
        )
        for i, gpus in enumerate((1, 1, draw(st.sampled_from([1, 2]))))
    ]
    return request(service, hours=3), offers


@PROFILE
@given(mixed_fleet_problems())
def test_fleets_of_mixed_units_are_found_and_the_bound_is_below_them(
    problem: tuple[PlanRequest, list[Offer]],
) -> None:
    asked, offers = problem
    best = best_total(asked, offers)
    found = plan(asked, offers)
    if best is None or found.bound_usd is None:
        return
    assert found.bound_usd <= best
    assert best - Decimal("0.02") <= total(found) <= best * Decimal("1.06")


@settings(PROFILE, max_examples=examples(8))
@given(service_problems(), st.sampled_from([1, 2, 3]), st.sampled_from(["0.40", "5.00"]))
def test_the_bound_holds_when_runs_and_services_share(
    problem: tuple[PlanRequest, list[Offer]], hours: int, unplaced: str
) -> None:
    alone, offers = problem
    runs = (
        training("r1", hours, deadline=at(4), unplaced_usd=Decimal(unplaced)),
        training("r2", 2, deadline=at(4), unplaced_usd=Decimal("3.00")),
    )
    service = serving(
        hourly=alone.workloads[0].traffic.hourly,  # type: ignore[union-attr]
        unplaced_usd=Decimal("20.00"),
    )
    asked = request(*runs, service, hours=4)
    big = [offer(o.offer_id, str(o.price_usd_per_node_hour), nodes=o.stock.nodes) for o in offers]
    best = best_total(asked, big)
    found = plan(asked, big)
    assert best is not None
    assert found.bound_usd is not None
    assert found.bound_usd <= best


@settings(PROFILE, max_examples=examples(8))
@given(run_problems(), st.integers(0, 3))
def test_more_stock_and_later_deadlines_are_never_dearer(
    problem: tuple[PlanRequest, list[Offer]], which: int
) -> None:
    asked, offers = problem
    before = plan(asked, offers)
    index = which % len(offers)
    richer = [*offers]
    richer[index] = offer(offers[index].offer_id, str(offers[index].price_usd_per_node_hour))
    after = plan(asked, richer)
    if before.bound_usd is not None:
        assert total(after) <= total(before)


@settings(PROFILE, max_examples=examples(8))
@given(run_problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_nothing(
    problem: tuple[PlanRequest, list[Offer]], random: object
) -> None:
    asked, offers = problem
    shuffled = sorted(offers, key=lambda o: o.offer_id, reverse=True)
    turned = request(*reversed(asked.workloads), hours=24)
    assert total(plan(asked, offers)) == total(plan(turned, shuffled))


def test_a_fixed_seed_gives_the_same_plan() -> None:
    offers = [offer(f"o{i}", f"{1 + i / 7:.2f}", nodes=1) for i in range(6)]
    asked = request(training("a", 5), training("b", 9), serving(hourly=[3.0, 5.0, 7.0]))
    first, second = plan(asked, offers, seed=3), plan(asked, offers, seed=3)
    assert first.placements == second.placements
    assert first.plan_id == second.plan_id


def test_scarce_cheap_nodes_go_to_whom_they_are_worth_most() -> None:
    offers = [offer("cheap", "1.00", nodes=2, zone="a"), offer("dear", "9.00", zone="a", gpu="MID")]
    offers.append(offer("tiny", "1.10", zone="a", gpu="TINY"))
    asked = request(serving("small", [1.0]), serving("large", [7.5]), hours=10)
    found = plan(asked, offers)
    assert {p.offer_id for p in found.placements_of("large")} == {"cheap"}
    assert {p.offer_id for p in found.placements_of("small")} == {"tiny"}
    assert found.cost_usd == Decimal("31.00")
