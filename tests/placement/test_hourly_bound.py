"""The bound of hours alone: never above what a fleet costs, and close where one unit serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer
from broker.domain.planning.workload import PlanRequest, Redundancy
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.fleets.bound import least_usd
from optimizer.placement.fleets.model import quick_fleets, termless_fleets
from optimizer.placement.fleets.pools import on_promising
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.runtime.tuning import TUNING
from tests.depth import examples
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, request, serving


def candidates_of(asked: PlanRequest, offers: Sequence[Offer], *, exact: bool = False) -> Candidates:
    problem = build_problem(asked, offers, T0)
    estimates = build_estimates(problem, cast("Estimator", FakeEstimator()))
    return build_candidates(problem, estimates, (lambda: False) if exact else None)


@settings(max_examples=examples(50), derandomize=True, deadline=None)
@given(
    units=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=3),
    wanted=st.lists(st.integers(0, 25), min_size=1, max_size=4),
)
def test_no_whole_number_of_units_costs_less(units: list[tuple[int, int]], wanted: list[int]) -> None:
    rate, usd = (np.array(column, dtype=float) for column in zip(*units, strict=True))
    found = least_usd(rate, usd, np.array(wanted, dtype=float))
    counts = np.array(list(product(range(26), repeat=len(units))))
    reach, cost = counts @ rate, counts @ usd
    for demand, least in zip(wanted, found, strict=True):
        best = cost[reach >= demand].min()
        assert least <= best + 1e-9
        assert least >= 0.97 * best  # steps are fine enough for units of this size


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("hours", [10, 10.5, 10.01, 1.2])
@pytest.mark.parametrize("increment_s", [1, 3600])
def test_the_last_hour_counts_for_its_part_alone(hours: float, increment_s: int, *, exact: bool) -> None:
    asked = request(serving(), hours=hours)
    offers = [offer("a", "1.00", billing_increment_s=increment_s)]
    found = candidates_of(asked, offers, exact=exact)
    least = found.least_service_usd(found.problem.services()[0], None)
    cost = float(plan(asked, offers).cost_usd)
    assert least <= cost + 1e-9
    assert least >= 0.8 * float(hours)


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    hourly=st.lists(st.sampled_from([0.0, 1.0, 2.5, 6.0, 11.0]), min_size=4, max_size=4).filter(any),
    zones=st.integers(1, 2),
    spare=st.integers(0, 2),
    loss_share=st.sampled_from([0.3, 0.5, 1.0]),
)
def test_no_plan_costs_less(hourly: list[float], zones: int, spare: int, loss_share: float) -> None:
    """Of two places the loss of either leaves ``loss_share``; every plan has passed the checker."""
    service = serving(hourly=hourly)
    redundancy = Redundancy(zones, spare, zone_loss_share=loss_share)
    asked = request(replace(service, redundancy=redundancy), hours=8)
    offers = [
        offer("a", "1.00", region="us-east"),
        offer("b", "1.30", region="us-west"),
        offer("c", "3.10", region="eu-west", gpus=4),
    ]
    found = candidates_of(asked, offers)
    least = found.least_service_usd(found.problem.services()[0], None)
    assert least <= float(plan(asked, offers).cost_usd) + 1e-6


def test_a_first_fleet_is_found_on_promising_pools() -> None:
    """Of two hundred places the cheapest few are looked at, until they hold twice the peak."""
    asked = request(serving(hourly=(3.0, 7.0)), hours=8)
    offers = [
        offer(f"o{i}", f"{1 + i / 100:.2f}", region=f"r{i}", nodes=8 if i % 50 == 49 else 1)
        for i in range(200)
    ]
    found = candidates_of(asked, offers)
    case, problem = found.fleets["chat"], found.problem
    assert len(on_promising(problem, case).units) < TUNING.fleets.most_units < len(case.units)
    quick = quick_fleets(problem, case, problem.table.stock_nodes, [None])
    best = float(plan(asked, offers).cost_usd)
    assert min(column.total_cents for column in quick) / 100 <= 1.05 * best
    assert not termless_fleets(problem, case, problem.table.stock_nodes, [None])
