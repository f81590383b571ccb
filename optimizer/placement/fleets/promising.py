"""Preselects the pools on which a cheap fleet of a service most likely stands, from its units alone.

U units of the case.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.pools import pool_numbers
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.units import FleetCase, only_units

MOST_UNITS = 60
"""With at most this many units, all are searched."""
FIRST_UNITS = 12
"""How many of the best units select their pools, by each of two criteria."""
HURRIED_UNITS = 2
"""The same if time is over: fleets cost about 8 % more and take a third of the time."""
AMPLE = 2.0
"""Capacity of the selected pools as a multiple of the peak."""


def on_promising(problem: Problem, case: FleetCase, first: int = FIRST_UNITS) -> FleetCase:
    """The case restricted to the pools of its ``first`` best units; unchanged if it has few units.

    The criteria are cost per request and cost of carrying half of the peak. The best units of one place more
    than required are added, then further pools until they hold ``AMPLE`` times the peak.
    """
    units = case.units
    if len(units) <= MOST_UNITS:
        return case
    usd = units.usd_per_hour + units.surcharge_usd_per_hour
    each = usd / units.requests_per_s
    peak = float(case.demand.max(initial=0.0))
    needed = np.maximum(np.ceil(peak / 2 / units.requests_per_s - 1e-9), 1.0)
    half_usd = np.where(needed <= units.most, needed * usd, np.inf)
    by_each, by_half = np.argsort(each, kind="stable"), np.lexsort((each, half_usd))
    pool = pool_numbers(problem, units)
    _, best_of_place = np.unique(units.zone[by_half], return_index=True)
    order = [by_half[:first], by_each[:first], by_half[np.sort(best_of_place)[: case.zones + 1]]]
    kept = np.isin(pool, pool[np.concatenate(order)])
    held = float((units.requests_per_s * units.most)[kept].sum())
    for unit in by_each[~kept[by_each]]:
        if held >= AMPLE * peak:
            break
        if not kept[unit]:
            fresh = (pool == pool[unit]) & ~kept
            held += float((units.requests_per_s * units.most)[fresh].sum())
            kept |= fresh
    return only_units(case, kept)
