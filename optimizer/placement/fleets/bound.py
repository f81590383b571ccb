"""What is proven of one service: the least that it costs from any start to the horizon's end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from optimizer.placement.problem.problem import Floats, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase


@dataclass(frozen=True, slots=True, eq=False)
class FleetBound:
    """Least cost of a service over ``hours`` hours.

    ``starts``: instants from which traffic may be due, in s, with the least cost in USD from each. Costs only
    fall as the start gets later, so each holds for all earlier starts, whose own hours come on top: each hour
    [H] of any start costs at least ``hourly_usd``. Where something is ``owed`` for the whole horizon, the
    least cost from a start may count all of it already, so nothing comes on top.
    ``met``: whether the stock of all offers may meet every hour. ``in_hours``: everything is billed in whole
    hours of the grid; ``in_cents``: and each of those costs whole cents, so that amounts between two cents
    cannot occur.
    """

    hours: int
    shortest_cold_s: float = 0.0
    longest_cold_s: float = 0.0
    in_hours: bool = False
    in_cents: bool = False
    starts: tuple[tuple[float, float], ...] = ()
    met: bool = True
    owed: bool = False
    hourly_usd: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def nothing(cls) -> FleetBound:
        """The bound that says nothing."""
        return cls(0)

    def from_due(self, due_s: float) -> float:
        """Least cost when traffic is due from ``due_s``, for a fleet with the slowest start of all."""
        if int(due_s // HOUR_S) >= self.hours:
            return 0.0
        least = self._between_usd(due_s, self.hours * HOUR_S + self.shortest_cold_s)
        for known_s, usd in self.starts:
            if known_s >= due_s:
                before = 0.0 if self.owed else self._between_usd(due_s, known_s)
                least = max(least, usd + before)
        return least

    def next_known_s(self, due_s: float) -> float:
        """How long after a start the next is whose least cost is known; inf where there is none."""
        return min((known_s - due_s for known_s, _ in self.starts if known_s >= due_s), default=inf)

    def _between_usd(self, due_s: float, later_s: float) -> float:
        """Least cost of one start before what a later one holds, hour by hour."""
        hour, held_from, held_to = int(due_s // HOUR_S), self._held_from(due_s), self._held_from(later_s)
        if hour >= len(self.hourly_usd) or held_to <= held_from:
            return 0.0
        # Before the first hour is over, what it needs is held.
        ends = np.arange(hour + 1, len(self.hourly_usd) + 1) * float(HOUR_S)
        held = np.diff(np.minimum(np.concatenate(([held_from], ends)), held_to)) / HOUR_S
        counted = held > 0
        return float(held[counted] @ self.hourly_usd[hour:][counted])

    def _held_from(self, due_s: float) -> float:
        """When what starts fastest is held to be ready then, in whole hours where these are billed."""
        held_from = due_s - self.shortest_cold_s
        return held_from // HOUR_S * HOUR_S if self.in_hours else held_from

    def times(self, part: float) -> FleetBound:
        """A part of what is proven, for prices that may have fallen to it."""
        return replace(
            self,
            starts=tuple((due_s, part * usd) for due_s, usd in self.starts),
            hourly_usd=part * self.hourly_usd,
            in_cents=self.in_cents and part == 1.0,
        )

    def with_starts_of(self, other: FleetBound) -> FleetBound:
        """The bound with what another knows of single starts."""
        return replace(self, starts=tuple(sorted({*self.starts, *other.starts})))


def in_whole_cents(problem: Problem, case: FleetCase) -> bool:
    """Whether every price of what may serve is a whole number of cents."""
    offers, table = np.unique(case.units.offer), problem.table
    amounts = np.concatenate((table.price_usd[offers], table.upfront_usd[offers])) * 100
    return bool((np.abs(amounts - np.rint(amounts)) < 1e-9).all())
