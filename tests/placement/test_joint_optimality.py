"""Runs and services together against one model: ``after``, budgets, terms, zones, spares at once.

The bound never passes the optimum, the plan is never cheaper than possible, and close to the best.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from tests.placement.market import at, offer, plan, request, serving, total, training
from tests.placement.monolith import Monolith

HOURS = 8
SECONDS = 20.0
PROFILE = settings(derandomize=True, deadline=None)
Problem = tuple[PlanRequest, list[Offer]]

prices = st.sampled_from(["0.40", "0.90", "1.00", "1.37", "2.00", "2.49"])
demands = st.lists(st.sampled_from([0.5, 2.0, 4.0, 7.0]), min_size=HOURS, max_size=HOURS)


@st.composite
def markets(draw: st.DrawFn) -> list[Offer]:
    """Three offers, some with a minimum term."""
    found = []
    for i in range(3):
        one = offer(
            f"o{i}",
            draw(prices),
            gpu=draw(st.sampled_from(["BIG", "BIG", "MID"])),
            nodes=draw(st.sampled_from([1, 2, 3, None])),
            zone=draw(st.sampled_from(["a", "b"])),
        )
        term = draw(st.sampled_from([0.0, 0.0, 3.0, 5.0]))
        found.append(replace(one, tier=Tier.COMMITTED, min_hours=term) if term else one)
    return found


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Two runs, a service that waits for the first and one that does not, perhaps a budget."""
    runs = [
        training(
            f"run{i}",
            draw(st.sampled_from([2, 4])),
            earliest_start=at(draw(st.integers(0, 2))),
            deadline=at(draw(st.integers(5, HOURS))),
            unplaced_usd=draw(st.sampled_from([Decimal("3.00"), Decimal("40.00")])),
        )
        for i in range(2)
    ]
    services = [
        serving(
            name,
            hourly=draw(demands),
            zones=draw(st.integers(1, 2)),
            spare=draw(st.integers(0, 1)),
            unplaced_usd=draw(st.sampled_from([Decimal("9.00"), Decimal("80.00")])),
            starts_after=after,
            delay_usd_per_hour=draw(st.sampled_from([None, Decimal("12.00")])) if after else None,
        )
        for name, after in (("next", "run0"), ("chat", None))
    ]
    chosen = draw(st.sampled_from([(0, 1), (0,), (1,)]))
    budget = draw(st.sampled_from([None, None, Decimal("8.00"), Decimal("20.00")]))
    asked = request(*runs, *(services[i] for i in chosen), hours=HOURS, budget_usd=budget)
    return asked, draw(markets())


def says_no_price_of_delay(asked: PlanRequest, found: Plan) -> bool:
    """Whether a service waits for a run and is not placed: then no hour of it has an average."""
    return len(found.waits) < sum(1 for w in asked.workloads if asked.followers(w.name))


def compare(problem: Problem) -> None:
    asked, offers = problem
    found = plan(asked, offers, time_limit_s=SECONDS)
    below, best = Monolith(asked, offers, waits=found.waits).totals()
    assert found.bound_usd is not None
    assert found.bound_usd <= best or says_no_price_of_delay(asked, found)
    assert total(found) >= below - (Decimal("0.10") if found.waits else Decimal("0.01"))
    assert total(found) <= best * Decimal("1.10") + Decimal("0.01")


@settings(PROFILE, max_examples=8)
@given(problems())
def test_everything_at_once_agrees_with_one_model(problem: Problem) -> None:
    compare(problem)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(PROFILE, max_examples=300)
@given(problems())
def test_hundreds_of_problems_agree_with_one_model(problem: Problem) -> None:
    compare(problem)
