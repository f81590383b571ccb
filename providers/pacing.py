"""When the next call to a provider may be sent; no clock and no waiting in here."""

from __future__ import annotations


class Pace:
    """Start times at least an interval apart."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.free_at = 0.0

    def take(self, start: float) -> None:
        """Marks a call that starts at ``start``."""
        self.free_at = start + self._interval_s


class Breaker:
    """Open for a while after too many failed calls in a row; then one call may try."""

    def __init__(self, failures: int, open_s: float) -> None:
        self._failures, self._open_s = failures, open_s
        self._failed = 0
        self._opened_at: float | None = None

    def refuses(self, now: float) -> bool:
        """Whether a call should not be sent at ``now``; a call let through holds the next ones back."""
        if self._opened_at is None:
            return False
        if now - self._opened_at < self._open_s:
            return True
        self._opened_at = now
        return False

    def note(self, failed: bool, now: float) -> None:
        """Counts the outcome of a call."""
        self._failed = self._failed + 1 if failed else 0
        self._opened_at = now if self._failed >= self._failures else None
