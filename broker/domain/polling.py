"""Which feeds are asked in a poll: all that answer, and those that do not ever less often. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

MOST_POLLS = 10
"""A feed that stays silent is still asked once in so many polls."""
JITTER = 0.2
"""Share of a wait that is drawn, so that feeds which failed together are not asked together again."""


@dataclass(slots=True)
class BackOff:
    """Failures in a row by feed, and when each is to be asked again; ``every``: the time between polls."""

    every: timedelta
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, datetime] = field(default_factory=dict)

    def due(self, feeds: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Those of ``feeds`` that are to be asked at ``now``."""
        return tuple(feed for feed in feeds if self._not_before.get(feed, now) <= now)

    def note(self, feed: str, now: datetime, *, failed: bool, draw: float) -> None:
        """What came of asking ``feed``; ``draw`` in [0, 1). One failure is asked again at the next poll, each
        further one waits twice as long."""
        if not failed:
            self._failures.pop(feed, None)
            self._not_before.pop(feed, None)
            return
        count = self._failures[feed] = self._failures.get(feed, 0) + 1
        polls = min(2 ** (count - 1), MOST_POLLS)
        self._not_before[feed] = now + self.every * (polls - 1) * (1 + JITTER * draw)
