"""Compiled loops over the states of a set of pools: their costs in an hour, and the shortest path over all
hours.

m pools of one set, S states (one level for each pool, in mixed radix), C classes of demand, H hours, R
levels. Costs are USD an hour.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.loops import EPSILON, cover_hour, meets
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.compiled import compiled

CLOSE_DAYS = 1e-4
"""Share of a cost by which the bound of equal days may fall short of it."""


@compiled
def state_costs(
    levels: Ints, counts: Ints, usd: Floats, rate: Floats, place: Ints, demand: Floats, spare: float,
    idle: float, places: int, loss: float, least: float,
) -> Floats:  # fmt: skip
    """USD [C, S] an hour of every state in each class of demand, in ascending order; inf if the state is
    infeasible there.

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
        # A state that meets a demand meets lower ones, so the classes it meets end before ``above``.
        met, above = 0, len(demand)
        while (
            met < above
            and demand[above - 1] > 0
            and total - spare * largest < demand[above - 1] * (1 - EPSILON)
        ):
            above -= 1
        while met < above:
            middle = (met + above) // 2
            if meets(level, rate, place, demand[middle], spare, idle, places, loss, least):
                met = middle + 1
            else:
                above = middle
        found[:met, state] = price
    return found


@compiled
def _with_changes(value: Floats, levels: Ints, counts: Ints, start_usd: Floats) -> Floats:
    """Least USD [S] of being in each state an hour later: releases are free; ``start_usd`` [m, R] is
    cumulative.
    """
    m = len(counts)
    found = value.copy()
    inner = 1
    for axis in range(m - 1, -1, -1):
        size = counts[axis]
        block = inner * size
        for begin in range(0, len(found), block):
            # Moving up costs the difference in start costs, moving down nothing; both one level at a time.
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
def _begun(levels: Ints, counts: Ints, begin_usd: Floats) -> Floats:
    """USD [S] that each state has paid for starts before the first hour, at ``begin_usd`` [m] a level."""
    states = 1
    for i in range(len(counts)):
        states *= counts[i]
    found = np.zeros(states)
    for state in range(states):
        rest = state
        for i in range(len(counts) - 1, -1, -1):
            found[state] += begin_usd[i] * levels[i, rest % counts[i]]
            rest //= counts[i]
    return found


@compiled
def least_over_hours(
    cost: Floats, of_hour: Ints, length: Floats, levels: Ints, counts: Ints, start_usd: Floats,
    begin_usd: Floats, period: int, steady: int,
) -> float:  # fmt: skip
    """Lower bound in USD over all hours [H] of a fleet on one set, at the given levels; exact without
    ``period``.

    ``cost`` [C, S]. From hour ``steady`` on, a period of equal days adds at least the same amount to every
    state as the one before, so the remaining days are counted at that amount once it could not be
    ``CLOSE_DAYS`` of the whole higher.
    """
    value = cost[of_hour[0]] * length[0] + _begun(levels, counts, begin_usd)
    hours = len(of_hour)
    before = np.full(len(value), np.inf)
    hour = 1
    while hour < hours:
        if period > 0 and hour % period == 0 and hour >= steady:
            low, high, least = np.inf, -np.inf, np.inf
            for state in range(len(value)):
                if np.isfinite(before[state]) != np.isfinite(value[state]):
                    high = np.inf
                    break
                if np.isfinite(value[state]):
                    gained = value[state] - before[state]
                    low, high = min(low, gained), max(high, gained)
                    least = min(least, value[state])
            whole = (hours - 1 - hour) // period
            if whole > 0 and whole * (high - low) <= CLOSE_DAYS * (least + whole * low):
                value = value + whole * low
                hour += whole * period
            before = value.copy()
        value = _with_changes(value, levels, counts, start_usd) + cost[of_hour[hour]] * length[hour]
        hour += 1
    return float(value.min())


