"""Covers of a demand by whole units, against enumeration: zones, stock, spares, several configurations."""

from __future__ import annotations

import itertools
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer.placement.compositions import STEPS, CoverTable
from optimizer.placement.cover import GRID, fractional_cover, least_cover
from optimizer.placement.net_cover import net_cover

from broker.plan_ports import LimitClock
from optimizer.placement.estimates import build_estimates
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.problem import build_problem
from optimizer.placement.units import FleetCase
from tests.depth import examples
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, request, serving

PROFILE = settings(max_examples=examples(30), derandomize=True, deadline=None)

unit_rows = st.lists(
    st.tuples(
        st.integers(1, 400), st.sampled_from([0.5, 1.0, 1.3, 2.2]), st.integers(1, 2), st.integers(0, 2)
    ),
    min_size=1,
    max_size=4,
)


def _enumerated(
    rows: list[tuple[int, float, int, int]], need: int, zones: int, opened: frozenset[int] = frozenset()
) -> float:
    """Least cost over every count of every unit."""
    best = np.inf
    for counts in itertools.product(*(range(most + 1) for _, _, most, _ in rows)):
        used = {row[3] for row, n in zip(rows, counts, strict=True) if n} - opened
        rate = sum(row[0] * n for row, n in zip(rows, counts, strict=True))
        if rate >= need and len(used) >= zones:
            best = min(best, sum(row[1] * n for row, n in zip(rows, counts, strict=True)))
    return float(best)


@PROFILE
@given(unit_rows, st.integers(0, 900), st.integers(0, 2))
def test_both_knapsacks_find_the_cheapest_cover(
    rows: list[tuple[int, float, int, int]], need: int, zones: int
) -> None:
    steps, usd, most, zone = (np.array(column) for column in zip(*rows, strict=True))
    expected = _enumerated(rows, need, zones)
    assert least_cover(steps, usd, most, zone, zones)[min(need, GRID)] == pytest.approx(expected)
    counts = CoverTable(steps, usd, most, zone, zones, frozenset()).counts(min(need, STEPS))
    if counts is None:
        assert expected == np.inf
        return
    assert counts @ usd == pytest.approx(expected)
    assert counts @ steps >= need
    assert (counts <= most).all()
    assert len(set(zone[counts > 0])) >= zones


@PROFILE
@given(unit_rows, st.integers(0, 600), st.integers(0, 2))
def test_zones_that_stand_already_need_no_unit_more(
    rows: list[tuple[int, float, int, int]], need: int, missing: int
) -> None:
    steps, usd, most, zone = (np.array(column) for column in zip(*rows, strict=True))
    counts = CoverTable(steps, usd, most, zone, missing, frozenset({0})).counts(need)
    expected = _enumerated(rows, need, missing, frozenset({0}))
    assert (np.inf if counts is None else counts @ usd) == pytest.approx(expected)


@st.composite
def cases(draw: st.DrawFn) -> FleetCase:
    offers = [
        offer(
            f"o{i}",
            draw(st.sampled_from(["0.90", "1.00", "1.70", "3.10"])),
            gpu=draw(st.sampled_from(["BIG", "MID", "TINY"])),
            gpus=draw(st.sampled_from([1, 2])),
            nodes=draw(st.integers(1, 2)),
            zone=draw(st.sampled_from(["a", "b"])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    service = serving(
        hourly=draw(st.lists(st.sampled_from([0.5, 2.5, 4.0, 6.0, 9.0]), min_size=1, max_size=3)),
        zones=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 2)),
    )
    problem = build_problem(request(service, hours=4), offers, T0)
    return build_fleet_case(problem, build_estimates(problem, FakeEstimator()), service)  # type: ignore[arg-type]


def _least_usd_an_hour(case: FleetCase, demand: float) -> float:
    """Every choice of a configuration and a count on each offer."""
    units, best = case.units, np.inf
    by_offer = [np.flatnonzero(units.offer == o) for o in np.unique(units.offer)]
    options = [
        [(-1, 0), *((int(u), n) for u in inside for n in range(1, int(units.most[u]) + 1))]
        for inside in by_offer
    ]
    for chosen in itertools.product(*options):
        held = [(u, n) for u, n in chosen if n]
        rate = sum(units.requests_per_s[u] * n for u, n in held)
        largest = max((units.largest[u] for u, _ in held), default=0.0)
        zones = len({int(units.zone[u]) for u, _ in held})
        if zones >= case.zones and rate - case.spare * largest >= demand:
            best = min(best, sum(units.usd_per_hour[u] * n for u, n in held))
    return float(best)


@PROFILE
@given(cases())
def test_the_price_of_an_hour_is_never_above_the_cheapest_fleet_and_meets_it_on_one_node(
    case: FleetCase,
) -> None:
    if not len(case.units):
        return
    step = float(case.demand.max()) / GRID
    needs = np.floor(case.demand / step * (1 - 1e-9)).astype(np.int64)
    cover, rates = net_cover(case, step, needs)
    assert rates
    for demand, need in zip(case.demand, needs, strict=True):
        least = _least_usd_an_hour(case, float(demand))
        assert cover[need] <= least + 1e-9
        if (case.units.most == 1).all() and case.spare < 2:
            assert cover[need] == pytest.approx(least)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(1, 30),
)
def test_parts_of_units_never_cost_more_than_whole_ones(units: list[tuple[int, int, int]], need: int) -> None:
    rate, cost, most = (np.array(column, dtype=np.float64) for column in zip(*units, strict=True))
    found = fractional_cover(rate, cost, most.astype(np.int64), need / GRID)
    counts = itertools.product(*(range(int(n) + 1) for n in most))
    whole = [np.array(n) @ cost for n in counts if np.array(n) @ rate >= need]
    assert all(found[-1] <= usd for usd in whole)
    assert (np.diff(found) >= 0).all()


def test_a_fleet_of_hundreds_of_small_units_is_bounded_as_well() -> None:
    """Rounded up to three steps of the demand each, 342 of the 401 would seem enough."""
    asked = request(serving(hourly=[1001.0]), hours=1)
    found = plan(
        asked, [offer("a", "1.00", gpu="MID", nodes=1000)], time_limit_s=3.0, limit_clock=LimitClock.CPU
    )
    assert found.cost_usd == Decimal("401.00")
    assert found.bound_usd is not None
    assert found.bound_usd >= Decimal("399.00")
