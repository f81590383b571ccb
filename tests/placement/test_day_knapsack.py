"""The cheapest days of small menus are those that trying every fleet finds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optimizer.placement.day_knapsack import (
    SIZE,
    beside_set,
    cheapest_days,
    cheapest_sets,
    least_steps,
    most_left,
    set_of,
)
from optimizer.placement.hour_covers import alike
from optimizer.placement.knapsack import MOST, NET, OWN, STEP

from optimizer.placement.problem import Floats, Ints
from tests.depth import examples

SIZES, TRACKED, OTHERS, SPREAD = 3, 1, 2, 3


@dataclass(frozen=True)
class Units:
    """A menu [N] and all counts [M, N] of it."""

    rows: Ints
    heads: Ints
    counts: Ints

    @property
    def steps(self) -> Ints:
        found: Ints = self.counts @ self.rows[:, STEP]
        return found

    @property
    def size(self) -> Ints:
        """Of the largest replica [M]; -1: none."""
        found: Ints = np.where(self.counts > 0, self.rows[:, SIZE], -1).max(axis=1)
        return found


def _units(rng: np.random.Generator, replicas: Ints, zones: tuple[int, ...], spared: int = 1) -> Units:
    number = int(rng.integers(1, 5))
    size = np.sort(rng.integers(0, len(replicas), number))
    step = replicas[size] * rng.integers(1, 3, number)
    own = rng.choice(zones, number)
    rows = np.stack((step, step - spared * replicas[size], own, rng.integers(1, 3, number), size), axis=1)
    order, heads = alike(size, rows[:, NET], step, own, rng.uniform(1, 2, number))
    rows = np.ascontiguousarray(rows[order])
    counts = np.array(list(itertools.product(*(range(most + 1) for most in rows[:, MOST]))))
    return Units(rows, heads, counts)


def _usd(rng: np.random.Generator, units: Units, prices: int) -> Floats:
    found: Floats = units.rows[:, STEP] * rng.uniform(0.5, 1.5, (prices, len(units.rows)))
    return found


def _allows(units: Units, counts: Ints, usd: float, prices: Floats, steps: int, size: int) -> None:
    assert (counts <= units.rows[:, MOST]).all()
    assert counts @ units.rows[:, STEP] >= steps
    assert (units.rows[counts > 0, SIZE] <= size).all()
    np.testing.assert_allclose(counts @ prices, usd)


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(st.integers(0, 10_000))
def test_no_set_costs_less_than_the_table_says_and_what_is_read_back_costs_that(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = _units(rng, np.array([2, 3, 5]), (TRACKED, OTHERS))
    prices, top = _usd(rng, units, 1), int(rng.integers(4, 24))
    ways = cheapest_sets(units.rows, units.heads, prices, np.array([top]), SIZES, SPREAD + 1)
    kinds = (units.counts > 0).sum(axis=1)
    tracked = ((units.counts > 0) & (units.rows[:, OWN] == TRACKED)).sum(axis=1)
    in_one = (kinds > 0) & ((tracked == kinds) | ((tracked == 0) & (kinds == 1)))
    spread = (kinds > 1) & ~in_one
    for size, entry in itertools.product(range(SIZES), range(top + 1)):
        fits = (units.steps >= entry) & (units.size <= size)
        for apart, which in ((True, spread), (False, in_one | spread)):
            least = ways.usd[0, size, SPREAD if apart else slice(1, None), entry].min()
            true = (units.counts @ prices[0])[fits & which].min(initial=np.inf)
            assert least <= true + 1e-9
            if not (units.rows[:, OWN] == OTHERS).any():
                np.testing.assert_allclose(least, true)
            if least < np.inf:
                counts = set_of(ways, units.rows, size, apart, entry)
                _allows(units, counts, least, prices[0], entry, size)


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 2))
@example(1865, 2)
def test_no_day_costs_less_and_the_cheapest_is_read_back(seed: int, spared: int) -> None:
    rng = np.random.default_rng(seed)
    replicas = np.array([2, 3, 5] if spared else [2])
    sizes, extra = len(replicas), replicas * spared
    stand, join = (_units(rng, replicas, (0,), spared) for _ in range(2))
    hours, needs = rng.uniform(1, 9, 2), rng.integers(0, 16, 2)
    gross = needs[:, None] + extra
    stand_usd, join_usd = _usd(rng, stand, 1) * hours.sum() * 0.8, _usd(rng, join, 2)
    top = max(int(gross.max()), 1)
    least = least_steps(stand.rows, sizes, top)
    tops = most_left(join.rows if spared else join.rows[:0], needs, gross, least)
    standing = cheapest_sets(stand.rows, stand.heads, stand_usd, np.array([top]), sizes, 1)
    joining = cheapest_sets(join.rows, join.heads, join_usd, tops, sizes, 1)
    found = cheapest_days(
        standing.usd, joining.usd, join.rows, join.heads, join_usd, hours, needs, gross, least, spared > 0
    )
    usd = stand.counts @ stand_usd[0]
    for hour in range(2):
        usd = usd + hours[hour] * _cheapest_beside(stand, join, join_usd[hour], needs[hour] + extra)
    assert found.min() <= usd.min() * (1 + 1e-9)
    if found.min() == np.inf:
        return
    size, spread, steps = (int(at) for at in np.unravel_index(int(found.argmin()), found.shape))
    counts, gap, lead = np.zeros(len(stand.rows), dtype=np.int64), needs, -1
    if size < sizes:
        counts = set_of(standing, stand.rows, size, bool(spread), steps)
        gap, lead = gross[:, size] - steps, size
    joined = beside_set(joining, join.rows, join_usd, lead, needs - steps, gap, 1 - spread, spared > 0)
    assert counts @ stand_usd[0] + hours @ (joined * join_usd).sum(axis=1) == pytest.approx(found.min())
    assert (counts <= stand.rows[:, MOST]).all()
    # One that leads an hour may be one more than there are.
    assert (joined <= join.rows[:, MOST] + (spared > 0)).all()
    for hour in range(2):
        largest = max(_largest(stand.rows, counts), _largest(join.rows, joined[hour]), 0)
        meets = counts @ stand.rows[:, STEP] + joined[hour] @ join.rows[:, STEP]
        assert meets >= needs[hour] + extra[largest]


def test_a_unit_that_brings_more_than_the_peak_may_stand() -> None:
    rows, heads, needs = np.array([[9, 7, 0, 1, 0]]), np.array([0, 1]), np.array([3, 1])
    gross = needs[:, None] + 2
    standing = cheapest_sets(rows, heads, np.array([[10.0]]), np.array([5]), 1, 1)
    least, dear = least_steps(rows, 1, 5), np.full((2, 1), 40.0)
    joining = cheapest_sets(rows, heads, dear, most_left(rows, needs, gross, least), 1, 1)
    found = cheapest_days(
        standing.usd, joining.usd, rows, heads, dear, np.ones(2), needs, gross, least, spared=True
    )
    assert found.min() == pytest.approx(10.0)


def _largest(rows: Ints, counts: Ints) -> int:
    return int(rows[counts > 0, SIZE].max(initial=-1))


def _cheapest_beside(stand: Units, join: Units, usd: Floats, gross: Ints) -> Floats:
    """USD [M] of the cheapest that joins each set, where the need and the spares by size are ``gross``."""
    largest = np.maximum(np.maximum(stand.size[:, None], join.size[None, :]), 0)
    meets = stand.steps[:, None] + join.steps[None, :] >= gross[largest]
    found: Floats = np.where(meets, (join.counts @ usd)[None, :], np.inf).min(axis=1)
    return found
