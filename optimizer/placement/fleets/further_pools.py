"""Compiled loops that bound a set of pools extended by further pools, which may differ from hour to hour.

L pools, R levels, C classes of hours, P dual prices, m pools of one set, G groups of rates, X steps of rate.
Costs are USD an hour. Let a fleet stand on a set and k further pools, with Z places required. Whatever the
further pools are, these conditions hold in every hour:

- at least Z − k places of the set carry ``least_share`` × demand by themselves, because each further pool
  adds one place or completes one;
- without any one place of the set, the rest of the set and the further pools carry ``loss_share`` × demand;
- the set and any k − 1 of the further pools carry that as well. Summed over all choices, the further pools
  carry at least k/(k − 1) × what the set lacks; a single further pool (k = 1) cannot help.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.fleets.loops import EPSILON
from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.compiled import compiled


@compiled
def any_cover(
    demand: Floats, dual: Ints, spare: float, smallest: Floats, step: float, others: Floats
) -> Floats:
    """Least USD [G, C] an hour of a fleet on any pools in each class.

    ``others`` and the groups are those of ``bounds_with_more``.
    """
    found = np.empty((len(smallest), len(demand)))
    steps = others.shape[2] - 1
    for c in range(len(demand)):
        for group in range(len(smallest)):
            need = demand[c] + spare * smallest[group, dual[c]] if demand[c] > 0 else 0.0
            at = min(steps, int(np.floor(need / step * (1 - EPSILON))))
            found[group, c] = others[group, dual[c], at]
    return found


@compiled
def cheapest_single(
    pools: Ints, usd: Floats, most: Ints, rate: Floats, largest: Floats, step: float, steps: int
) -> Floats:
    """USD [P, steps + 1] of the cheapest single one of ``pools`` that serves a number of steps of rate; 0 for
    no step.

    Pools with a ``rate`` [P, L] above ``largest`` [P] are left out. The rate of a level is rounded up to
    whole steps, so the cost is a lower bound.
    """
    found = np.full((len(usd), steps + 1), np.inf)
    found[:, 0] = 0.0
    for dual in range(len(found)):
        for pool in pools:
            if rate[dual, pool] > largest[dual]:
                continue
            for level in range(1, most[pool] + 1):
                reach = min(steps, int(np.ceil(rate[dual, pool] * level / step - EPSILON)))
                found[dual, reach] = min(found[dual, reach], usd[dual, pool, level])
    for dual in range(len(found)):
        for at in range(steps - 1, -1, -1):
            found[dual, at] = min(found[dual, at], found[dual, at + 1])
    return found


@compiled
def joined_by_one(single: Floats, before: Floats) -> Floats:
    """USD [P, X] of serving each rate with one more pool; ``single`` and ``before`` [P, X] are the costs of
    one pool and of those before.
    """
    found = before.copy()
    steps = before.shape[1] - 1
    for dual in range(len(found)):
        for reach in range(1, steps + 1):
            price = single[dual, reach]
            if not np.isfinite(price):
                break
            if reach < steps and single[dual, reach + 1] == price:
                continue
            for at in range(steps + 1):
                found[dual, at] = min(found[dual, at], price + before[dual, max(0, at - reach)])
    return found


@compiled
def quick_bounds_with_one_more(
    sets: Ints, usd: Floats, most: Ints, rate: Floats, demand: Floats, dual: Ints, weight: Floats,
    spare: Floats, loss: float, usd_per_rate: Floats, onward: Floats, limit: float,
) -> Floats:  # fmt: skip
    """Lower bound [N] on fleets on ``sets`` [N, m] and one further pool, which is charged by its rate.

    The further pool costs ``usd_per_rate`` [P] for each unit of rate that it carries, since no pool serves a
    unit for less. Without it the set carries ``loss`` × demand. ``spare`` [P] is in requests/s. A set that
    reaches ``limit`` gets the bound known by then. A level counts its cost minus what its rate saves on the
    further pool, so the set's last pool takes the best of its sufficient levels.
    """
    n, m = sets.shape
    size, pools = usd.shape[2], usd.shape[1]
    net = np.full((len(usd), pools, size), np.inf)
    from_level = np.full((len(usd), pools, size + 1), np.inf)
    for p in range(len(usd)):
        for pool in range(pools):
            for k in range(most[pool], -1, -1):
                net[p, pool, k] = usd[p, pool, k] - usd_per_rate[p] * rate[p, pool] * k
                from_level[p, pool, k] = min(net[p, pool, k], from_level[p, pool, k + 1])
    found = np.zeros(n)
    level = np.zeros(m, dtype=np.int64)
    spent, served = np.zeros(m), np.zeros(m)
    for number in range(n):
        total = 0.0
        last = sets[number, m - 1]
        for c in range(len(demand)):
            p, needed = dual[c], loss * demand[c]
            best = np.inf
            depth = 0
            level[0] = -1
            while depth >= 0:
                if depth == m - 1:
                    rest = needed - served[depth]
                    at = max(0, int(np.ceil(rest / rate[p, last] - EPSILON)))
                    if at <= most[last]:
                        best = min(best, spent[depth] + from_level[p, last, at])
                    depth -= 1
                    continue
                pool = sets[number, depth]
                level[depth] += 1
                if level[depth] > most[pool]:
                    depth -= 1
                    continue
                spent[depth + 1] = spent[depth] + net[p, pool, level[depth]]
                served[depth + 1] = served[depth] + rate[p, pool] * level[depth]
                if spent[depth + 1] < best:
                    depth += 1
                    level[depth] = -1
            need = demand[c] + spare[p] if demand[c] > 0 else 0.0
            total += weight[c] * (best + usd_per_rate[p] * need)
            if total + onward[c + 1] >= limit:
                total += onward[c + 1]
                break
        found[number] = total
    return found


@compiled
def bounds_with_more(
    sets: Ints, usd: Floats, most: Ints, rate: Floats, place: Ints, demand: Floats, dual: Ints,
    weight: Floats, spare: float, loss: float, least: float, places: int, further: int, largest: Floats,
    smallest: Floats, step: float, others: Floats, any_usd: Floats, onward: Floats, limit: float, work: Ints,
    most_work: int,
) -> Floats:  # fmt: skip
    """Lower bound [N] on fleets on ``sets`` [N, m] and ``further`` pools, which may differ between classes of
    hours.

    ``others`` [G, P, X]: cost of the further pools if no ``rate`` [P, L] in use exceeds ``largest`` [G, P];
    spares then carry at least ``smallest`` [G, P]. ``any_usd`` [G, C]: lower bound of each class in this
    case. ``loss``, ``least``, ``places``: the rules, as shares of the demand. ``onward`` [C + 1]: lower bound
    of all classes from each one on. A set that reaches ``limit`` gets the bound known by then; sets after
    ``most_work`` was done get 0.
    """
    n, m = sets.shape
    found = np.zeros(n)
    rates, where, tops = np.empty(m), np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
    for number in range(n):
        if work[0] >= most_work:
            break
        for i in range(m):
            where[i] = place[sets[number, i]]
        total = 0.0
        for c in range(len(demand)):
            best, p = np.inf, dual[c]
            for i in range(m):
                rates[i] = rate[p, sets[number, i]]
            for group in range(len(largest)):
                if any_usd[group, c] >= best:
                    continue
                for i in range(m):
                    above = rates[i] > largest[group, p] * (1 + EPSILON)
                    tops[i] = 0 if above else most[sets[number, i]]
                need = demand[c] + spare * smallest[group, p] if demand[c] > 0 else 0.0
                standing = places - further if demand[c] > 0 else 0
                best = _least_with_more(
                    sets[number], usd[p], tops, rates, where, need, loss * demand[c],
                    least * demand[c], standing, further, step, others[group, p], best, work,
                )  # fmt: skip
            total += weight[c] * best
            if total + onward[c + 1] >= limit:
                total += onward[c + 1]
                break
        found[number] = total
    return found


@compiled
def _least_with_more(
    pools: Ints, usd: Floats, most: Ints, rates: Floats, places: Ints, need: float, without: float,
    carried: float, standing: int, further: int, step: float, others: Floats, limit: float, work: Ints,
) -> float:  # fmt: skip
    """Least USD of one hour: levels of ``pools`` up to ``most`` [m], plus ``others`` [X] for the remaining
    rate.

    ``standing`` places of the pools carry ``carried`` requests/s each.
    """
    m, steps = len(pools), len(others) - 1
    level = np.zeros(m, dtype=np.int64)
    spent, served = np.zeros(m + 1), np.zeros(m + 1)
    depth, found = 0, limit
    level[0] = -1
    while depth >= 0:
        work[0] += 1
        level[depth] += 1
        pool = pools[depth]
        if level[depth] > most[depth]:
            depth -= 1
            continue
        spent[depth + 1] = spent[depth] + usd[pool, level[depth]]
        served[depth + 1] = served[depth] + rates[depth] * level[depth]
        if spent[depth + 1] >= found:
            depth -= 1
            continue
        if depth < m - 1:
            depth += 1
            level[depth] = -1
            continue
        rest = need - served[m]
        lacking = without * (1 - EPSILON) - served[m]
        if lacking > 0:
            if further == 1:
                continue
            rest = max(rest, lacking * further / (further - 1))
        count = 0
        for i in range(m):
            here = 0.0
            first = True
            for j in range(m):
                if places[j] == places[i]:
                    here += rates[j] * level[j]
                    first = first and j >= i
            rest = max(rest, lacking + here)
            if first and here > 0 and here >= carried * (1 - EPSILON):
                count += 1
        if count < standing:
            continue
        if rest <= 0:
            found = min(found, spent[m])
            depth -= 1  # higher levels of the last pool only cost more
            continue
        at = min(steps, int(np.floor(rest / step * (1 - EPSILON))))
        found = min(found, spent[m] + others[at])
    return found


@compiled
def grown_sets(sets: Ints, owner: Ints, most: int) -> Ints:
    """Sets of m + 1 pools [N, m + 1] whose subsets of m pools are all among ``sets`` [.., m], sorted
    ascending.

    No two pools of a set have the same owner. At most ``most`` sets are returned; fewer rows are all that
    exist.
    """
    n, m = sets.shape
    base = len(owner)
    keys = np.zeros(n, dtype=np.int64)
    for row in range(n):
        for i in range(m):
            keys[row] = keys[row] * base + sets[row, i]
    found = np.empty((min(most, 1024), m + 1), dtype=np.int64)
    count, first = 0, 0
    while first < n:
        end = first
        while end < n and keys[end] // base == keys[first] // base:
            end += 1
        for one in range(first, end):
            for two in range(one + 1, end):
                a, b = sets[one, m - 1], sets[two, m - 1]
                good = owner[a] != owner[b]
                for out in range(m - 1):
                    if good:
                        key = 0
                        for i in range(m - 1):
                            if i != out:
                                key = key * base + sets[one, i]
                        key = (key * base + a) * base + b
                        at = np.searchsorted(keys, key)
                        good = at < n and keys[at] == key
                if not good:
                    continue
                if count == len(found):
                    if count >= most:
                        return found
                    wider = np.empty((min(most, 2 * count), m + 1), dtype=np.int64)
                    wider[:count] = found
                    found = wider
                for i in range(m):
                    found[count, i] = sets[one, i]
                found[count, m] = b
                count += 1
        first = end
    return found[:count]
