"""Near ties: fewer pools for a small share of a service's cost, and never for more than that."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest
from tests.placement.market import offer, plan, request, serving

OFFERS = [offer("big", "1.00", zone="a"), offer("mid", "0.60", gpu="MID", zone="b")]


def paying(premium: float, asked: PlanRequest) -> PlanRequest:
    """The request with a premium for near ties."""
    return replace(asked, policy=replace(asked.policy, premium=premium))


def pools(found: Plan) -> set[str]:
    return {placement.offer_id for placement in found.placements}


def test_one_pool_in_place_of_two_is_paid_for() -> None:
    """6 requests/s: a BIG of 4 and a MID of 2.5 cost 1.60 an hour, two BIG 2.00."""
    asked = request(serving(hourly=[6.0]), hours=10)
    least = plan(paying(0.0, asked), OFFERS, gap=0.5)
    calm = plan(paying(0.3, asked), OFFERS, gap=0.5)
    assert (pools(least), least.cost_usd) == ({"big", "mid"}, Decimal("16.00"))
    assert (len(pools(calm)), calm.cost_usd) == (1, Decimal("18.00"))
    why = " ".join(calm.placements[0].why.binding)
    assert "$2.00 more than the cheapest fleet pay for 1 pool in place of 2" in why


def test_a_premium_that_is_too_small_changes_nothing() -> None:
    found = plan(paying(0.1, request(serving(hourly=[6.0]), hours=10)), OFFERS, gap=0.5)
    assert found.cost_usd == Decimal("16.00")


def test_a_plan_within_the_asked_gap_stays_there() -> None:
    found = plan(paying(0.3, request(serving(hourly=[6.0]), hours=10)), OFFERS, gap=0.0)
    assert found.cost_usd == found.bound_usd == Decimal("16.00")
    assert found.status is PlanStatus.OPTIMAL


def test_a_budget_is_kept() -> None:
    asked = request(serving(hourly=[6.0]), hours=10, budget_usd=Decimal("17.00"))
    assert plan(paying(0.5, asked), OFFERS, gap=0.5).cost_usd == Decimal("16.00")


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from([0.5, 3.0, 6.0, 9.0]), min_size=12, max_size=12),
    st.integers(1, 2),
    st.integers(0, 1),
    st.sampled_from([0.01, 0.1, 0.3]),
)
def test_never_dearer_than_the_premium_and_never_more_pools(
    hourly: list[float], zones: int, spare: int, premium: float
) -> None:
    offers = [
        offer("a", "1.00", nodes=3, zone="a", launch_chance=0.8),
        offer("b", "0.70", gpu="MID", nodes=2, zone="b", launch_chance=0.9),
        offer("c", "0.35", gpu="TINY", zone="a"),
    ]
    asked = request(serving(hourly=hourly, zones=zones, spare=spare), hours=12)
    least = plan(paying(0.0, asked), offers, gap=0.5)
    calm = plan(paying(premium, asked), offers, gap=0.5)
    assert len(pools(calm)) <= len(pools(least))
    assert calm.objective_usd <= least.objective_usd * (1 + Decimal(str(premium))) + Decimal("0.01")
    assert calm.gap is not None
    assert calm.bound_usd is not None
    assert calm.gap == pytest.approx(float(1 - calm.bound_usd / calm.objective_usd), abs=1e-6)
