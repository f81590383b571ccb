"""Runs and batches that recur, such as each night: every time is a workload ``NAME#k`` of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from broker.domain.workloads import document_fields as doc

SEPARATOR = "#"
_TIME = re.compile(rf"{SEPARATOR}\d+$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A workload is done again ``every`` span, ``times`` times (None: as often as the horizon has room).

    Each time it is done ``within`` a span of its earliest start; None: the deadline is that of the first.
    """

    every: doc.Span
    times: doc.Times | None = None
    within: doc.Span | None = None

    def fitting(self, room: timedelta) -> int:
        """How many times begin if the first ends ``room`` before the horizon does."""
        return 0 if room < timedelta() else room // self.every + 1


def name_of_time(name: str, number: int) -> str:
    """The name of one time, counted from 1."""
    return f"{name}{SEPARATOR}{number}"


def series_of(name: str) -> str:
    """The name under which a document has the workload; that of a single time without its number."""
    return _TIME.sub("", name)


def is_repeated(name: str) -> bool:
    """Whether the workload is one time of several."""
    return series_of(name) != name
