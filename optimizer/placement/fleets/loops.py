"""Compiled loops of the fleet model: the rules of an hour, and the cheapest cover of an hour by a set of
pools.

L pools, R levels (ready replicas of a pool, counted in bundles), C classes of hours, m pools of one set, S
states (one level for each pool of a set, in mixed radix). Costs are USD an hour. A fleet with r ready
replicas of each of m pools, each replica serving ``rate``, is feasible in an hour if

- *demand*: Σ rate·r − spare × (largest rate in use) ≥ demand;
- *replicas*: where ``idle`` is above 0, Σ rate·r − (spare + idle) × (largest rate in use) > 0: beside the
  spares there are more than ``idle`` replicas, however small the demand;
- *places*: at least ``places`` distinct places carry ``least_share`` × demand each (or any replica, if that
  is 0);
- *loss of a place*: without any one place, Σ rate·r ≥ ``loss_share`` × demand.

An hour without demand needs nothing.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.compiled import compiled
from optimizer.placement.runtime.tuning import TUNING

EPSILON = 1e-9
MORE = 1e-6
"""Margin by which a rate is surely above a bound that it must exceed."""
FEW = TUNING.fleets.few_covers
MANY = TUNING.fleets.many_covers
CLOSE = TUNING.fleets.close_share
CLOSE_OF_MANY = TUNING.fleets.close_of_many_share
LAST = TUNING.fleets.last_level_work


@compiled
def meets(
    level: Ints,
    rate: Floats,
    place: Ints,
    demand: float,
    spare: float,
    idle: float,
    places: int,
    loss: float,
    least: float,
) -> bool:
    """Whether ``level`` [m] replicas of a set's pools satisfy the rules of an hour."""
    if demand <= 0:
        return True
    m = len(level)
    total, largest = 0.0, 0.0
    for i in range(m):
        if level[i] > 0:
            total += rate[i] * level[i]
            largest = max(largest, rate[i])
    if total - spare * largest < demand * (1 - EPSILON):
        return False
    if idle > 0 and total <= (spare + idle) * largest * (1 + EPSILON):
        return False
    standing = 0
    for i in range(m):
        first = True
        here = 0.0
        for j in range(m):
            if place[j] == place[i]:
                if j < i:
                    first = False
                here += rate[j] * level[j]
        if not first or here <= 0:
            continue
        if here >= least * demand * (1 - EPSILON):
            standing += 1
        if loss > 0 and total - here < loss * demand * (1 - EPSILON):
            return False
    return standing >= places


@compiled
def least_last(
    level: Ints, rate: Floats, place: Ints, most: int, demand: float, spare: float, idle: float,
    places: int, loss: float, least: float,
) -> int:  # fmt: skip
    """The least level of the last pool at which ``level`` [m] satisfies the rules; -1 if ``most`` does not
    suffice.

    More replicas of a pool can break a rule only if its replica is the largest and raises the spares, or if
    the other places do not carry the loss of its place. Neither changes from one replica on.
    """
    last = len(level) - 1
    level[last] = 0
    if meets(level, rate, place, demand, spare, idle, places, loss, least):
        return 0
    total, largest, elsewhere = 0.0, rate[last], 0.0
    for i in range(last):
        if level[i] > 0:
            total += rate[i] * level[i]
            largest = max(largest, rate[i])
            if place[i] != place[last]:
                elsewhere += rate[i] * level[i]
    if loss > 0 and elsewhere < loss * demand * (1 - EPSILON):
        return -1
    need = max(demand, idle * largest * (1 + MORE)) + spare * largest - total
    # Without another place, this pool and the rest must suffice.
    for i in range(last):
        if place[i] != place[last] and level[i] > 0:
            here = 0.0
            for j in range(last):
                if place[j] == place[i]:
                    here += rate[j] * level[j]
            need = max(need, loss * demand - (total - here))
    count = max(1, int(np.ceil(need / rate[last] - EPSILON)))
    if count > most:
        return -1
    level[last] = count
    if meets(level, rate, place, demand, spare, idle, places, loss, least):
        return count
    here = 0.0
    for i in range(last):
        if place[i] == place[last]:
            here += rate[i] * level[i]
    count = max(count, int(np.ceil((least * demand - here) / rate[last] - EPSILON)))
    if count > most:
        return -1
    level[last] = count
    if meets(level, rate, place, demand, spare, idle, places, loss, least):
        return count
    return -1


