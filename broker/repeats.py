"""Failures that come again and again: the first is told, then how many there were, and when they are over."""

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
    """Of each thing that fails, what was told of it last. ``monotonic_s``: seconds of a steady clock."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._failing: dict[str, _Failing] = {}

    def failed(self, name: str, words: str) -> int | None:
        """How many were not told before this one, which is to be told; None: it is counted alone.

        To be told are the first one, one with other words, and one in a minute.
        """
        now_s, known = self._monotonic_s(), self._failing.get(name)
        if known is not None and known.words == words and now_s - known.told_at_s < TOLD_EVERY_S:
            known.untold += 1
            return None
        self._failing[name] = _Failing(words, now_s)
        return 0 if known is None else known.untold

    def succeeded(self, name: str) -> int | None:
        """How many were not told of a failure that is over; None where there was none."""
        known = self._failing.pop(name, None)
        return None if known is None else known.untold
