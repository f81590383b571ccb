"""Rates that recur at a time of day, such as five minutes at 09:00 on working days, and their hours.

A planner decides by the hour. What must be held in an hour is what its highest rate needs; what is served in
it follows from its mean rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from broker.domain.workloads import document_fields as doc

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Weekday(StrEnum):
    """Days of the week, Monday first."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


EVERY_DAY = tuple(Weekday)


@dataclass(frozen=True, slots=True)
class Burst:
    """``requests_per_s`` from the time of day ``at`` (HH:MM) on for ``minutes``, on some ``days``."""

    at: doc.TimeOfDay
    minutes: doc.BurstMinutes
    requests_per_s: doc.PeakDemand
    days: Annotated[tuple[Weekday, ...], doc.NotEmpty(), doc.OneOrList()] = EVERY_DAY

    def spans(self, begin: datetime, end: datetime, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
        """The parts of [begin, end) in which it lasts, in UTC. ``at`` and ``days`` are those of ``zone``."""
        hour, minute = map(int, self.at.split(":"))
        day = begin.astimezone(zone).date() - DAY
        last = end.astimezone(zone).date()
        while day <= last:
            if EVERY_DAY[day.weekday()] in self.days:
                since = _instant(day, hour, minute, zone)
                until = since + timedelta(minutes=self.minutes)
                if since < end and until > begin:
                    yield max(since, begin), min(until, end)
            day += DAY


def _instant(day: date, hour: int, minute: int, zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC)


def peak_rate(base: float, bursts: Sequence[Burst], begin: datetime, zone: tzinfo) -> float:
    """The highest requests/s of the hour that starts at ``begin``, where ``base`` is what comes beside
    bursts.
    """
    lasting = (one.requests_per_s for one in bursts if any(one.spans(begin, begin + HOUR, zone)))
    return max((base, *lasting))


def mean_rate(base: float, bursts: Sequence[Burst], begin: datetime, zone: tzinfo) -> float:
    """The mean requests/s of the same hour; while several bursts last, the highest rate counts."""
    end = begin + HOUR
    rows = [(a, b, one.requests_per_s) for one in bursts for a, b in one.spans(begin, end, zone)]
    edges = sorted({begin, end, *(at for a, b, _ in rows for at in (a, b))})
    whole = 0.0
    for since, until in pairwise(edges):
        rate = max((base, *(rate for a, b, rate in rows if a <= since < b)))
        whole += rate * ((until - since) / HOUR)
    return whole
