"""What is proven of a service that waits for a run, for the many ends that the run may have."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.workload import FleetLimits, Policy
from optimizer.performance.estimator import Estimator
from optimizer.placement.fleets.cases import build_fleet_case
from optimizer.placement.fleets.columns import due_s, time_of
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.workers.asks import BoundAsk
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, request, serving, training
from tests.placement.test_waiting import block

HOURS = 72
CORE = cast("Estimator", FakeEstimator())
demands = st.lists(st.sampled_from([0.5, 3.0, 6.0, 9.0, 15.0]), min_size=24, max_size=24)
prices = st.sampled_from(["0.50", "0.70", "1.00", "1.30"])
ends_h = st.lists(st.floats(1.0, HOURS - 1.5), min_size=3, max_size=5, unique=True).map(sorted)


@st.composite
def markets(draw: st.DrawFn) -> list[Offer]:
    """Three offers, of which one may be a commitment for the whole horizon."""
    offers = [
        offer(
            f"o{number}",
            draw(prices),
            gpu=draw(st.sampled_from(["BIG", "MID"])),
            zone=draw(st.sampled_from(["a", "b"])),
            nodes=draw(st.integers(1, 4)),
            billing_increment_s=draw(st.sampled_from([60, 3600])),
        )
        for number in range(3)
    ]
    if draw(st.booleans()):
        offers[0] = replace(offers[0], tier=Tier.COMMITTED, min_hours=float(HOURS))
    return offers


@settings(max_examples=60, derandomize=True, deadline=None)
@given(markets(), demands, ends_h, st.integers(0, 1))
def test_no_start_costs_less_than_what_is_proven_from_others(
    offers: list[Offer], hourly: list[float], ends: list[float], spare: int
) -> None:
    """The first and the last end are asked for; fleets are made for each."""
    chat = serving("chat", hourly, starts_after="run", spare=spare)
    asked = request(training("run", 10), replace(chat, fleet=FleetLimits(2, 2)), hours=HOURS)
    problem = build_problem(asked, offers, T0, MovingTerms(), None)
    case = build_fleet_case(problem, build_estimates(problem, CORE), problem.services()[0])
    seconds = [end * 3600 for end in ends]
    bound = BoundAsk(case, seconds[0]).answer(problem, never)
    bound = bound.with_starts_of(BoundAsk(case, seconds[-1]).answer(problem, never))
    free = problem.table.stock_nodes
    for end in seconds:
        due = due_s(time_of(problem, case, end), bound.longest_cold_s)
        for column in model_fleets(problem, case, free, [end]):
            assert bound.from_due(due) <= column.cost_cents / 100 + 0.01 * len(column.pieces)


def test_a_fleet_that_cannot_move_from_hour_to_hour_is_proven_after_each_end() -> None:
    """One pool only: the cheap node is too small for every other hour, so the dear one serves them all. The
    later block costs 5.00 less and saves 24 hours of nodes, which is less than 24 hours of delay cost."""
    offers = [
        offer("cheap", "0.50", nodes=1, zone="a"),
        offer("dear", "1.00", nodes=4, zone="b", provider="aws"),
        block("late", 24, "20.00"),
        block("early", 0, "25.00"),
    ]
    chat = serving("chat", [3.0, 7.0] * 12, starts_after="run", delay_usd_per_hour=Decimal("2.30"))
    run = training("run", 10, policy=Policy(tiers=(Tier.WINDOW,)))
    asked = request(run, replace(chat, fleet=FleetLimits(1, 1)), hours=HOURS)
    found = plan(asked, offers, gap=0.0)
    assert {p.offer_id for p in found.placements} == {"dear", "early"}
    assert found.bound_usd is not None
    assert float(found.bound_usd) == pytest.approx(float(found.objective_usd), rel=0.002)
