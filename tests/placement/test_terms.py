"""Minimum terms as a rate and the cost of a start: never more than what a stretch is billed, in any hours."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.placement.fleets.states import term_usd
from optimizer.placement.fleets.terms import term_bands
from optimizer.placement.problem.problem import Bools, Floats
from optimizer.placement.runtime.tuning import TUNING

PROFILE = settings(max_examples=150, deadline=None, derandomize=True)
DAYS = st.integers(1, 6)
LEVELS = st.lists(st.sampled_from([1.0, 2.0, 3.5, 5.0, 8.0]), min_size=24, max_size=24)


def days(pattern: list[float], count: int, first: float) -> tuple[Floats, Floats]:
    """Demand and length of hours that repeat; the first is longer, as with a cold start before it."""
    length = np.ones(24 * count)
    length[0] = first
    return np.tile(np.array(pattern), count), length


@PROFILE
@given(pattern=LEVELS, count=DAYS, first=st.sampled_from([1.0, 1.3, 2.0]), data=st.data())
def test_no_stretch_is_charged_more_than_its_rate_and_a_start(
    pattern: list[float], count: int, first: float, data: st.DataObject
) -> None:
    """What a node is charged in bands moves a part of a start between hours; it never adds to it."""
    demand, length = days(pattern, count, first)
    bands = term_bands(demand, length)
    begin = data.draw(st.integers(0, len(demand) - 1))
    end = data.draw(st.integers(begin + 1, len(demand)))
    held = length[begin:end]
    for charged in range(1, TUNING.fleets.bands + 1):
        share = bands.share[charged][bands.band[begin:end]]
        assert float(share @ held) <= held.sum() + bands.rest_h[charged] + 1e-9
        assert 0 <= bands.rest_h[charged] <= TUNING.fleets.longest_rest_h


def test_nights_are_free_and_days_pay_for_them() -> None:
    """A node that is wanted for eight hours of each day is charged for the nights in these."""
    demand, length = days([8.0 if 8 <= h < 16 else 1.0 for h in range(24)], 14, 1.0)
    bands = term_bands(demand, length)
    assert sorted(set(bands.band.tolist())) == [0, 2]
    assert bands.rest_h[1] == bands.usual_rest_h == 16.0
    assert bands.share[1].tolist() == [3.0, 1.0, 0.0, 1.0, 1.0, 1.0]


@PROFILE
@given(
    wanted=st.lists(st.integers(0, 3), min_size=2, max_size=9).filter(any),
    term_h=st.sampled_from([0.0, 2.0, 3.5, 20.0]),
    start=st.sampled_from([0.0, 0.4, 2.0]),
)
def test_a_level_is_held_or_begun_again_as_is_cheaper(wanted: list[int], term_h: float, start: float) -> None:
    levels, length = np.array(wanted), np.linspace(1.0, 1.5, len(wanted))
    each = np.array([0.0, 1.0, 0.7, 2.0])
    starts = np.full(4, start)
    least = sum(_cheapest(levels >= k, float(each[k]), start, term_h, length) for k in range(1, 4))
    assert term_usd(levels, each, starts, term_h, length) == pytest.approx(float(least))


def _cheapest(wanted: Bools, each: float, start: float, term_h: float, length: Floats) -> float:
    """The least over every choice of rests in which one node is given back."""
    hours = np.flatnonzero(wanted)
    if not len(hours):
        return 0.0
    gaps = np.flatnonzero(np.diff(hours) > 1)
    least = np.inf
    for count in range(len(gaps) + 1):
        for ended in combinations(gaps, count):
            firsts = [0, *(int(gap) + 1 for gap in ended)]
            lasts = [*(int(gap) for gap in ended), len(hours) - 1]
            held = [float(length[hours[a] : hours[b] + 1].sum()) for a, b in zip(firsts, lasts, strict=True)]
            least = min(least, sum(each * max(one, term_h) + start for one in held))
    return least
