"""Predicts from the pace of equal steps whether the last one will be in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.domain.planning.planning_time import too_short
from optimizer.placement.runtime.stopwatch import Stopwatch

MEASURED_STEPS = 20
"""Number of steps from which the pace is measured."""
ROOM = 1.2
"""A suggested time limit is this multiple of the prediction."""


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
        if done < MEASURED_STEPS:
            return
        end = now + left * (now - began) / done
        if end > self.latest_s:
            raise too_short(self.workloads, self.limit_s, ROOM * (end + self.then_s))
