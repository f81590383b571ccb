"""When the next call to a provider may be sent: pace and circuit breaker, without a clock and without
waiting."""

from __future__ import annotations

import contextlib
from email.utils import parsedate_to_datetime


def retry_after_s(value: str, date: str) -> float | None:
    """``Retry-After`` in its two forms; the HTTP date is taken against the answer's own ``Date``."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(date)
        return max(0.0, wait.total_seconds())
    return None


class Pace:
    """Call start times that are at least an interval apart."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.free_at = 0.0

    def take(self, start: float) -> None:
        """Marks a call that starts at ``start``."""
        self.free_at = start + self._interval_s


class Breaker:
    """A circuit breaker: it opens after too many failed calls in a row and later lets one call try."""

    def __init__(self, failures: int, open_s: float) -> None:
        self._failures, self._open_s = failures, open_s
        self._failed = 0
        self._opened_at: float | None = None

    def wait_s(self, now: float) -> float:
        """How long nothing may be sent.

        At zero, one call is let through, and later calls wait for its outcome.
        """
        if self._opened_at is None:
            return 0.0
        left = self._opened_at + self._open_s - now
        if left > 0:
            return left
        self._opened_at = now
        return 0.0

    def left_s(self, now: float) -> float:
        """How long nothing may be sent; this lets no call through."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._open_s - now)

    def note(self, failed: bool, now: float) -> None:
        """Counts the outcome of a call."""
        self._failed = self._failed + 1 if failed else 0
        self._opened_at = now if self._failed >= self._failures else None
