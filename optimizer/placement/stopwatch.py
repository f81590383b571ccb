"""Time of one plan: what is used, what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stopwatch:
    """Counts from its making; long loops ask ``over`` at each turn."""

    limit_s: float
    started: float = field(default_factory=time.monotonic)

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
        return self.seconds >= self.limit_s

    def until(self, share: float) -> Callable[[], bool]:
        """Whether a share of the time that is left now is over."""
        end = self.seconds + share * self.left
        return lambda: self.seconds >= min(end, self.limit_s)

    def for_seconds(self, seconds: float) -> Callable[[], bool]:
        """Whether so many seconds from now are over, whatever the limit."""
        end = self.seconds + seconds
        return lambda: self.seconds >= end


def never() -> bool:
    """No time limit."""
    return False
