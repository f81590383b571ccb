"""Near ties: less to operate for a small share of a service's cost, and never more than that."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.planning.plan import Placement, Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest
from optimizer.placement.explain.near_ties import levels_of
from optimizer.placement.fleets.columns import stacked
from optimizer.placement.problem.columns import Span
from tests.placement.market import at, offer, plan, request, serving, training

DIP = [7.0] * 4 + [3.0] * 2 + [7.0] * 6
"""One node of two is not wanted for two hours; releasing it saves one, as it is started an hour early."""


def paying(premium: float, asked: PlanRequest) -> PlanRequest:
    """The request with a premium for near ties."""
    return replace(asked, policy=replace(asked.policy, premium=premium))


def starts(found: Plan) -> int:
    return sum(_starts(placement) for placement in found.placements)


def _starts(placement: Placement) -> int:
    held = [(segment.start, segment.nodes) for segment in placement.segments]
    held += [(segment.end, -segment.nodes) for segment in placement.segments]
    change: dict[object, int] = {}
    for when, nodes in held:
        change[when] = change.get(when, 0) + nodes
    return sum(max(0, nodes) for nodes in change.values())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 3)), max_size=6))
def test_levels_say_the_same_as_their_step_function(drawn: list[tuple[int, int, int]]) -> None:
    spans: tuple[Span, ...] = stacked([(start, start + length, nodes) for start, length, nodes in drawn])
    assert stacked([(a, b, 1) for level in levels_of(spans) for a, b in level]) == spans


def test_a_saving_of_an_hour_is_not_worth_a_start() -> None:
    asked, offers = request(serving(hourly=DIP), hours=12), [offer("a", "1.00")]
    least = plan(paying(0.0, asked), offers, gap=0.2)
    calm = plan(paying(0.1, asked), offers, gap=0.2)
    assert (starts(least), least.cost_usd) == (3, Decimal("23.00"))
    assert (starts(calm), calm.cost_usd) == (2, Decimal("24.00"))
    assert "$1.00 more than the cheapest fleet pay for 2 node starts in place of 3" in " ".join(
        calm.placements[0].why.binding
    )


def test_a_premium_that_is_too_small_changes_nothing() -> None:
    found = plan(paying(0.04, request(serving(hourly=DIP), hours=12)), [offer("a", "1.00")], gap=0.2)
    assert found.cost_usd == Decimal("23.00")


def test_a_plan_within_the_asked_gap_stays_there() -> None:
    found = plan(paying(0.1, request(serving(hourly=DIP), hours=12)), [offer("a", "1.00")], gap=0.0)
    assert found.cost_usd == found.bound_usd == Decimal("23.00")
    assert found.status is PlanStatus.OPTIMAL


def test_nodes_that_another_needs_in_the_gap_are_not_held() -> None:
    run = training("run", 1, earliest_start=at(4), deadline=at(5))
    asked = request(run, serving(hourly=DIP), hours=12)
    found = plan(paying(0.2, asked), [offer("a", "1.00", nodes=2)], gap=0.3)
    assert not found.unplaced
    assert found.cost_usd == Decimal("24.00")


def test_a_budget_is_kept() -> None:
    asked = request(serving(hourly=DIP), hours=12, budget_usd=Decimal("23.50"))
    assert plan(paying(0.5, asked), [offer("a", "1.00")], gap=0.2).cost_usd == Decimal("23.00")


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from([0.5, 3.0, 6.0, 9.0]), min_size=12, max_size=12),
    st.integers(1, 2),
    st.integers(0, 1),
    st.sampled_from([0.01, 0.1, 0.3]),
)
def test_never_dearer_than_the_premium_and_never_more_starts(
    hourly: list[float], zones: int, spare: int, premium: float
) -> None:
    offers = [
        offer("a", "1.00", nodes=3, zone="a"),
        offer("b", "0.70", gpu="MID", nodes=2, zone="b"),
        offer("c", "0.35", gpu="TINY", zone="a"),
    ]
    asked = request(serving(hourly=hourly, zones=zones, spare=spare), hours=12)
    least = plan(paying(0.0, asked), offers, gap=0.5)
    calm = plan(paying(premium, asked), offers, gap=0.5)
    assert starts(calm) <= starts(least)
    assert calm.cost_usd <= least.cost_usd * (1 + Decimal(str(premium))) + Decimal("0.01")
    assert calm.gap is not None
    assert calm.gap == pytest.approx(float(1 - calm.bound_usd / calm.cost_usd), abs=1e-6)  # type: ignore[operator]


def test_a_start_is_not_worth_two_hours_of_a_node() -> None:
    longer = [7.0] * 4 + [3.0] * 3 + [7.0] * 5
    asked = request(serving(hourly=longer), hours=12)
    found = plan(paying(0.5, asked), [offer("a", "1.00")], gap=0.5)
    assert (starts(found), found.cost_usd) == (3, Decimal("22.00"))
