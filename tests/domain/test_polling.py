"""Feeds that do not answer are asked ever less often, and at once again when they do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.market.market import FeedHealth
from broker.domain.market.polling import MOST_POLLS, BackOff, BreakerState, PollPlan, polling_of
from tests.fakes.clock import NOON

MINUTE = timedelta(minutes=1)


def asked(failing: list[bool], draw: float) -> list[int]:
    """The polls, a minute apart, in which a feed is asked that fails in some of them."""
    back_off, found = BackOff(PollPlan(MINUTE)), []
    for poll, fails in enumerate(failing):
        now = NOON + poll * MINUTE
        if back_off.due(["a", "b"], now) == ("a", "b"):
            found.append(poll)
            back_off.note("a", now, failed=fails, draw=draw)
        back_off.note("b", now, failed=False, draw=draw)
    return found


def test_waits_double_and_end_at_ten_polls() -> None:
    assert asked([True] * 40, 0.0) == [0, 1, 2, 5, 12, 21, 30, 39]


def test_a_feed_that_answers_is_asked_in_every_poll_again() -> None:
    assert asked([True, True, True, False, False, False, False], 0.0) == [0, 1, 2, 5, 6]


@given(st.lists(st.booleans(), min_size=60, max_size=60), st.floats(0, 1, exclude_max=True))
def test_no_feed_is_forgotten(failing: list[bool], draw: float) -> None:
    polls = asked(failing, draw)
    assert all(after - before <= MOST_POLLS * 1.2 for before, after in pairwise(polls))


def test_a_feed_says_where_it_stands_with_the_timetable() -> None:
    plan = PollPlan(MINUTE, {"list": 60 * MINUTE})
    back_off = BackOff(plan)
    feed = FeedHealth("a", NOON - 9 * MINUTE, None, None, None, 5, 0, 1.0)
    fresh = polling_of(feed, plan, NOON)
    assert (fresh.every, fresh.breaker, fresh.next_at) == (MINUTE, BreakerState.CLOSED, NOON - 8 * MINUTE)
    assert back_off.note("a", NOON, failed=True, draw=0.0) is None
    once = replace(feed, failures=1, last_error_at=NOON)
    assert polling_of(once, plan, NOON).breaker is BreakerState.HALF_OPEN
    until = back_off.note("a", NOON, failed=True, draw=0.0)
    twice = replace(feed, failures=2, last_error_at=NOON, not_before=until)
    waiting = polling_of(twice, plan, NOON)
    assert (waiting.breaker, waiting.next_at, until) == (BreakerState.OPEN, NOON + MINUTE, NOON + MINUTE)
    assert polling_of(twice, plan, NOON + MINUTE).breaker is BreakerState.HALF_OPEN
    assert polling_of(FeedHealth("b", None, None, None, None, 0, 0, None), plan, NOON).next_at is None
    assert back_off.note("list", NOON, failed=False, draw=0.0) == NOON + 59 * MINUTE
    assert polling_of(replace(feed, provider="list"), plan, NOON).every == 60 * MINUTE


def test_a_new_leader_goes_on_with_the_waits_of_the_one_before() -> None:
    back_off = BackOff(PollPlan(MINUTE))
    silent = FeedHealth("a", None, NOON, "no answer", NOON, 0, 0, 1.0, 3, NOON + 4 * MINUTE)
    back_off.resume([silent])
    assert back_off.due(["a", "b"], NOON + MINUTE) == ("b",)
    assert back_off.note("a", NOON + 4 * MINUTE, failed=True, draw=0.0) == NOON + 11 * MINUTE
