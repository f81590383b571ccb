"""Time of one plan: what is used, what is left, and a sign of life at least every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PULSE_SECONDS = 0.5


@dataclass(slots=True)
class Stopwatch:
    """Counts from its making; long loops call ``over`` at each turn, which also lets ``pulse`` speak."""

    limit_s: float
    pulse: Callable[[], None] | None = None
    started: float = field(default_factory=time.monotonic)
    spoke: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.limit_s - self.seconds)

    def over(self) -> bool:
        """Whether the time is over."""
        seconds = self.seconds
        if self.pulse is not None and seconds - self.spoke >= PULSE_SECONDS:
            self.spoke = seconds
            self.pulse()
        return seconds >= self.limit_s

    def until(self, share: float) -> Callable[[], bool]:
        """Whether a share of the time that is left now is over."""
        end = self.seconds + share * self.left
        return lambda: self.over() or self.seconds >= end