@compiled
def cover_hour(
    usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, demand: float, spare: float,
    idle: float, places: int, loss: float, least: float, limit: float, best: Ints, work: Ints,
) -> float:  # fmt: skip
    """Least cost of an hour on a set, or inf if it is not below ``limit``; ``best`` receives levels [m] of
    nearly that cost.

    ``usd`` [m, R] never falls with the level; ``each`` [m] is the least USD per unit of rate. Depth-first
    branch and bound over the levels of all pools but the last. With many levels, improvements smaller than
    the share ``CLOSE`` (``CLOSE_OF_MANY``) are not searched for, and the result is lowered by that share so
    that it stays a lower bound. ``work`` [1] counts the levels tried.
    """
    m = len(most)
    level = np.zeros(m, dtype=np.int64)
    spent, served = np.zeros(m + 1), np.zeros(m + 1)
    largest = np.zeros(m + 1)
    beyond = np.full(m + 1, np.inf)
    many = 1.0
    for i in range(m - 1, -1, -1):
        beyond[i] = min(each[i], beyond[i + 1])
        many *= most[i] + 1.0
    close = CLOSE_OF_MANY if many > MANY else CLOSE if many > FEW else 0.0
    found, depth = limit, 0
    level[0] = -1
    if m == 1:
        count = least_last(level, rate, place, most[0], demand, spare, idle, places, loss, least)
        if count >= 0 and usd[0, count] < found:
            best[0] = count
            return float(usd[0, count])
        return np.inf
    while depth >= 0:
        work[0] += 1
        level[depth] += 1
        now = level[depth]
        if now > most[depth]:
            depth -= 1
            continue
        spent[depth + 1] = spent[depth] + usd[depth, now]
        if spent[depth + 1] >= found * (1 - close):
            depth -= 1
            continue
        served[depth + 1] = served[depth] + rate[depth] * now
        largest[depth + 1] = max(largest[depth], rate[depth] if now else 0.0)
        rest = demand + spare * largest[depth + 1] - served[depth + 1]
        if rest > 0 and spent[depth + 1] + rest * beyond[depth + 1] >= found * (1 - close):
            continue
        if depth < m - 2:
            depth += 1
            level[depth] = -1
            continue
        work[0] += LAST
        count = least_last(level, rate, place, most[m - 1], demand, spare, idle, places, loss, least)
        if count >= 0:
            whole = spent[m - 1] + usd[m - 1, count]
            if whole < found:
                found = whole
                for i in range(m):
                    best[i] = level[i]
                best[m - 1] = count
    return found * (1 - close) if found < limit else np.inf


@compiled
def cover_classes(
    pools: Ints, usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, demand: Floats, dual: Ints,
    weight: Floats, spare: float, idle: float, places: int, loss: float, least: float, onward: Floats,
    limit: float, work: Ints,
) -> float:  # fmt: skip
    """Σ weight × least cost of each class [C] on ``pools`` [m]; inf as soon as it reaches ``limit``.

    ``usd`` [P, L, R], ``rate`` [P, L] and ``each`` [P, L] (least per unit of rate) at each dual price;
    ``dual`` [C] is the price of each class; ``onward`` [C + 1]: lower bound of all classes from each one on,
    for any pools.
    """
    m = len(pools)
    mine, per_rate = np.empty((m, usd.shape[2])), np.empty(m)
    counts, rates, where = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m, dtype=np.int64)
    # The pool with most levels comes last, because its level follows from the others.
    order = np.argsort(most[pools])
    for i in range(m):
        pool = pools[order[i]]
        counts[i], where[i] = most[pool], place[pool]
    best = np.zeros(m, dtype=np.int64)
    total = 0.0
    for c in range(len(demand)):
        room = (limit - total - onward[c + 1]) / weight[c]
        if room <= 0:
            return np.inf
        for i in range(m):
            pool = pools[order[i]]
            mine[i], per_rate[i], rates[i] = usd[dual[c], pool], each[dual[c], pool], rate[dual[c], pool]
        found = cover_hour(
            mine, per_rate, counts, rates, where, demand[c], spare, idle, places, loss, least,
            room, best, work,
        )  # fmt: skip
        if found >= room:
            return np.inf
        total += weight[c] * found
    return total


@compiled
def cover_sets(
    sets: Ints, usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, gpu: Ints, demand: Floats,
    dual: Ints, weight: Floats, spare: float, idle: float, places: int, loss: float, least: float, kinds: int,
    onward: Floats, limit: float, work: Ints, most_work: int,
) -> Floats:  # fmt: skip
    """Lower bound [N] of each of ``sets`` [N, m], summed over hours; inf if it reaches ``limit`` or breaks a
    rule.

    It is NaN for sets that were not reached before ``most_work`` was done.
    """
    found = np.full(len(sets), np.inf)
    for number in range(len(sets)):
        if work[0] >= most_work:
            found[number:] = np.nan
            break
        different, standing = 0, 0
        for i in range(sets.shape[1]):
            fresh, apart = int(gpu[sets[number, i]] >= 0), int(place[sets[number, i]] >= 0)
            for j in range(i):
                if gpu[sets[number, j]] == gpu[sets[number, i]]:
                    fresh = 0
                if place[sets[number, j]] == place[sets[number, i]]:
                    apart = 0
            different += fresh
            standing += apart
        if different <= kinds and standing >= places:
            found[number] = cover_classes(
                sets[number], usd, each, most, rate, place, demand, dual, weight, spare, idle, places, loss,
                least, onward, limit, work,
            )  # fmt: skip
    return found
