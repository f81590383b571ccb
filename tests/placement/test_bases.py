"""What a fleet commits to is searched: others are taken where they, with the rest by the hour, cost less."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from optimizer.placement.fleet_bases import better_based
from optimizer.placement.fleet_path import fleet_path, path_columns
from optimizer.placement.ladders import best_ladders, build_service_column, free_nodes

from optimizer.placement.columns import Column
from optimizer.placement.estimates import build_estimates
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.problem import Problem, build_problem
from optimizer.placement.stock import Ledger
from optimizer.placement.units import FleetCase
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, request, serving

DAY = [1.0] * 6 + [3.0] * 4 + [5.5] * 8 + [2.0] * 6


def _case(hourly: list[float], **changes: Any) -> tuple[Problem, FleetCase]:
    offers = [
        offer("week", "1.00", gpu="MID", nodes=3, min_hours=48, zone="a"),
        offer("week-b", "1.05", gpu="MID", nodes=1, min_hours=48, zone="b"),
        offer("whole", "2.10", nodes=1, min_hours=200, zone="b"),
        offer("hour", "1.60", gpu="MID", nodes=4, zone="b"),
        offer("hour-a", "2.60", nodes=3, zone="a"),
        offer("small", "0.70", gpu="TINY", nodes=6, zone="a"),
    ]
    service = serving(hourly=hourly, **changes)
    problem = build_problem(request(service, hours=96), offers, T0)
    case = build_fleet_case(problem, build_estimates(problem, FakeEstimator()), service)  # type: ignore[arg-type]
    return problem, case


def _on(problem: Problem, case: FleetCase, base: tuple[int, ...]) -> list[Column]:
    path = fleet_path(problem, case, free_nodes(problem), base)
    return [] if path is None else list(path_columns(problem, path, [None]))


def _every_base(problem: Problem, case: FleetCase) -> list[tuple[int, ...]]:
    units = case.units
    commits = [int(u) for u in np.flatnonzero(problem.table.min_s[units.offer] > 3600)]
    counts = itertools.product(*(range(int(units.most[unit]) + 1) for unit in commits))
    return [tuple(u for u, n in zip(commits, each, strict=True) for _ in range(n)) for each in counts]


@pytest.mark.parametrize("changes", [{}, {"spare": 1}, {"zones": 2}, {"zones": 2, "spare": 1}])
@pytest.mark.parametrize("peak", [0.5, 1.0, 1.6])
def test_from_a_poor_fleet_the_best_commitments_of_all_are_found(
    changes: dict[str, Any], peak: float
) -> None:
    problem, case = _case([rate * peak for rate in DAY], **changes)
    known = _on(problem, case, ())
    found = better_based(problem, case, free_nodes(problem), known, [None], None)
    every = [column for base in _every_base(problem, case) for column in _on(problem, case, base)]
    fitting = [column.total_cents for column in every if Ledger(problem).fits(column)]
    best = min(column.total_cents for column in (*known, *found))
    assert best <= min(fitting) * 1.003
    assert all(Ledger(problem).fits(column) for column in found)


def test_where_nothing_is_cheaper_no_fleet_is_made() -> None:
    problem, case = _case(DAY)
    every = [column for base in _every_base(problem, case) for column in _on(problem, case, base)]
    known = [min(every, key=lambda column: column.total_cents)]
    free = free_nodes(problem)
    made = better_based(problem, case, free, known, [None], None)
    assert min((c.total_cents for c in made), default=10**9) >= known[0].total_cents
    assert better_based(problem, case, free, [], [None], None) == []


@pytest.mark.parametrize("spare", [0, 2])
def test_a_ladder_that_ends_below_a_demand_is_no_fleet(spare: int) -> None:
    """One that was built for a start after the peak may be asked for a start before it."""
    problem, case = _case([4.0] * 24 + [0.5] * 72, spare=spare)
    late, early = problem.seconds(T0) + 24 * 3600.0, problem.seconds(T0) + 3600.0
    short = [
        built
        for built in best_ladders(problem, case, free_nodes(problem), late, 6)
        if build_service_column(problem, case, built, late) is not None
    ]
    assert short
    for built in short:
        column = build_service_column(problem, case, built, early)
        units = case.units
        rungs = list(built.rungs)
        net = units.requests_per_s[rungs].sum() - spare * units.largest[rungs].max()
        assert (column is not None) <= (net >= 4.0)
    assert any(build_service_column(problem, case, built, early) is None for built in short)
