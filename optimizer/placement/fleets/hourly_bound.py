"""What the hours of a service cost at least, whatever its pools: an unbounded knapsack for each level of
demand.

Every rule that is left out here makes a fleet dearer: stock, pools, kinds of GPU, starts and minimum terms.
U units of the case, D levels of demand.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.fleets.rules import FleetRules, fleet_rules
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase
from optimizer.placement.runtime.compiled import compiled

STEPS = 2_000
"""Into so many steps the highest level is divided; what a unit carries is rounded up to whole ones."""


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
