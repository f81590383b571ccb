"""Time of one plan: what is used, what is left. By the wall, by the processor, or by work done.

Work is counted where loops ask whether their time is over, and is the same on every machine: a search whose
limit counts work ends at the same step wherever it runs, and so with the same plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.ports.planning import LimitClock

ASK_S = 0.003
"""Seconds of work that one turn of a loop counts for: about what it takes, on the median, on one core."""
UNLIMITED_S = 3600.0
ENDED_S = 1e9
"""What a clock of work says once its time has been ended from outside."""


def never() -> bool:
    """No time limit."""
    return False


class WorkClock:
    """Seconds of work so far: every question is one turn of some loop, of ``turn_s``.

    ``ended``: when nothing more may be done. ``cut_off_s``: the work done when a loop first heard so.
    """

    def __init__(self, turn_s: float = ASK_S, ended: Callable[[], bool] = never) -> None:
        self._turns = 0
        self._counted_s = 0.0
        self._turn_s = turn_s
        self._ended = ended
        self.cut_off_s: float | None = None

    def __call__(self) -> float:
        """Seconds so far, this turn counted."""
        self._turns += 1
        if not self.ended():
            return self.work_s
        return ENDED_S

    def ended(self) -> bool:
        """Whether nothing more may be done; counts no turn."""
        if self._ended() and self.cut_off_s is None:
            self.cut_off_s = self.work_s
        return self.cut_off_s is not None

    @property
    def work_s(self) -> float:
        """Seconds of work so far; counts no turn."""
        return self._turns * self._turn_s + self._counted_s

    def count(self, seconds: float) -> None:
        """Counts work of a step in which no loop asks."""
        self._counted_s += seconds


def clock_of(
    kind: LimitClock, guard_s: float | None = None, wall: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """A clock of that kind, in seconds from any instant.

    A clock of work ends when ``guard_s`` seconds by ``wall`` have passed (None: never).
    """
    if kind is not LimitClock.WORK:
        return time.process_time if kind is LimitClock.CPU else time.monotonic
    if guard_s is None:
        return WorkClock()
    end_s = wall() + guard_s
    return WorkClock(ended=lambda: wall() >= end_s)


@dataclass(slots=True)
class Stopwatch:
    """Counts from its making; long loops ask ``over`` at each turn."""

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def ending(self, limit_s: float) -> Stopwatch:
        """One that began with this and has another limit."""
        other = Stopwatch(limit_s, self.clock)
        other.started = self.started
        return other

    @property
    def counts_wall(self) -> bool:
        """Whether seconds are those that pass, which solvers can be told; else they count their work."""
        return self.clock is time.monotonic

    @property
    def seconds(self) -> float:
        """Seconds since it was made; once a guard has ended the time, more than any limit."""
        now_s = self.clock()
        return ENDED_S if self.guarded() else now_s - self.started

    @property
    def spent_s(self) -> float:
        """What to tell of the time: seconds since it was made, of work where that is counted."""
        clock = self.clock
        return max(0.0, clock.work_s - self.started) if isinstance(clock, WorkClock) else self.seconds

    @property
    def left(self) -> float:
        """Seconds that a solver may take: what is left, and where its work is limited, any number."""
        left = self._left
        return left if self.counts_wall or not left else UNLIMITED_S

    @property
    def _left(self) -> float:
        return max(0.0, self.limit_s - self.seconds)

    def over(self) -> bool:
        """Whether the time is over."""
        return self.seconds >= self.limit_s

    def passed(self) -> bool:
        """Whether seconds that pass have come to the limit; counts no turn, so that work is over by it only
        where a guard has ended it."""
        return self.guarded() if isinstance(self.clock, WorkClock) else self.over()

    def guarded(self) -> bool:
        """Whether a guard has ended the time, whatever the limit; only a clock of work has one."""
        return isinstance(self.clock, WorkClock) and self.clock.ended()

    @property
    def was_cut_off(self) -> bool:
        """Whether a loop was ended by the guard before the limit was reached."""
        clock = self.clock
        if not isinstance(clock, WorkClock) or clock.cut_off_s is None:
            return False
        return clock.cut_off_s < self.started + self.limit_s

    def until(self, share: float) -> Callable[[], bool]:
        """Whether a share of the time that is left now is over."""
        end = self.second_at(share)
        return lambda: self.seconds >= min(end, self.limit_s)

    def second_at(self, share: float) -> float:
        """When a share of the time that is left now will be over."""
        return self.seconds + share * self._left

    def for_seconds(self, seconds: float) -> Callable[[], bool]:
        """Whether so many seconds from now are over, whatever the limit; a guard ends them all the same."""
        end = self.seconds + seconds
        return lambda: self.guarded() or self.seconds >= end

    def work_left(self) -> float | None:
        """What a solver may count of its own work, about as many seconds; None by the wall."""
        return None if self.counts_wall else self._left
