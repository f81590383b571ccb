"""Compiled loops over the states of a set of pools: what each costs in an hour, and the cheapest way through
all hours.

m pools of one set, S states (one level for each pool, in mixed radix), C classes of demand, H hours, R
levels. Costs are USD an hour.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.loops import EPSILON, meets
from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.compiled import compiled


@compiled
def state_costs(
    levels: Ints, counts: Ints, usd: Floats, rate: Floats, place: Ints, demand: Floats, spare: float,
    places: int, loss: float, least: float,
) -> Floats:  # fmt: skip
    """USD [C, S] an hour of every state in each class of demand, which ascend; inf where it does not meet the
    class.

    ``levels`` [m, K]: the levels that each pool may take, ``counts`` [m] of them; ``usd`` [m, R].
    """
    m = len(counts)
    states = 1
    for i in range(m):
        states *= counts[i]
    found = np.full((len(demand), states), np.inf)
    level = np.zeros(m, dtype=np.int64)
    for state in range(states):
        rest, price = state, 0.0
        total, largest = 0.0, 0.0
        for i in range(m - 1, -1, -1):
            level[i] = levels[i, rest % counts[i]]
            rest //= counts[i]
            price += usd[i, level[i]]
            if level[i] > 0:
                total += rate[i] * level[i]
                largest = max(largest, rate[i])
        # What meets a demand meets lower ones: the classes that are met end before ``above``.
        met, above = 0, len(demand)
        while met < above and total - spare * largest < demand[above - 1] * (1 - EPSILON):
            above -= 1
        while met < above:
            middle = (met + above) // 2
            if meets(level, rate, place, demand[middle], spare, places, loss, least):
                met = middle + 1
            else:
                above = middle
        found[:met, state] = price
    return found


@compiled
def _with_changes(value: Floats, levels: Ints, counts: Ints, start_usd: Floats) -> Floats:
    """USD [S] to be in each state an hour later: giving back is free, ``start_usd`` [m, R] is cumulative."""
    m = len(counts)
    found = value.copy()
    inner = 1
    for axis in range(m - 1, -1, -1):
        size = counts[axis]
        block = inner * size
        for begin in range(0, len(found), block):
            # Up: pay the difference of what starting costs; down: nothing. Both a level at a time.
            for k in range(1, size):
                step = start_usd[axis, levels[axis, k]] - start_usd[axis, levels[axis, k - 1]]
                first = begin + k * inner
                for at in range(first, first + inner):
                    found[at] = min(found[at], found[at - inner] + step)
            for k in range(size - 2, -1, -1):
                first = begin + k * inner
                for at in range(first, first + inner):
                    found[at] = min(found[at], found[at + inner])
        inner = block
    return found


@compiled
def least_over_hours(
    cost: Floats, of_hour: Ints, length: Floats, levels: Ints, counts: Ints, start_usd: Floats, period: int
) -> float:
    """Least USD over all hours [H] of a fleet on one set: exact for the given levels.

    ``cost`` [C, S]; once a ``period`` of equal days adds the same to every state, the days that are left do.
    """
    value = cost[of_hour[0]] * length[0]
    hours = len(of_hour)
    before = np.full(len(value), np.inf)
    hour = 1
    while hour < hours:
        if period > 0 and hour % period == 0:
            low, high = np.inf, -np.inf
            for state in range(len(value)):
                if np.isfinite(before[state]) != np.isfinite(value[state]):
                    high = np.inf
                    break
                if np.isfinite(value[state]):
                    gained = value[state] - before[state]
                    low, high = min(low, gained), max(high, gained)
            whole = (hours - 1 - hour) // period
            if high - low < 1e-9 * max(1.0, abs(high)) and whole > 0:
                value = value + whole * high
                hour += whole * period
            before = value.copy()
        value = _with_changes(value, levels, counts, start_usd) + cost[of_hour[hour]] * length[hour]
        hour += 1
    return float(value.min())


@compiled
def cheapest_walk(
    cost: Floats, of_hour: Ints, length: Floats, levels: Ints, counts: Ints, start_usd: Floats
) -> Ints:
    """The states [H] of the cheapest fleet over all hours; -1 where no state meets an hour."""
    hours, states = len(of_hour), cost.shape[1]
    values = np.empty((hours, states))
    values[0] = cost[of_hour[0]] * length[0]
    for hour in range(1, hours):
        values[hour] = (
            _with_changes(values[hour - 1], levels, counts, start_usd) + cost[of_hour[hour]] * length[hour]
        )
    walk = np.full(hours, -1, dtype=np.int64)
    best = np.argmin(values[hours - 1])
    if not np.isfinite(values[hours - 1, best]):
        return walk
    walk[hours - 1] = best
    m = len(counts)
    for hour in range(hours - 2, -1, -1):
        after = walk[hour + 1]
        found, least = -1, np.inf
        for state in range(states):
            price = values[hour, state]
            if price >= least:
                continue
            rest, later = state, after
            for i in range(m - 1, -1, -1):
                now, then = levels[i, rest % counts[i]], levels[i, later % counts[i]]
                rest //= counts[i]
                later //= counts[i]
                price += max(0.0, start_usd[i, then] - start_usd[i, now])
            if price < least:
                found, least = state, price
        walk[hour] = found
    return walk


def state_levels(walk: Ints, levels: Ints, counts: Ints) -> Ints:
    """Levels [H, m] of the states of a walk."""
    found = np.zeros((len(walk), len(counts)), dtype=np.int64)
    rest = walk.copy()
    for i in range(len(counts) - 1, -1, -1):
        found[:, i] = levels[i][rest % counts[i]]
        rest //= counts[i]
    return found
