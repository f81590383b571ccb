"""Which feeds are asked in a poll: all that answer, and those that do not ever less often. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from broker.domain.market.market import FeedHealth

MOST_POLLS = 10
"""A feed that stays silent is still asked once in so many polls."""
JITTER = 0.2
"""Share of a wait that is drawn, so that feeds which failed together are not asked together again."""


@dataclass(frozen=True, slots=True)
class PollPlan:
    """How often feeds are asked: in every poll, or less often (``own``) where their prices are no newer."""

    every: timedelta
    own: Mapping[str, timedelta] = field(default_factory=dict, hash=False)

    def of(self, feed: str) -> timedelta:
        """The time between two polls of a feed that answers."""
        return max(self.every, self.own.get(feed, self.every))


class BreakerState(StrEnum):
    """``closed``: asked in its turn; ``open``: not before an instant; ``half_open``: the next try decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Polling:
    """When a feed is asked: every so often, and next at ``next_at`` (None: it never was)."""

    every: timedelta
    failures: int
    breaker: BreakerState
    next_at: datetime | None


def polling_of(feed: FeedHealth, plan: PollPlan, now: datetime) -> Polling:
    """Where a feed stands with the timetable."""
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
    """Failures in a row by feed, and when each is to be asked again."""

    plan: PollPlan
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, datetime] = field(default_factory=dict)

    def resume(self, feeds: Iterable[FeedHealth]) -> None:
        """Goes on from what another process had counted."""
        for feed in feeds:
            if feed.failures:
                self._failures[feed.provider] = feed.failures
            if feed.not_before is not None:
                self._not_before[feed.provider] = feed.not_before

    def due(self, feeds: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Those of ``feeds`` that are to be asked at ``now``."""
        return tuple(feed for feed in feeds if self._not_before.get(feed, now) <= now)

    def note(self, feed: str, now: datetime, *, failed: bool, draw: float) -> datetime | None:
        """What came of asking ``feed``, and before when it is not asked again (None: the next poll is right);
        ``draw`` in [0, 1). After one failure the next poll asks, each further one waits twice as long."""
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
