"""Foretells from the pace of equal steps whether the last will be in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.domain.planning.planning_time import too_short
from optimizer.placement.runtime.stopwatch import Stopwatch

MEASURED_STEPS = 20
"""So many steps tell the pace."""
ROOM = 1.2
"""The limit that is told has so much more than what is foretold."""


@dataclass(slots=True)
class Pace:
    """The steps of a first plan of so many ``workloads``, which has to stand ``latest_s`` seconds into its
    time limit of ``limit_s``; ``then_s`` more are needed to tell it."""

    watch: Stopwatch
    limit_s: float
    latest_s: float
    then_s: float
    workloads: int
    _began: tuple[float, int] | None = field(default=None, init=False)

    def require(self, left: int) -> None:
        """Notes that ``left`` steps are left; raises InputError once the last will be too late."""
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
