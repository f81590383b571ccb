"""What is proven of one service: the least that it costs from any start to the horizon's end.

``hourly_bound`` knows what hours cost at least, whatever the service's pools: an unbounded knapsack for each
level of demand. Every rule that is left out of it makes a fleet dearer: stock, pools, kinds of GPU, starts
and minimum terms. U units of the case, D levels of demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from optimizer.placement.fleets.rules import FleetRules, fleet_rules
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase
from optimizer.placement.runtime.compiled import compiled

STEPS = 2_000
"""Into so many steps the highest level is divided; what a unit carries is rounded up to whole ones."""


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


def hourly_bound(problem: Problem, case: FleetCase) -> FleetBound:
    """The bound of hours alone, for a start at any time; that which says nothing where nothing can serve."""
    units = case.units
    if not len(units):
        return FleetBound.nothing()
    levels, of_hour = np.unique(case.demand, return_inverse=True)
    rules = fleet_rules(problem, case.service)
    usd = least_usd(units.requests_per_s, units.usd_per_hour, carried(levels, rules, units.largest))
    least = np.where(levels > 0, np.maximum(usd, rules.places * units.usd_per_hour.min()), 0.0)
    return FleetBound(
        len(case.demand),
        float(units.cold_s.min()),
        float(units.cold_s.max()),
        hourly_usd=within_horizon(problem, least[of_hour.reshape(-1)]),
    )


def within_horizon(problem: Problem, hourly_usd: Floats) -> Floats:
    """The least of each hour [H], of the last one for the part of it that the horizon has."""
    last = problem.end_s / HOUR_S - (len(hourly_usd) - 1)
    shares = np.ones(len(hourly_usd))
    shares[-1:] = min(1.0, last)
    found: Floats = hourly_usd * shares
    return found


def carried(levels: Floats, rules: FleetRules, largest: Floats) -> Floats:
    """Requests/s [D] that all replicas together carry at least, with spares and for the loss of a place."""
    with_spares = levels + rules.spare * float(largest.min())
    if rules.loss_share <= 0 or rules.pools < 2:
        return with_spares
    found: Floats = np.maximum(with_spares, levels * rules.loss_share * rules.pools / (rules.pools - 1))
    return found


def least_usd(rate: Floats, usd: Floats, wanted: Floats) -> Floats:
    """The least USD an hour [D] of units, each any number of times, that carry ``wanted`` [D] requests/s."""
    step = max(float(wanted.max(initial=0.0)) / STEPS, 1e-300)
    steps = np.ceil(np.minimum(rate / step, STEPS) - 1e-9).astype(np.int64)
    cheapest = np.full(STEPS + 1, np.inf)
    np.minimum.at(cheapest, np.maximum(steps, 1), usd)
    # A unit that carries more for less makes the others needless.
    beyond = np.minimum.accumulate(cheapest[::-1])[::-1]
    sizes = np.flatnonzero(np.isfinite(cheapest) & (cheapest <= beyond))
    least = knapsack(sizes, cheapest[sizes], STEPS)
    at = np.ceil(wanted / step - 1e-6).astype(np.int64)
    found: Floats = np.maximum(least[np.minimum(at, STEPS)], wanted * float((usd / rate).min()))
    return found


@compiled
def knapsack(sizes: Ints, usd: Floats, steps: int) -> Floats:
    """The least USD [steps + 1] for which sizes, each any number of times, reach so many steps."""
    least = np.zeros(steps + 1)
    for reach in range(1, steps + 1):
        best = np.inf
        for i in range(len(sizes)):
            before = reach - sizes[i]
            cost = usd[i] + (least[before] if before > 0 else 0.0)
            if cost < best:
                best = cost
        least[reach] = best
    return least
