"""What must hold of any planner: a worse market is never cheaper, a freer one never dearer, prices scale,
and a model of the whole problem at once comes to the same."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Policy, Training, Workload
from tests.depth import examples
from tests.placement.market import at, offer, plan, request, serving, total, training
from tests.placement.monolith import Monolith

PROFILE = settings(max_examples=examples(5), derandomize=True, deadline=None)
SECONDS = 1.5

prices = st.sampled_from(["0.40", "0.90", "1.00", "1.37", "2.00", "2.49"])
Problem = tuple[PlanRequest, list[Offer]]


@st.composite
def markets(draw: st.DrawFn, least: int = 3) -> list[Offer]:
    return [
        offer(
            f"o{i}",
            draw(prices),
            gpu=draw(st.sampled_from(["BIG", "BIG", "MID"])),
            nodes=draw(st.sampled_from([1, 2, 3, None])),
            zone=draw(st.sampled_from(["a", "b"])),
            country=draw(st.sampled_from(["US", "DE"])),
        )
        for i in range(draw(st.integers(least, 4)))
    ]


@st.composite
def runs(draw: st.DrawFn, name: str) -> Training:
    return training(
        name,
        draw(st.sampled_from([2, 4])),
        earliest_start=at(draw(st.integers(0, 4))),
        deadline=at(draw(st.integers(14, 18))),
        unplaced_usd=draw(st.sampled_from([Decimal("3.00"), Decimal("40.00")])),
        policy=draw(st.sampled_from([Policy(), Policy(countries=("US",))])),
    )


@st.composite
def problems(draw: st.DrawFn, most_runs: int = 3, rules: bool = True) -> Problem:
    workloads: list[Workload] = [draw(runs(f"run{i}")) for i in range(draw(st.integers(1, most_runs)))]
    if not rules:
        workloads = [replace(w, policy=Policy()) for w in workloads]
    demand = st.lists(st.sampled_from([0.5, 2.0, 4.0, 7.0]), min_size=6, max_size=6)
    service = serving(
        hourly=draw(demand),
        zones=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 1)),
        unplaced_usd=Decimal(200),
    )
    return request(*workloads, service, hours=18), draw(markets())


def planned(asked: PlanRequest, offers: list[Offer]) -> Plan:
    return plan(asked, offers, time_limit_s=SECONDS)


def least(found: Plan) -> Decimal:
    assert found.bound_usd is not None
    return found.bound_usd


def never_dearer(freer: Plan, before: Plan) -> None:
    """Within the gaps: what bounds the freer problem lies below any plan of the other."""
    assert least(freer) <= total(before)
    if before.gap == 0 and freer.gap == 0:
        assert total(freer) <= total(before)


@PROFILE
@given(problems(), st.integers(0, 3), st.sampled_from([Decimal("1.1"), Decimal(3)]))
def test_a_dearer_market_never_gives_a_cheaper_plan(problem: Problem, which: int, factor: Decimal) -> None:
    asked, offers = problem
    dearer = [*offers]
    index = which % len(offers)
    dearer[index] = replace(
        offers[index], price_usd_per_node_hour=offers[index].price_usd_per_node_hour * factor
    )
    never_dearer(planned(asked, offers), planned(asked, dearer))


@PROFILE
@given(problems(), st.integers(0, 3))
def test_more_stock_is_never_dearer(problem: Problem, which: int) -> None:
    asked, offers = problem
    index = which % len(offers)
    more = [*offers]
    more[index] = replace(offers[index], stock=replace(offers[index].stock, nodes=None))
    never_dearer(planned(asked, more), planned(asked, offers))


@PROFILE
@given(problems())
def test_later_deadlines_are_never_dearer(problem: Problem) -> None:
    asked, offers = problem
    later = [
        replace(w, deadline=min(at(18), w.deadline.replace(hour=w.deadline.hour + 1)))
        if isinstance(w, Training) and w.deadline.hour < 23
        else w
        for w in asked.workloads
    ]
    never_dearer(planned(replace(asked, workloads=tuple(later)), offers), planned(asked, offers))


@PROFILE
@given(problems())
def test_fewer_rules_are_never_dearer(problem: Problem) -> None:
    asked, offers = problem
    free = tuple(replace(w, policy=Policy()) for w in asked.workloads)
    never_dearer(planned(replace(asked, workloads=free), offers), planned(asked, offers))


@PROFILE
@given(problems(), st.permutations(range(5)))
def test_the_order_of_offers_and_workloads_changes_nothing(problem: Problem, order: list[int]) -> None:
    asked, offers = problem
    turned = sorted(offers, key=lambda o: order[int(o.offer_id[1:])])
    shuffled = replace(asked, workloads=tuple(reversed(asked.workloads)))
    before, after = planned(asked, offers), planned(shuffled, turned)
    if before.gap == 0 and after.gap == 0:
        assert total(before) == total(after)
    never_dearer(after, before)
    never_dearer(before, after)


@PROFILE
@given(problems(), st.sampled_from([2, 10]))
def test_all_prices_times_ten_is_a_plan_times_ten(problem: Problem, factor: int) -> None:
    asked, offers = problem
    times = [replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * factor) for o in offers]
    left = tuple(replace(w, unplaced_usd=(w.unplaced_usd or Decimal(0)) * factor) for w in asked.workloads)
    before, after = planned(asked, offers), planned(replace(asked, workloads=left), times)
    if before.gap == 0 and after.gap == 0:
        assert total(after) == total(before) * factor
    assert least(after) <= total(before) * factor
    assert least(before) * factor <= total(after)


@settings(PROFILE, max_examples=examples(3))
@given(problems(most_runs=5, rules=False))
def test_a_model_of_everything_at_once_comes_to_the_same(problem: Problem) -> None:
    asked, offers = problem
    below, best = Monolith(asked, offers).totals()
    found = planned(asked, offers)
    assert least(found) <= best
    assert total(found) >= below - Decimal("0.01")
    assert total(found) <= best * Decimal("1.03")
