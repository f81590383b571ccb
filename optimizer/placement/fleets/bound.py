"""What is proven of one service: the least that it costs from any start to the horizon's end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.placement.problem import Floats, Problem
from optimizer.placement.units import HOUR_S, FleetCase

DAY_H = 24


@dataclass(frozen=True, slots=True, eq=False)
class FleetBound:
    """Least cost of a service over ``hours`` hours.

    ``due_usd``: least cost when traffic is due from ``due_s``. A later start is only known to cost what each
    hour [H] costs at least (``hourly_usd``), and what ``whole_days`` that are alike do (``days_usd``).
    ``met``: whether the stock of all offers may meet every hour. ``in_hours``: everything is billed in whole
    hours of the grid; ``in_cents``: and each of those costs whole cents, so that amounts between two cents
    cannot occur.
    """

    hours: int
    shortest_cold_s: float = 0.0
    longest_cold_s: float = 0.0
    in_hours: bool = False
    in_cents: bool = False
    due_s: float = 0.0
    due_usd: float = 0.0
    met: bool = True
    whole_days: int = 0
    days_usd: float = 0.0
    hourly_usd: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def nothing(cls) -> FleetBound:
        """The bound that says nothing."""
        return cls(0)

    def from_due(self, due_s: float) -> float:
        """Least cost when traffic is due from ``due_s``, for a fleet with the slowest start of all."""
        if int(due_s // HOUR_S) >= self.hours:
            return 0.0
        return self.due_usd if due_s <= self.due_s else self._from_later(due_s)

    def _from_later(self, due_s: float) -> float:
        """Least cost of a start that was not asked for: hour by hour, and of days that are alike their
        part."""
        hour = int(due_s // HOUR_S)
        if hour >= len(self.hourly_usd):
            return 0.0
        hours = float(self.hourly_usd[hour + 1 :].sum() + self.hourly_usd[hour] * self._first_hours(due_s))
        left = min(self.whole_days, int((self.hours - due_s / HOUR_S) // DAY_H))
        return max(hours, self.days_usd * left / self.whole_days) if left else hours

    def _first_hours(self, due_s: float) -> float:
        """How long the hour of ``due_s`` is paid by what starts fastest, in whole hours where billed so."""
        held_from = due_s - self.shortest_cold_s
        if self.in_hours:
            held_from = held_from // HOUR_S * HOUR_S
        return (int(due_s // HOUR_S) + 1) - held_from / HOUR_S

    def times(self, part: float) -> FleetBound:
        """A part of what is proven, for prices that may have fallen to it."""
        return replace(
            self,
            due_usd=part * self.due_usd,
            days_usd=part * self.days_usd,
            hourly_usd=part * self.hourly_usd,
            in_cents=self.in_cents and part == 1.0,
        )

    def no_lower_than(self, before: FleetBound) -> FleetBound:
        """The bound with what was known of the start before, where that is more."""
        if before.due_usd <= self.due_usd or before.due_s < self.due_s:
            return self
        return replace(self, due_s=before.due_s, due_usd=before.due_usd)


def in_whole_cents(problem: Problem, case: FleetCase) -> bool:
    """Whether every price of what may serve is a whole number of cents."""
    offers, table = np.unique(case.units.offer), problem.table
    amounts = np.concatenate((table.price_usd[offers], table.upfront_usd[offers])) * 100
    return bool((np.abs(amounts - np.rint(amounts)) < 1e-9).all())
