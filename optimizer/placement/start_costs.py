"""What a rise of a service's fleet costs at least: the cheapest starts of units that bring it.

U units, J steps of the least cover.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.cover import GRID
from optimizer.placement.net_cover import in_steps
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase


def on_grid(problem: Problem) -> bool:
    """Whether the horizon ends with a grid hour, so that whole hours stay whole."""
    return problem.end_s % HOUR_S == 0


def start_costs(problem: Problem, case: FleetCase) -> Floats:
    """USD to start each unit [U]: its cold start rounded up to billing increments; 0 with two spares
    or more, when a smaller largest replica can raise the net rate for nothing."""
    units = case.units
    if case.spare > 1:
        return np.zeros(len(units))
    increment = problem.table.increment_s[units.offer]
    rounded = np.ceil(units.cold_s / increment) * increment
    lead_s = np.where((HOUR_S % increment == 0) & on_grid(problem), rounded, units.cold_s)
    upfront = units.nodes * problem.table.upfront_usd[units.offer]
    cost: Floats = units.usd_per_hour * lead_s / HOUR_S + upfront
    return cost


def start_cover(case: FleetCase, cost: Floats, step: float) -> Floats:
    """Least cost of starting units that bring a rise of each number of steps."""
    rates = case.units.requests_per_s
    if not len(rates):
        return np.zeros(GRID + 1)
    linear = np.arange(GRID + 1) * step * float((cost / np.maximum(rates, 1e-12)).min())
    rise: Floats = np.maximum(linear * (1 - 1e-9), _whole_start_cover(in_steps(rates, step), cost))
    rise[0] = 0.0
    return rise


def _whole_start_cover(steps: Ints, cost: Floats) -> Floats:
    """Unbounded knapsack over the undominated (steps, cost) pairs."""
    pairs = sorted({(float(c), -int(s)) for s, c in zip(steps, cost, strict=True)})
    kept: list[tuple[int, float]] = []
    for price, negative in pairs:
        if not kept or -negative > kept[-1][0]:
            kept.append((-negative, price))
    found, rises = np.full(GRID + 1, np.inf), np.arange(GRID + 1)
    found[0] = 0.0
    for gain, price in kept:
        count = 1
        while count * max(1, gain) < 2 * GRID:
            before = np.maximum(0, rises - count * max(1, gain))
            found = np.minimum(found, found[before] + count * price)
            count *= 2
    return found


def jump_costs(low: Ints, high: Ints, rise: Floats, single: float) -> Floats:
    """Least cost of going from each step to each [J, J].

    A rate is known to one step only, so a rise counts one step less; but any rise starts some unit.
    """
    some = np.where(low[None, :] > high[:, None], single, 0.0)
    jumps: Floats = np.maximum(some, rise[np.maximum(0, low[None, :] - high[:, None] - 1)])
    return jumps
