"""The time of one plan, used and left: wall time, CPU time, or counted work.

CPU time goes on only while the plan is worked at, so a busy machine finds the same plan later.

Work is counted where loops ask whether their time is over. It is the same on every machine, so a search with
a work limit ends at the same step, and with the same plan, wherever it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.domain.planning.planning_time import too_short
from broker.ports.planning import LimitClock
from optimizer.placement.runtime.tuning import TUNING

ASK_S = 0.003
"""Seconds of work of one loop iteration: about the median time on one core."""
UNLIMITED_S = 3600.0
LEAST_CPU_SHARE = 1 / 3
"""A limit that counts CPU time counts at least this share of the time that passes."""
ENDED_S = 1e9
"""Reading of a work clock that was stopped from outside."""


def never() -> bool:
    """No time limit."""
    return False


class WorkClock:
    """Counts work in seconds: every call is one iteration of some loop, worth ``turn_s``.

    ``ended``: whether work must stop. ``cut_off_s``: work done when a loop first learned that.
    """

    def __init__(self, turn_s: float = ASK_S, ended: Callable[[], bool] = never) -> None:
        self._turns = 0
        self._counted_s = 0.0
        self._turn_s = turn_s
        self._ended = ended
        self.cut_off_s: float | None = None

    def __call__(self) -> float:
        """Seconds so far, including this iteration."""
        self._turns += 1
        if not self.ended():
            return self.work_s
        return ENDED_S

    def ended(self) -> bool:
        """Whether work must stop; counts no iteration."""
        if self._ended() and self.cut_off_s is None:
            self.cut_off_s = self.work_s
        return self.cut_off_s is not None

    @property
    def work_s(self) -> float:
        """Seconds of work so far; counts no iteration."""
        return self._turns * self._turn_s + self._counted_s

    def count(self, seconds: float) -> None:
        """Counts the work of a step without a loop that asks."""
        self._counted_s += seconds


class CpuClock:
    """Counts seconds of the processor, at least ``LEAST_CPU_SHARE`` of the seconds that pass, and no more
    than pass.

    A limit is never over before its seconds have passed, and a busy machine delays it three times at most.
    """

    def __init__(
        self, cpu: Callable[[], float] = time.process_time, wall: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpu, self._wall = cpu, wall
        self._cpu_0_s, self._wall_0_s = cpu(), wall()

    def __call__(self) -> float:
        """Seconds since its creation."""
        passed_s = self.passed_s
        return min(passed_s, max(self._cpu() - self._cpu_0_s, LEAST_CPU_SHARE * passed_s))

    @property
    def passed_s(self) -> float:
        """Seconds that passed since its creation."""
        return self._wall() - self._wall_0_s

    @property
    def is_starved(self) -> bool:
        """Whether the processor had less than ``LEAST_CPU_SHARE`` of the time for it."""
        return self._cpu() - self._cpu_0_s < LEAST_CPU_SHARE * self.passed_s


def clock_of(
    kind: LimitClock, guard_s: float | None = None, wall: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """A clock of the given kind, in seconds from an arbitrary origin.

    A work clock stops when ``guard_s`` seconds by ``wall`` have passed (None: never).
    """
    if kind is LimitClock.WALL:
        return time.monotonic
    if kind is LimitClock.CPU:
        return CpuClock()
    if guard_s is None:
        return WorkClock()
    end_s = wall() + guard_s
    return WorkClock(ended=lambda: wall() >= end_s)


@dataclass(slots=True)
class Stopwatch:
    """Measures time from its creation; long loops call ``over`` at each iteration."""

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def ending(self, limit_s: float) -> Stopwatch:
        """A stopwatch with the same start and another limit."""
        other = Stopwatch(limit_s, self.clock)
        other.started = self.started
        return other

    @property
    def counts_wall(self) -> bool:
        """Whether it counts wall time alone; otherwise solvers limit their own work."""
        return self.clock is time.monotonic

    @property
    def seconds(self) -> float:
        """Seconds since its creation; more than any limit once a guard has stopped it."""
        now_s = self.clock()
        return ENDED_S if self.guarded() else now_s - self.started

    @property
    def spent_s(self) -> float:
        """Seconds to report: since its creation, counted as work if that is the limit."""
        clock = self.clock
        return max(0.0, clock.work_s - self.started) if isinstance(clock, WorkClock) else self.seconds

    @property
    def left(self) -> float:
        """The wall time that a solver may take: what is left, or any time if the limit counts work."""
        left = self._left
        return UNLIMITED_S if left and isinstance(self.clock, WorkClock) else left

    @property
    def _left(self) -> float:
        return max(0.0, self.limit_s - self.seconds)

    def over(self) -> bool:
        """Whether the limit is reached."""
        return self.seconds >= self.limit_s

    def passed(self) -> bool:
        """Whether the limit is reached in wall or CPU time; counts no iteration, and a work limit is reached
        only if a guard stopped it.
        """
        return self.guarded() if isinstance(self.clock, WorkClock) else self.over()

    def guarded(self) -> bool:
        """Whether a guard has stopped the work, regardless of the limit; only a work clock has one."""
        return isinstance(self.clock, WorkClock) and self.clock.ended()

    @property
    def was_cut_off(self) -> bool:
        """Whether the guard stopped a loop before the limit was reached."""
        clock = self.clock
        if not isinstance(clock, WorkClock) or clock.cut_off_s is None:
            return False
        return clock.cut_off_s < self.started + self.limit_s

    def until(self, share: float) -> Callable[[], bool]:
        """A test whether ``share`` of the time that is left now has passed."""
        end = self.second_at(share)
        return lambda: self.seconds >= min(end, self.limit_s)

    def second_at(self, share: float) -> float:
        """The second at which ``share`` of the time that is left now will have passed."""
        return self.seconds + share * self._left

    def for_seconds(self, seconds: float) -> Callable[[], bool]:
        """A test whether ``seconds`` have passed from now on, regardless of the limit; a guard ends
        them too.
        """
        end = self.seconds + seconds
        return lambda: self.guarded() or self.seconds >= end

    def work_left(self) -> float | None:
        """The deterministic work that a solver may do, in about seconds; None for wall time."""
        return None if self.counts_wall else self._left


@dataclass(slots=True)
class Pace:
    """The steps of a first plan of ``workloads`` workloads, which must be complete after ``latest_s``
    seconds.

    ``limit_s``: the time limit of the plan; ``then_s``: seconds that are needed afterwards to explain it.
    """

    watch: Stopwatch
    limit_s: float
    latest_s: float
    then_s: float
    workloads: int
    _began: tuple[float, int] | None = field(default=None, init=False)

    def require(self, left: int) -> None:
        """Records that ``left`` steps are left; raises InputError once the last is predicted to be too
        late.
        """
        now = self.watch.seconds
        if self._began is None:
            self._began = now, left
            return
        began, first = self._began
        done = first - left
        if done < TUNING.runtime.measured_steps:
            return
        end = now + left * (now - began) / done
        if end > self.latest_s:
            raise too_short(self.workloads, self.limit_s, TUNING.runtime.room * (end + self.then_s))
