"""How the number of nodes of a fleet changes over time, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, time, timedelta
from itertools import pairwise

from broker.domain.basics.window import Segment

DAY = timedelta(days=1)
FEWEST_DAYS = 3
"""A pattern of fewer days is no rule."""
WEEKEND = (5, 6)


def held_words(segments: Sequence[Segment]) -> str:
    """``grows from 2 to 6 nodes each day 09:00 to 18:00 UTC`` if it does, else the range and how many steps.

    Empty for a number of nodes that does not change.
    """
    levels = list(_levels(segments))
    sizes = [nodes for _, _, nodes in levels]
    if len(levels) < 2:
        return ""
    least, most = min(sizes), max(sizes)
    if least == most:
        return ""
    when = _daily(levels, least) if len(set(sizes)) == 2 else None
    if when is not None:
        return f"grows from {least} to {most} nodes {when}"
    return f"{least} to {most} nodes, {len(levels)} steps"


def _levels(segments: Sequence[Segment]) -> Iterator[tuple[datetime, datetime, int]]:
    """The steps in order, with the times without any node; adjoining ones of one size are one."""
    begun: datetime | None = None
    until, size = None, 0
    for one in sorted(segments):
        if begun is None or until is None:
            begun, until, size = one.start, one.end, one.nodes
            continue
        if one.start > until:
            yield begun, until, size
            begun, until, size = until, one.start, 0
        if one.nodes != size:
            yield begun, until, size
            begun, size = one.start, one.nodes
        until = one.end
    if begun is not None and until is not None:
        yield begun, until, size


def _daily(levels: Sequence[tuple[datetime, datetime, int]], least: int) -> str | None:
    """On which days, and from when to when, there are more than the ``least`` nodes; None without a rule.

    The first and the last step may be cut short.
    """
    inner = [(start, end) for start, end, nodes in levels[1:-1] if nodes > least]
    times: set[tuple[time, timedelta]] = {(start.time(), end - start) for start, end in inner}
    if len(inner) < FEWEST_DAYS or len(times) != 1:
        return None
    begin, length = times.pop()
    if length >= DAY:
        return None
    hours = f"{begin:%H:%M} to {inner[0][1]:%H:%M} UTC"
    starts = [start for start, _ in inner]
    if all(after - before == DAY for before, after in pairwise(starts)):
        return f"each day {hours}"
    if all(after == _next_weekday(before) for before, after in pairwise(starts)):
        return f"each weekday {hours}"
    return None


def _next_weekday(at: datetime) -> datetime:
    after = at + DAY
    while after.weekday() in WEEKEND:
        after += DAY
    return after
