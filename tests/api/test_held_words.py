"""How a fleet's size over time is told in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from api.held_words import held_words
from broker.domain.basics.window import Segment

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
HOUR, DAYS = timedelta(hours=1), 21


def follows(days: list[int], begin: int = 9, end: int = 18, low: int = 2, high: int = 6) -> list[Segment]:
    """``low`` nodes for three weeks, and ``high`` in some hours of the given days."""
    edges = [MONDAY]
    for day in days:
        edges += [MONDAY + (24 * day + begin) * HOUR, MONDAY + (24 * day + end) * HOUR]
    edges.append(MONDAY + DAYS * 24 * HOUR)
    steps = pairwise(edges)
    sizes = ((start, stop, high if number % 2 else low) for number, (start, stop) in enumerate(steps))
    return [Segment(start, stop, nodes) for start, stop, nodes in sizes if nodes]


EVERY = list(range(DAYS))
WEEKDAYS = [day for day in EVERY if day % 7 < 5]


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (follows(EVERY), "grows from 2 to 6 nodes each day 09:00 to 18:00 UTC"),
        (follows(EVERY[:-1], 20, 26), "grows from 2 to 6 nodes each day 20:00 to 02:00 UTC"),
        (follows(EVERY, low=0), "grows from 0 to 6 nodes each day 09:00 to 18:00 UTC"),
        (follows(WEEKDAYS), "grows from 2 to 6 nodes each weekday 09:00 to 18:00 UTC"),
        (follows([0, 1, 4, 5]), "2 to 6 nodes, 9 steps"),
        (follows([3]), "2 to 6 nodes, 3 steps"),
        (follows([]), ""),
        ([Segment(MONDAY, MONDAY + HOUR, 2), Segment(MONDAY + HOUR, MONDAY + 3 * HOUR, 2)], ""),
        ([], ""),
    ],
)
def test_a_rule_is_told_and_else_the_range(segments: list[Segment], words: str) -> None:
    assert held_words(segments) == words


def test_one_hour_off_the_rule_is_no_rule() -> None:
    segments = follows(EVERY)
    late = segments[9]
    assert late.nodes == 6
    segments[9] = Segment(late.start, late.end - HOUR, 6)
    assert held_words(segments).endswith("steps")
