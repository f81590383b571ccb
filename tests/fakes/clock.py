"""A clock that tests turn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, now: datetime = NOON) -> None:
        self._now = now

    def now(self) -> datetime:
        """The time that was set."""
        return self._now

    def advance(self, **by: float) -> None:
        """Moves on; keywords as for ``timedelta``."""
        self._now += timedelta(**by)