@compiled
def cheapest_walk(
    cost: Floats, of_hour: Ints, length: Floats, levels: Ints, counts: Ints, start_usd: Floats,
    begin_usd: Floats,
) -> Ints:  # fmt: skip
    """The states [H] of the cheapest fleet over all hours; -1 if no state meets some hour."""
    hours, states = len(of_hour), cost.shape[1]
    values = np.empty((hours, states))
    values[0] = cost[of_hour[0]] * length[0] + _begun(levels, counts, begin_usd)
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
    """Levels [H, m] of the states of a path."""
    found = np.zeros((len(walk), len(counts)), dtype=np.int64)
    rest = walk.copy()
    for i in range(len(counts) - 1, -1, -1):
        found[:, i] = levels[i][rest % counts[i]]
        rest //= counts[i]
    return found


@compiled
def term_usd(levels: Ints, each: Floats, start: Floats, term_h: float, length: Floats) -> float:
    """USD of nodes with minimum terms when ``levels`` [H] are needed; a level is held through a gap if that
    is cheaper.

    A level costs ``each`` [R] USD an hour for at least ``term_h`` hours, and ``start`` [R] at each start.
    """
    hours = len(levels)
    begins, ends, least = np.empty(hours), np.empty(hours), np.empty(hours + 1)
    total = 0.0
    for level in range(1, levels.max() + 1):
        count, now = 0, 0.0
        for hour in range(hours):
            if levels[hour] >= level:
                if hour == 0 or levels[hour - 1] < level:
                    begins[count] = now
                    count += 1
                ends[count - 1] = now + length[hour]
            now += length[hour]
        least[0] = 0.0
        for last in range(count):
            least[last + 1] = np.inf
            for first in range(last, -1, -1):
                held = ends[last] - begins[first]
                usd = least[first] + each[level] * max(held, term_h) + start[level]
                least[last + 1] = min(least[last + 1], usd)
        total += least[count]
    return total


@compiled
def costs_alone(
    parts: Ints, usd: Floats, held_usd: Floats, most: Ints, rate: Floats, demand: Floats, stage: Ints,
    hours: Floats,
) -> Floats:  # fmt: skip
    """Least USD [L] for which each pool of ``parts`` [L, 2] carries ``demand`` [D] for ``hours`` [D] without
    others: its second part stands at one level throughout, for ``held_usd`` [P, R]; inf if it cannot.

    The first part costs ``usd`` [P, R] an hour. ``rate`` [G, P] is that of each ``stage`` [D].
    """
    found = np.full(len(parts), np.inf)
    for pool in range(len(parts)):
        by_hour, held = parts[pool, 0], parts[pool, 1]
        part, peak = max(by_hour, held), 0
        for i in range(len(demand)):
            peak = max(peak, int(np.ceil(demand[i] / rate[stage[i], part] - EPSILON)))
        spared = most[by_hour] if by_hour >= 0 else 0
        top = min(most[held], peak) if held >= 0 else 0
        for level in range(max(0, peak - spared), top + 1):
            total = held_usd[held, level] if level > 0 else 0.0
            for i in range(len(demand)):
                beyond = int(np.ceil(demand[i] / rate[stage[i], part] - EPSILON)) - level
                if total >= found[pool]:
                    break
                if by_hour >= 0:
                    total += usd[by_hour, max(0, beyond)] * hours[i]
            found[pool] = min(found[pool], total)
    return found


@compiled
def costs_with_terms(
    is_term: Bools, term_levels: Ints, usd: Floats, each: Floats, most: Ints, rate: Floats,
    place: Ints, demand: Floats, spare: float, idle: float, places: int, loss: float, least: float,
    work: Ints,
) -> Floats:  # fmt: skip
    """Least USD [C, S] an hour of a set's other parts if its parts with minimum terms stand at the levels [S,
    k] for free.

    ``usd`` [m, R] and ``each`` [m] (per unit of rate) are those of all parts.
    """
    m, states = len(most), len(term_levels)
    found = np.full((len(demand), states), np.inf)
    best = np.zeros(m, dtype=np.int64)
    own, per_rate, top = usd.copy(), each.copy(), most.copy()
    for state in range(states):
        k = 0
        for i in range(m):
            if is_term[i]:
                top[i] = term_levels[state, k]
                own[i], per_rate[i] = 0.0, 0.0
                k += 1
        for c in range(len(demand)):
            found[c, state] = cover_hour(
                own, per_rate, top, rate, place, demand[c], spare, idle, places, loss, least, np.inf, best,
                work,
            )  # fmt: skip
    return found
