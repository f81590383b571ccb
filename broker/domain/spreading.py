"""Money spread evenly over time, in whole cents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.money import to_cents
from broker.domain.window import Window

GRAIN = Decimal("1e-9")


@dataclass(frozen=True, slots=True)
class Spread:
    """Whole cents over a term, in proportion to time. ``exact_usd``: the same before it was rounded, so that
    what is past stays when a term that goes on is rounded again."""

    usd: Decimal
    exact_usd: Decimal
    term: Window

    def of(self, part: Window) -> Decimal:
        """Cents of ``part``: the running total at its end less that at its start; parts sum to all of it."""
        return self._until(part.end) - self._until(part.start)

    def _until(self, instant: datetime) -> Decimal:
        if instant >= self.term.end:
            return self.usd
        exact = self.exact_usd * micros(instant - self.term.start) / micros(self.term.duration)
        # A term that goes on is divided anew: what falls on half a cent must do so again.
        return to_cents(min(exact.quantize(GRAIN), self.usd))


def micros(length: timedelta) -> int:
    """Whole microseconds."""
    return length // timedelta(microseconds=1)
