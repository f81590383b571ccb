"""Feeds that do not answer are asked ever less often, and at once again when they do."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.polling import MOST_POLLS, BackOff
from tests.fakes.clock import NOON

MINUTE = timedelta(minutes=1)


def asked(failing: list[bool], draw: float) -> list[int]:
    """The polls, a minute apart, in which a feed is asked that fails in some of them."""
    back_off, found = BackOff(MINUTE), []
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
