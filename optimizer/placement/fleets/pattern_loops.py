"""Compiled loops of fleets on many pools: knapsacks of one hour, and the shortest path through patterns.

O owners (a pool, whatever is committed of it), n of them, R levels, S steps of rate, K patterns (one level of
each pool), C classes of demand, H hours. Costs are USD an hour.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.loops import meets
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.compiled import compiled

BISECTIONS = 40


@compiled
def add_pools(value: Floats, usd: Floats, steps: Ints, most: Ints, choice: Ints) -> None:
    """Adds pools [n] one by one to ``value`` [S + 1], the least USD for at least each number of steps.

    ``usd`` and ``steps`` [n, R] are by level; the chosen level of each pool is written into ``choice`` [n, S
    + 1].
    """
    size = len(value)
    before = np.empty(size)
    for pool in range(len(most)):
        before[:] = value
        for at in range(size):
            choice[pool, at] = 0
        for level in range(1, most[pool] + 1):
            price, served = usd[pool, level], steps[pool, level]
            if not np.isfinite(price) or served == steps[pool, level - 1]:
                continue
            for at in range(size):
                found = before[max(0, at - served)] + price
                if found < value[at]:
                    value[at] = found
                    choice[pool, at] = level


@compiled
def add_pools_by_place(
    value: Floats, usd: Floats, steps: Ints, most: Ints, place: Ints, choice: Ints
) -> None:
    """As ``add_pools``, into the ``value`` [P, S + 1] of the place [n] of each pool."""
    for pool in range(len(most)):
        here = slice(pool, pool + 1)
        add_pools(value[place[pool]], usd[here], steps[here], most[here], choice[here])


@compiled
def spared_cover(
    usd: Floats, steps: Ints, most: Ints, needs: Ints, found: Floats, last: Ints, choice: Ints
) -> None:
    """The cheapest cover [n] of ``needs`` [n] steps in which each pool in turn is the last that is used.

    Pools are in ascending order of rate, so the last one has the largest replica. Its level is written into
    ``last`` [n], those of the pools before it into ``choice`` [n, S + 1].
    """
    value = np.full(choice.shape[1], np.inf)
    value[0] = 0.0
    for pool in range(len(most)):
        for level in range(1, most[pool] + 1):
            price = usd[pool, level] + value[max(0, needs[pool] - steps[pool, level])]
            if price < found[pool]:
                found[pool] = price
                last[pool] = level
        here = slice(pool, pool + 1)
        add_pools(value, usd[here], steps[here], most[here], choice[here])


@compiled
def reduced_costs(usd: Floats, rate: Floats, most: Ints, dual: float, reduced: Floats) -> float:
    """Writes the least ``reduced`` cost [n] of a level of each pool at ``dual`` USD per request/s.

    Returns the requests/s of the pools whose reduced cost is negative.
    """
    served = 0.0
    for pool in range(len(rate)):
        least, taken = np.inf, 0.0
        for level in range(1, most[pool] + 1):
            price = usd[pool, level] - dual * rate[pool] * level
            if price < least:
                least, taken = price, rate[pool] * level
        reduced[pool] = least
        if least < 0:
            served += taken
    return served


@compiled
def relaxed_cover(usd: Floats, rate: Floats, most: Ints, need: float, reduced: Floats) -> float:
    """LP relaxation of a cover of ``need`` requests/s; writes the ``reduced`` costs [n] at its optimal dual
    price.
    """
    low, high = 0.0, 0.0
    for pool in range(len(rate)):
        if most[pool]:
            high = max(high, usd[pool, most[pool]] / rate[pool], usd[pool, 1] / rate[pool])
    best, best_dual = 0.0, 0.0
    for _ in range(BISECTIONS):
        dual = 0.5 * (low + high)
        served = reduced_costs(usd, rate, most, dual, reduced)
        value = dual * need + np.minimum(reduced, 0.0).sum()
        if value > best:
            best, best_dual = value, dual
        low, high = (dual, high) if served < need else (low, dual)
    reduced_costs(usd, rate, most, best_dual, reduced)
    return best


@compiled
def join_parts(first: Floats, second: Floats, low: int, high: int, part: Ints) -> Floats:
    """Least USD [S + 1] for at least each number of steps, ``low`` to ``high`` of which the second table
    serves.
    """
    size = len(first)
    found = np.full(size, np.inf)
    for at in range(size):
        for mine in range(low, min(high, max(at, low)) + 1):
            price = first[max(0, at - mine)] + second[mine]
            if price < found[at]:
                found[at] = price
                part[at] = mine
    return found


@compiled
def meeting(
    levels: Ints, rate: Floats, place: Ints, demand: Floats, spare: float, places: int, loss: float,
    least: float,
) -> Bools:  # fmt: skip
    """Whether each pattern [K, O] satisfies the rules at each demand [D]."""
    found = np.zeros((len(levels), len(demand)), dtype=np.bool_)
    for k in range(len(levels)):
        used = np.flatnonzero(levels[k])
        level, rates, where = levels[k][used], rate[used], place[used]
        for d in range(len(demand)):
            found[k, d] = meets(level, rates, where, demand[d], spare, places, loss, least)
    return found


@compiled
def start_costs_between(levels: Ints, start_usd: Floats) -> Floats:
    """Start costs from each pattern [K, O] to each other; ``start_usd`` [O, R] is cumulative over levels."""
    count = len(levels)
    found = np.zeros((count, count))
    for pool in range(levels.shape[1]):
        if not levels[:, pool].any():
            continue
        cost = np.empty(count)
        for k in range(count):
            cost[k] = start_usd[pool, levels[k, pool]]
        for k in range(count):
            for other in range(count):
                if cost[other] > cost[k]:
                    found[k, other] += cost[other] - cost[k]
    return found


@compiled
def cheapest_through(cost: Floats, of_hour: Ints, length: Floats, between: Floats) -> Ints:
    """The pattern [H] of each hour on the shortest path; -1 if no pattern satisfies some hour."""
    hours, count = len(of_hour), cost.shape[1]
    came = np.full((hours, count), -1, dtype=np.int64)
    value = cost[of_hour[0]] * length[0]
    for hour in range(1, hours):
        after = np.full(count, np.inf)
        for k in range(count):
            if not np.isfinite(value[k]):
                continue
            for other in range(count):
                price = value[k] + between[k, other]
                if price < after[other]:
                    after[other] = price
                    came[hour, other] = k
        value = after + cost[of_hour[hour]] * length[hour]
    walk = np.full(hours, -1, dtype=np.int64)
    last = np.argmin(value)
    if np.isfinite(value[last]):
        for hour in range(hours - 1, -1, -1):
            walk[hour] = last
            last = came[hour, last]
    return walk
