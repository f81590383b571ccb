"""Compiled loops that bound sets of pools beside further pools, which may be others in every hour.

L pools, R levels, C classes of hours, each with one of P dual prices, m pools of one set, G groups of rates,
X steps of rate. Costs are USD an hour. Of a fleet on a set and k further pools these hold in every hour,
whatever the further ones are, with Z places asked for:

- at least Z − k places of the set carry ``least_share`` × demand on the set's pools alone: a further pool
  makes one place more, or lifts one;
- without any one place of the set, the rest and the further pools carry ``loss_share`` × demand;
- so do the set and any k − 1 further pools: what the set lacks is carried k/(k − 1) times by the k, and a
  single one is of no help.
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
    """Least USD [G, C] an hour of any pools in each class; ``others`` and the groups as in
    ``sets_with_others``."""
    found = np.empty((len(smallest), len(demand)))
    steps = others.shape[2] - 1
    for c in range(len(demand)):
        for group in range(len(smallest)):
            need = demand[c] + spare * smallest[group]
            at = min(steps, int(np.floor(need / step * (1 - EPSILON))))
            found[group, c] = others[group, dual[c], at]
    return found


@compiled
def cheapest_single(
    pools: Ints, usd: Floats, most: Ints, rate: Floats, largest: float, step: float, steps: int
) -> Floats:
    """USD [P, steps + 1] of the cheapest of ``pools`` alone that serves so many steps of rate; 0 for none.

    Pools with a rate above ``largest`` are left out. A level counts as the steps that it begins, so that what
    is said is never too dear.
    """
    found = np.full((len(usd), steps + 1), np.inf)
    found[:, 0] = 0.0
    for pool in pools:
        if rate[pool] > largest:
            continue
        for level in range(1, most[pool] + 1):
            reach = min(steps, int(np.ceil(rate[pool] * level / step - EPSILON)))
            for dual in range(len(found)):
                found[dual, reach] = min(found[dual, reach], usd[dual, pool, level])
    for dual in range(len(found)):
        for at in range(steps - 1, -1, -1):
            found[dual, at] = min(found[dual, at], found[dual, at + 1])
    return found


@compiled
def joined_by_one(single: Floats, before: Floats) -> Floats:
    """USD [P, X] of one pool, of which ``single`` [P, X] is the cheapest, beside what ``before`` [P, X] can
    do."""
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
def sets_beside_rate(
    sets: Ints, usd: Floats, most: Ints, rate: Floats, demand: Floats, dual: Ints, weight: Floats,
    spare: float, loss: float, usd_per_rate: Floats, onward: Floats, limit: float,
) -> Floats:  # fmt: skip
    """Least USD [N] of fleets on ``sets`` [N, m] and one further pool, which is charged ``usd_per_rate`` [P]
    for each unit of rate that is left to it: no pool serves a unit for less.

    The set carries ``loss`` × demand without the further pool. ``spare`` is in requests/s. A set that surely
    reaches ``limit`` is told as what is known by then. A pool's level costs what it costs less what its rate
    saves, so the last pool takes the best of its levels that suffice.
    """
    n, m = sets.shape
    size, pools = usd.shape[2], usd.shape[1]
    net = np.full((len(usd), pools, size), np.inf)
    from_level = np.full((len(usd), pools, size + 1), np.inf)
    for p in range(len(usd)):
        for pool in range(pools):
            for k in range(most[pool], -1, -1):
                net[p, pool, k] = usd[p, pool, k] - usd_per_rate[p] * rate[pool] * k
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
                    at = max(0, int(np.ceil(rest / rate[last] - EPSILON)))
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
                served[depth + 1] = served[depth] + rate[pool] * level[depth]
                if spent[depth + 1] < best:
                    depth += 1
                    level[depth] = -1
            total += weight[c] * (best + usd_per_rate[p] * (demand[c] + spare))
            if total + onward[c + 1] >= limit:
                total += onward[c + 1]
                break
        found[number] = total
    return found


@compiled
def sets_with_others(
    sets: Ints, usd: Floats, most: Ints, rate: Floats, place: Ints, demand: Floats, dual: Ints,
    weight: Floats, spare: float, loss: float, least: float, places: int, further: int, largest: Floats,
    smallest: Floats, step: float, others: Floats, any_usd: Floats, onward: Floats, limit: float, work: Ints,
    most_work: int,
) -> Floats:  # fmt: skip
    """Least USD [N] of fleets on ``sets`` [N, m] and ``further`` pools, other ones in each class of hours.

    ``others`` [G, P, X]: what further pools cost where no rate in use is above ``largest`` [G]; the spares
    are then at least ``smallest`` [G]; ``any_usd`` [G, C]: what a class costs at least so. ``loss``,
    ``least``, ``places``: the rules, as shares of the demand. ``onward`` [C + 1]: what all classes from each
    on cost at least; a set that surely reaches ``limit`` is told as what is known by then, and 0 where
    ``most_work`` was done.
    """
    n, m = sets.shape
    found = np.zeros(n)
    rates, where, tops = np.empty(m), np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
    for number in range(n):
        if work[0] >= most_work:
            break
        for i in range(m):
            rates[i], where[i] = rate[sets[number, i]], place[sets[number, i]]
        total = 0.0
        for c in range(len(demand)):
            best = np.inf
            for group in range(len(largest)):
                if any_usd[group, c] >= best:
                    continue
                for i in range(m):
                    above = rates[i] > largest[group] * (1 + EPSILON)
                    tops[i] = 0 if above else most[sets[number, i]]
                need = demand[c] + spare * smallest[group]
                best = _beside(
                    sets[number], usd[dual[c]], tops, rates, where, need, loss * demand[c],
                    least * demand[c], places - further, further, step, others[group, dual[c]], best, work,
                )  # fmt: skip
            total += weight[c] * best
            if total + onward[c + 1] >= limit:
                total += onward[c + 1]
                break
        found[number] = total
    return found


@compiled
def _beside(
    pools: Ints, usd: Floats, most: Ints, rates: Floats, places: Ints, need: float, without: float,
    carried: float, standing: int, further: int, step: float, others: Floats, limit: float, work: Ints,
) -> float:  # fmt: skip
    """Least USD of one hour with any levels of ``pools``, up to ``most`` [m], and what ``others`` [X] cost
    for the rest; ``standing`` places of the pools carry ``carried`` requests/s."""
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
            depth -= 1  # more of the last pool only costs more
            continue
        at = min(steps, int(np.floor(rest / step * (1 - EPSILON))))
        found = min(found, spent[m] + others[at])
    return found


@compiled
def grown_sets(sets: Ints, owner: Ints, most: int) -> Ints:
    """Sets of one pool more [N, m + 1], all of whose parts are among ``sets`` [.., m], which ascend.

    No two pools of a set have one owner. At most ``most`` sets: fewer rows than that are all.
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
