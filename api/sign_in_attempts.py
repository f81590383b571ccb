"""Limits failed sign-ins by address: after too many, the address must wait.

It only limits work and is kept in this process, because keys with 256 random bits cannot be guessed anyway.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from datetime import datetime, timedelta

MOST_FAILURES = 10
WITHIN = timedelta(minutes=1)
MOST_ADDRESSES = 10_000


class FailedAttempts:
    """Counts failures by address. Beyond ``MOST_ADDRESSES`` addresses, the oldest failures are forgotten."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[datetime]] = OrderedDict()

    def wait_s(self, address: str, now: datetime) -> int:
        """Whole seconds that ``address`` must wait; 0: it may try now."""
        recent = self._recent(address, now)
        if len(recent) < MOST_FAILURES:
            return 0
        return max(1, int((recent[0] + WITHIN - now).total_seconds()) + 1)

    def note(self, address: str, now: datetime) -> None:
        """Counts one more failure."""
        recent = self._recent(address, now)
        recent.append(now)
        self._failures[address] = recent
        self._failures.move_to_end(address)
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str, now: datetime) -> deque[datetime]:
        recent = self._failures.get(address, deque(maxlen=MOST_FAILURES))
        while recent and recent[0] + WITHIN <= now:
            recent.popleft()
        return recent
