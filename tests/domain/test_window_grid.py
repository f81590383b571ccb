"""A wish is snapped outward: what is bought covers it, lies on the grid, and nothing shorter would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.domain.basics.window import Segment, Window
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.window_orders import find_order_problems
from broker.domain.market.offer import WindowKind, WindowTerms
from broker.domain.market.window_grid import Snapped, first_start, hours_words, last_start, snap_outward
from broker.domain.planning.window_use import use_of
from tests.fakes.examples import an_offer, waiting_terms

T0 = datetime(2026, 11, 23, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAYS_OR_WEEKS = tuple(24.0 * days for days in (*range(1, 15), *range(21, 183, 7)))
HALF_HOUR_S = 1800


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


grids = st.builds(
    WindowTerms,
    kind=st.sampled_from([WindowKind.SLOTS, WindowKind.REQUEST]),
    segments=st.just(()),
    anchor_utc=st.none() | st.builds(time, st.integers(0, 23), st.sampled_from([0, 30])),
    step_hours=st.sampled_from([0.5, 1.0, 5.0, 24.0, 168.0]),
    durations_hours=st.none() | st.just(DAYS_OR_WEEKS),
    teardown_s=st.sampled_from([0, 1800, 3600]),
)
wishes = st.builds(
    lambda start, minutes: Window(T0 + start * MINUTE, T0 + (start + minutes) * MINUTE),
    st.integers(-3 * 1440, 3 * 1440),
    st.integers(1, 30 * 1440),
)


def accepts(terms: WindowTerms, window: Window) -> bool:
    """Whether an order of exactly ``window`` keeps to the grid, as orders are checked."""
    offer = an_offer(window=replace(terms, kind=WindowKind.REQUEST))
    return not find_order_problems(
        Intent(offer, 1, window.start, window.end), T0 - timedelta(days=99), MINUTE
    )


@given(wishes, grids)
def test_what_is_snapped_covers_the_wish_on_the_grid(wish: Window, terms: WindowTerms) -> None:
    found = snap_outward(wish, terms)
    assume(found is not None)
    assert found is not None
    assert found.window.start <= wish.start
    assert wish.end <= found.usable.end == found.window.end - timedelta(seconds=terms.teardown_s)
    assert accepts(terms, found.window)
    assert found.unwanted_hours == pytest.approx(found.window.hours - wish.hours)
    assert found.unwanted_hours >= 0


@given(wishes, grids)
def test_nothing_shorter_covers_the_wish(wish: Window, terms: WindowTerms) -> None:
    """Every start and end on half hours around the wish, tried one by one."""
    found = snap_outward(wish, terms)
    longest = found.window.duration if found is not None else timedelta(hours=max(DAYS_OR_WEEKS))
    least = wish.end + timedelta(seconds=terms.teardown_s)
    starts = [T0 + timedelta(days=-3, minutes=30 * k) for k in range(6 * 48 + 1)]
    starts = [s for s in starts if wish.start - timedelta(days=2) <= s <= wish.start]
    menu = terms.durations_hours or tuple(terms.step_hours * k for k in range(1, 1500))
    for start in starts:
        shorter = (timedelta(hours=h) for h in menu if timedelta(hours=h) < longest)
        covering = [d for d in shorter if start + d >= least]
        assert not any(accepts(terms, Window(start, start + d)) for d in covering[:3])


@given(wishes, st.lists(st.tuples(st.integers(-80, 80), st.integers(1, 400)), min_size=1, max_size=6))
def test_of_listed_windows_the_shortest_that_covers_is_taken(
    wish: Window, rows: list[tuple[int, int]]
) -> None:
    segments = tuple(Segment(at(start), at(start + hours), 4) for start, hours in rows)
    terms = WindowTerms(WindowKind.LISTED, segments, teardown_s=HALF_HOUR_S)
    covering = [s for s in segments if s.start <= wish.start and wish.end <= s.end - timedelta(minutes=30)]
    found = snap_outward(wish, terms)
    assert (found is None) == (not covering)
    if found is not None:
        assert found.window in [s.window for s in covering]
        assert found.window.duration == min(s.window.duration for s in covering)


@given(wishes, st.sampled_from([0.5, 2.0, 30.0]), st.floats(0, 1))
def test_whenever_capacity_appears_the_wish_is_covered(wish: Window, wait: float, share: float) -> None:
    found = snap_outward(wish, waiting_terms(wait))
    assume(found is not None)
    assert found is not None
    begun = found.window.start - share * timedelta(hours=wait)
    assert begun <= wish.start
    assert wish.end <= begun + found.window.duration
    assert wish.end <= found.usable.end


@given(wishes, grids)
def test_the_first_start_is_the_next_one_of_the_grid(wish: Window, terms: WindowTerms) -> None:
    first, last = first_start(wish.start, terms), last_start(wish.start, terms)
    assert last <= wish.start <= first
    assert (last == wish.start) == (first == wish.start)
    assert last_start(first, terms) == first
    if first > last:
        assert last_start(first - timedelta(microseconds=1), terms) == last


def blocks() -> WindowTerms:
    return WindowTerms(
        WindowKind.REQUEST,
        (),
        anchor_utc=time(11, 30),
        step_hours=24.0,
        durations_hours=DAYS_OR_WEEKS,
        teardown_s=HALF_HOUR_S,
    )


@pytest.mark.parametrize(
    ("wish", "bought", "unwanted"),
    [
        ((11.5, 35.0), (11.5, 35.5), 0.5),
        ((11.5, 35.25), (11.5, 59.5), 24.25),
        ((11.0, 20.0), (-12.5, 35.5), 39.0),
        ((12.0, 12.0 + 24 * 14), (11.5, 11.5 + 24 * 21), 24 * 7),
    ],
)
def test_a_block_by_hand(wish: tuple[float, float], bought: tuple[float, float], unwanted: float) -> None:
    found = snap_outward(Window(at(wish[0]), at(wish[1])), blocks())
    assert isinstance(found, Snapped)
    assert found.window == Window(at(bought[0]), at(bought[1]))
    assert found.unwanted_hours == unwanted


def test_a_wish_longer_than_the_menu_fits_nowhere() -> None:
    assert snap_outward(Window(at(0), at(24 * 190)), blocks()) is None


def test_unwanted_hours_have_their_price() -> None:
    use = use_of(blocks(), [Segment(at(11.5), at(35.5), 4)], Window(at(12), at(24)), Decimal("960.00"))
    assert use.usable == Window(at(11.5), at(35))
    assert (use.unwanted_hours, use.unwanted_usd) == (12.0, Decimal("480.00"))


def test_a_gap_between_segments_is_not_unwanted() -> None:
    segments = [Segment(at(0), at(10), 2), Segment(at(20), at(30), 2)]
    use = use_of(replace(blocks(), teardown_s=0), segments, Window(at(0), at(25)), Decimal("100.00"))
    assert (use.unwanted_hours, use.unwanted_usd) == (5.0, Decimal("25.00"))


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        ((48,), "48 h"),
        ((24.0, 48.0, 96.0), "24, 48 or 96 h"),
        (range(3, 337), "3 to 336 in steps of 1 h"),
        (
            [24 * days for days in (*range(1, 15), *range(21, 183, 7))],
            "24 to 336 in steps of 24 or 504 to 4368 in steps of 168 h",
        ),
    ],
)
def test_lengths_on_sale_are_told_in_one_line(hours: Sequence[float], words: str) -> None:
    """Mithril sells 334 lengths, Azure 14 of days and 24 of weeks."""
    assert hours_words(hours) == words
