"""Which feeds a poll asks: feeds that answer in their interval, failing ones with back-off. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from broker.domain.market.market import FeedHealth

MOST_POLLS = 10
"""The back-off ends here: a failing feed is still asked once in this many polls."""
JITTER = 0.2
"""Random share added to a wait, so that feeds that failed together are not asked together again."""


@dataclass(frozen=True, slots=True)
class PollPlan:
    """Polling intervals: ``every`` for most feeds, and longer ones (``own``) for feeds that change rarely."""

    every: timedelta
    own: Mapping[str, timedelta] = field(default_factory=dict, hash=False)

    def of(self, feed: str) -> timedelta:
        """The time between two polls of a feed that answers."""
        return max(self.every, self.own.get(feed, self.every))


class BreakerState(StrEnum):
    """State of a feed's circuit breaker.

    ``closed``: it is polled normally. ``open``: it is not polled until the back-off ends. ``half_open``: the
    next poll decides.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Polling:
    """The polling schedule of a feed. ``next_at`` is None if it was never polled."""

    every: timedelta
    failures: int
    breaker: BreakerState
    next_at: datetime | None


def polling_of(feed: FeedHealth, plan: PollPlan, now: datetime) -> Polling:
    """The polling schedule of ``feed`` at ``now``."""
    tries = [at for at in (feed.last_success_at, feed.last_error_at) if at is not None]
    next_at = max(tries) + plan.every if tries else None
    if next_at is not None and feed.not_before is not None:
        next_at = max(next_at, feed.not_before)
    breaker = BreakerState.CLOSED
    if feed.failures:
        waits = feed.not_before is not None and feed.not_before > now
        breaker = BreakerState.OPEN if waits else BreakerState.HALF_OPEN
    return Polling(plan.of(feed.provider), feed.failures, breaker, next_at)


@dataclass(slots=True)
class BackOff:
    """Counts failures in a row by feed, and says when each feed is polled again."""

    plan: PollPlan
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, datetime] = field(default_factory=dict)

    def resume(self, feeds: Iterable[FeedHealth]) -> None:
        """Takes over the counts that another process stored."""
        for feed in feeds:
            if feed.failures:
                self._failures[feed.provider] = feed.failures
            if feed.not_before is not None:
                self._not_before[feed.provider] = feed.not_before

    def due(self, feeds: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Those of ``feeds`` that are to be polled at ``now``."""
        return tuple(feed for feed in feeds if self._not_before.get(feed, now) <= now)

    def note(self, feed: str, now: datetime, *, failed: bool, draw: float) -> datetime | None:
        """Records the result of polling ``feed``; returns when to poll it again (None: in the next poll).

        After one failure the next poll asks again; each further failure doubles the wait. ``draw`` in [0, 1)
        is the random part of the wait.
        """
        self._not_before.pop(feed, None)
        if not failed:
            self._failures.pop(feed, None)
            wait = self.plan.of(feed) - self.plan.every
        else:
            count = self._failures[feed] = self._failures.get(feed, 0) + 1
            polls = min(2 ** (count - 1), MOST_POLLS)
            wait = self.plan.every * (polls - 1) * (1 + JITTER * draw)
        if not wait:
            return None
        self._not_before[feed] = now + wait
        return self._not_before[feed]
