"""Lower bounds on the cost of one service, from any start to the end of the horizon.

``hourly_bound`` is a lower bound on each hour for any pools: an unbounded knapsack for each level of demand.
It ignores stock, pools, kinds of GPU, starts and minimum terms, each of which only makes a fleet more
expensive. U units of the case, D levels of demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.fleets.hours import era_begins
from optimizer.placement.fleets.rules import FleetRules, fleet_rules
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase, only_units
from optimizer.placement.runtime.compiled import compiled
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class FleetBound:
    """Lower bound on the cost of a service over ``hours`` hours.

    ``starts``: pairs of an instant from which traffic may be due, in s, and a lower bound in USD for that
    start. Cost falls as the start gets later, so each bound holds for earlier starts too, plus what their
    extra hours cost: each hour [H] costs at least ``hourly_usd``. With ``owed``, the bound of a start may
    already contain a commitment for the whole horizon, so nothing is added.

    ``met``: whether the stock of all offers can carry every hour. ``in_hours``: everything is billed in whole
    hours of the grid; ``in_cents``: and each such hour costs whole cents, so the bound can be rounded up to a
    cent.
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
        """A bound of 0."""
        return cls(0)

    def from_due(self, due_s: float) -> float:
        """Lower bound if traffic is due from ``due_s``, for a fleet whose slowest start is the longest cold
        start.
        """
        if int(due_s // HOUR_S) >= self.hours:
            return 0.0
        least = self._between_usd(due_s, self.hours * HOUR_S + self.shortest_cold_s)
        for known_s, usd in self.starts:
            if known_s >= due_s:
                before = 0.0 if self.owed else self._between_usd(due_s, known_s)
                least = max(least, usd + before)
        return least

    def next_known_s(self, due_s: float) -> float:
        """Seconds from a start to the next one with a known bound; inf if there is none."""
        return min((known_s - due_s for known_s, _ in self.starts if known_s >= due_s), default=inf)

    def _between_usd(self, due_s: float, later_s: float) -> float:
        """Lower bound on what a start costs before the time in which a later start's fleet is held."""
        hour, held_from, held_to = int(due_s // HOUR_S), self._held_from(due_s), self._held_from(later_s)
        if hour >= len(self.hourly_usd) or held_to <= held_from:
            return 0.0
        # The nodes for the first hour are held at the latest when it ends.
        ends = np.arange(hour + 1, len(self.hourly_usd) + 1) * float(HOUR_S)
        held = np.diff(np.minimum(np.concatenate(([held_from], ends)), held_to)) / HOUR_S
        counted = held > 0
        return float(held[counted] @ self.hourly_usd[hour:][counted])

    def _held_from(self, due_s: float) -> float:
        """The latest time at which the fastest-starting unit is ordered to be ready; in whole hours if these
        are billed.
        """
        held_from = due_s - self.shortest_cold_s
        return held_from // HOUR_S * HOUR_S if self.in_hours else held_from

    def times(self, part: float) -> FleetBound:
        """The bound scaled by ``part``, for prices that may have fallen to that share."""
        return replace(
            self,
            starts=tuple((due_s, part * usd) for due_s, usd in self.starts),
            hourly_usd=part * self.hourly_usd,
            in_cents=self.in_cents and part == 1.0,
        )

    def with_starts_of(self, other: FleetBound) -> FleetBound:
        """This bound with the starts of another."""
        return replace(self, starts=tuple(sorted({*self.starts, *other.starts})))


def in_whole_cents(problem: Problem, case: FleetCase) -> bool:
    """Whether every price of the offers that may serve is a whole number of cents."""
    offers, table = np.unique(case.units.offer), problem.table
    amounts = np.concatenate((table.price_usd[offers], table.upfront_usd[offers])) * 100
    return bool((np.abs(amounts - np.rint(amounts)) < 1e-9).all())


def hourly_bound(problem: Problem, case: FleetCase) -> FleetBound:
    """The hourly bound, for any start; a bound of 0 if nothing can serve."""
    units = case.units
    if not len(units):
        return FleetBound.nothing()
    gone_s = problem.table.gone_s[units.offer]
    era_s = era_begins(gone_s[gone_s < problem.end_s], 0, problem.end_s)
    begin_s = np.arange(len(case.demand)) * HOUR_S
    era_of_hour = np.searchsorted(era_s, begin_s, side="right") - 1
    found = np.zeros(len(case.demand))
    for (era, since_s), stage in product(enumerate(era_s), range(2)):
        hours, there = (era_of_hour == era) & (case.stage_of == stage), gone_s > since_s
        if there.any() and hours.any():
            some = only_units(case, there)
            some = replace(some, units=some.units.in_stage(stage))
            found[hours] = _least_hours_usd(problem, some, case.demand[hours])
    return FleetBound(
        len(case.demand),
        float(units.cold_s.min()),
        float(units.cold_s.max()),
        hourly_usd=within_time(problem, case.service, found),
    )


def _least_hours_usd(problem: Problem, case: FleetCase, demand: Floats) -> Floats:
    """USD that each hour with ``demand`` [H] costs at least."""
    units, rules = case.units, fleet_rules(problem, case.service)
    levels, of_hour = np.unique(demand, return_inverse=True)
    usd = least_usd(units.requests_per_s, units.usd_per_hour, carried(levels, rules, units.largest))
    least: Floats = np.where(levels > 0, np.maximum(usd, rules.places * units.usd_per_hour.min()), 0.0)
    return least[of_hour.reshape(-1)]


def within_time(problem: Problem, service: Serving, hourly: Floats) -> Floats:
    """Values of hours [H]; those of the last hours of the service and of the horizon times the part of the
    hour that lies inside.
    """
    begin_s, found = np.arange(len(hourly)) * HOUR_S, hourly.copy()
    for end_s in {problem.end_of(service), problem.end_s}:
        inside = (end_s - begin_s) / HOUR_S
        found = np.where((inside > 0) & (inside < 1), hourly * inside, found)
    return found


def carried(levels: Floats, rules: FleetRules, largest: Floats) -> Floats:
    """Requests/s [D] that the replicas must carry together, including spares and the loss of a place."""
    least = float(largest.min())
    with_spares = np.maximum(levels, np.where(levels > 0, rules.idle * least, 0.0)) + rules.spare * least
    if rules.loss_share <= 0 or rules.pools < 2:
        return with_spares
    found: Floats = np.maximum(with_spares, levels * rules.loss_share * rules.pools / (rules.pools - 1))
    return found


def least_usd(rate: Floats, usd: Floats, wanted: Floats) -> Floats:
    """Least USD an hour [D] of units that carry ``wanted`` [D] requests/s, each unit used any number of
    times.
    """
    step = max(float(wanted.max(initial=0.0)) / TUNING.fleets.bound_steps, 1e-300)
    steps = np.ceil(np.minimum(rate / step, TUNING.fleets.bound_steps) - 1e-9).astype(np.int64)
    cheapest = np.full(TUNING.fleets.bound_steps + 1, np.inf)
    np.minimum.at(cheapest, np.maximum(steps, 1), usd)
    # A unit that carries more for less dominates smaller ones.
    beyond = np.minimum.accumulate(cheapest[::-1])[::-1]
    sizes = np.flatnonzero(np.isfinite(cheapest) & (cheapest <= beyond))
    least = knapsack(sizes, cheapest[sizes], TUNING.fleets.bound_steps)
    at = np.ceil(wanted / step - 1e-6).astype(np.int64)
    found: Floats = np.maximum(
        least[np.minimum(at, TUNING.fleets.bound_steps)], wanted * float((usd / rate).min())
    )
    return found


@compiled
def knapsack(sizes: Ints, usd: Floats, steps: int) -> Floats:
    """Unbounded knapsack: least USD [steps + 1] of sizes, each used any number of times, that sum to at least
    each step.
    """
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
