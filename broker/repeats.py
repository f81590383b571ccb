"""Repeated failures: which of them to log, and how many were not logged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TOLD_EVERY_S = 60.0


@dataclass(slots=True)
class _Failing:
    words: str
    told_at_s: float
    untold: int = 0


class Repeats:
    """The last logged failure of each thing that fails. ``monotonic_s``: a monotonic clock in seconds."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._failing: dict[str, _Failing] = {}

    def failed(self, name: str, words: str) -> int | None:
        """The number of failures not logged before this one, if it is to be logged; None: only count it.

        The first failure, one with a different text, and one per minute are to be logged.
        """
        now_s, known = self._monotonic_s(), self._failing.get(name)
        if known is not None and known.words == words and now_s - known.told_at_s < TOLD_EVERY_S:
            known.untold += 1
            return None
        self._failing[name] = _Failing(words, now_s)
        return 0 if known is None else known.untold

    def succeeded(self, name: str) -> int | None:
        """The number of unlogged failures of a failure that has ended; None if there was no failure."""
        known = self._failing.pop(name, None)
        return None if known is None else known.untold
