"""Compiled loops of the fleet model: the cheapest cover of an hour, and a fleet's cost over its hours.

L pools, R levels (replicas of a pool that are ready, counted in bundles), C classes of hours, m pools of one
set, S states (one level for each pool of a set, in mixed radix). Costs are USD an hour.

A fleet on m pools meets an hour when four rules hold, with r replicas of each pool that serve ``rate``:

- *demand*: Σ rate·r − spare × (largest rate in use) ≥ demand;
- *places*: at least ``places`` distinct places carry ``least_share`` × demand each (any replica if that is
0);
- *loss of a place*: without any one place, Σ rate·r ≥ ``loss_share`` × demand.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints

EPSILON = 1e-9
FEW, MANY = 5_000.0, 20_000.0
CLOSE, CLOSE_OF_MANY = 3e-4, 1e-3
LAST = 10
"""What the last pool of a cover costs, in levels tried."""


@compiled
def meets(
    level: Ints,
    rate: Floats,
    place: Ints,
    demand: float,
    spare: float,
    places: int,
    loss: float,
    least: float,
) -> bool:
    """Whether ``level`` [m] replicas of a set's pools meet an hour's rules."""
    m = len(level)
    total, largest = 0.0, 0.0
    for i in range(m):
        if level[i] > 0:
            total += rate[i] * level[i]
            largest = max(largest, rate[i])
    if total - spare * largest < demand * (1 - EPSILON):
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
    level: Ints, rate: Floats, place: Ints, most: int, demand: float, spare: float, places: int, loss: float,
    least: float,
) -> int:  # fmt: skip
    """The fewest replicas of the last pool with which ``level`` [m] meets the rules; -1 if ``most`` are too
    few.

    More replicas of one pool can break a rule only where a larger replica raises the spares, or where the
    rest does not carry the loss of its place; both do not change from one replica on.
    """
    last = len(level) - 1
    level[last] = 0
    if meets(level, rate, place, demand, spare, places, loss, least):
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
    need = demand + spare * largest - total
    # The loss of another place leaves this pool and the rest.
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
    if meets(level, rate, place, demand, spare, places, loss, least):
        return count
    here = 0.0
    for i in range(last):
        if place[i] == place[last]:
            here += rate[i] * level[i]
    count = max(count, int(np.ceil((least * demand - here) / rate[last] - EPSILON)))
    if count > most:
        return -1
    level[last] = count
    if meets(level, rate, place, demand, spare, places, loss, least):
        return count
    return -1


@compiled
def cover_hour(
    usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, demand: float, spare: float, places:
    int,
    loss: float, least: float, limit: float, best: Ints, work: Ints,
) -> float:  # fmt: skip
    """The least that an hour costs on a set, and levels [m] of (nearly) that cost in ``best``.

    ``usd`` [m, R] never falls with the level; ``each`` [m] is the least USD per unit of rate. Depth-first
    over the levels of all pools but the last, without those that cannot be cheaper. Where levels are many,
    ways that are cheaper by less than ``CLOSE`` (``CLOSE_OF_MANY``) are not told apart, and what is returned
    is lower by that.
    inf: not below ``limit``. ``work`` [1] counts what was tried.
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
        count = least_last(level, rate, place, most[0], demand, spare, places, loss, least)
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
        count = least_last(level, rate, place, most[m - 1], demand, spare, places, loss, least)
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
    pools: Ints, usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, demand: Floats, phase:
    Ints,
    weight: Floats, spare: float, places: int, loss: float, least: float, onward: Floats, limit: float,
    work: Ints,
) -> float:  # fmt: skip
    """Σ weight × cheapest cover of each class [C] by ``pools`` [m]; stops once it surely reaches ``limit``.

    ``usd`` [3, L, R] by phase (0 trough, 1 slope, 2 peak), ``each`` [3, L] per unit of rate at least;
    ``onward`` [C + 1]: what all classes from each on cost at least with any pools.
    """
    m = len(pools)
    mine, per_rate = np.empty((3, m, usd.shape[2])), np.empty((3, m))
    counts, rates, where = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m, dtype=np.int64)
    # The pool with the most levels comes last: its level follows from the others.
    order = np.argsort(most[pools])
    for i in range(m):
        pool = pools[order[i]]
        mine[:, i] = usd[:, pool]
        per_rate[:, i] = each[:, pool]
        counts[i], rates[i], where[i] = most[pool], rate[pool], place[pool]
    best = np.zeros(m, dtype=np.int64)
    total = 0.0
    for c in range(len(demand)):
        room = (limit - total - onward[c + 1]) / weight[c]
        if room <= 0:
            return np.inf
        found = cover_hour(
            mine[phase[c]], per_rate[phase[c]], counts, rates, where, demand[c], spare, places, loss, least,
            room, best, work,
        )  # fmt: skip
        if found >= room:
            return np.inf
        total += weight[c] * found
    return total


@compiled
def cover_sets(
    sets: Ints, usd: Floats, each: Floats, most: Ints, rate: Floats, place: Ints, gpu: Ints, demand: Floats,
    phase: Ints, weight: Floats, spare: float, places: int, loss: float, least: float, kinds: int,
    onward: Floats, limit: float, work: Ints, most_work: int,
) -> Floats:  # fmt: skip
    """Least USD [N] of each of ``sets`` [N, m], hour by hour; inf where it surely reaches ``limit`` or
    breaks a rule, NaN where ``most_work`` was done before its turn."""
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
                sets[number], usd, each, most, rate, place, demand, phase, weight, spare, places, loss, least,
                onward, limit, work,
            )  # fmt: skip
    return found


@compiled
def any_cover(
    demand: Floats, phase: Ints, spare: float, largest: Floats, smallest: Floats, step: float, others: Floats
) -> Floats:
    """Least USD [C] an hour of any pools in each class; ``others`` and the groups as in
    ``sets_with_others``."""
    found = np.full(len(demand), np.inf)
    steps = others.shape[2] - 1
    for c in range(len(demand)):
        for group in range(len(largest)):
            need = demand[c] + spare * smallest[group]
            at = min(steps, int(np.floor(need / step * (1 - EPSILON))))
            found[c] = min(found[c], others[group, phase[c], at])
    return found


@compiled
def cheapest_single(usd: Floats, most: Ints, rate: Floats, largest: float, step: float, steps: int) -> Floats:
    """USD [3, steps + 1] of the cheapest pool alone that serves so many steps of rate; 0 for none.

    Pools with a rate above ``largest`` are left out. A level counts as the steps that it begins, so that what
    is said is never too dear.
    """
    found = np.full((3, steps + 1), np.inf)
    found[:, 0] = 0.0
    for pool in range(len(most)):
        if rate[pool] > largest:
            continue
        for level in range(1, most[pool] + 1):
            reach = min(steps, int(np.ceil(rate[pool] * level / step - EPSILON)))
            for phase in range(3):
                found[phase, reach] = min(found[phase, reach], usd[phase, pool, level])
    for phase in range(3):
        for at in range(steps - 1, -1, -1):
            found[phase, at] = min(found[phase, at], found[phase, at + 1])
    return found


@compiled
def joined_by_one(
    usd: Floats, most: Ints, rate: Floats, largest: float, step: float, before: Floats
) -> Floats:
    """USD [3, X] of the cheapest pool beside what ``before`` [3, X] can do: one pool more."""
    found = before.copy()
    steps = before.shape[1] - 1
    for pool in range(len(most)):
        if rate[pool] > largest:
            continue
        for level in range(1, most[pool] + 1):
            reach = int(np.ceil(rate[pool] * level / step - EPSILON))
            for phase in range(3):
                price = usd[phase, pool, level]
                for at in range(steps + 1):
                    rest = max(0, at - reach)
                    found[phase, at] = min(found[phase, at], price + before[phase, rest])
            if reach >= steps:
                break
    return found


@compiled
def sets_beside_rate(
    sets: Ints, usd: Floats, most: Ints, rate: Floats, demand: Floats, phase: Ints, weight: Floats,
    spare: float, loss: float, usd_per_rate: Floats, onward: Floats, limit: float,
) -> Floats:  # fmt: skip
    """Least USD [N] of fleets on ``sets`` [N, m] and one further pool, which is charged ``usd_per_rate`` [3]
    for each unit of rate that is left to it: no pool serves a unit for less.

    The set carries ``loss`` × demand without the further pool. ``spare`` is in requests/s. A set that surely
    reaches ``limit`` is told as what is known by then. A pool's level costs what it costs less what its rate
    saves, so the last pool takes the best of its levels that suffice.
    """
    n, m = sets.shape
    size, pools = usd.shape[2], usd.shape[1]
    net = np.full((3, pools, size), np.inf)
    from_level = np.full((3, pools, size + 1), np.inf)
    for p in range(3):
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
            p, needed = phase[c], loss * demand[c]
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
    sets: Ints, usd: Floats, most: Ints, rate: Floats, place: Ints, demand: Floats, phase: Ints,
    weight: Floats, spare: float, loss: float, largest: Floats, smallest: Floats, step: float, others: Floats,
    onward: Floats, limit: float, work: Ints, most_work: int,
) -> Floats:  # fmt: skip
    """Least USD [N] of fleets on ``sets`` [N, m] and further pools, other ones in each class of hours.

    ``others`` [G, 3, X]: what further pools with rates up to ``largest`` [G] cost; the spares are then at
    least ``smallest`` [G]. ``loss`` > 0 where there is one further pool only: without its place, and without
    any place of the set, so much of the demand is carried. ``onward`` [C + 1]: what all classes from each on
    cost at least; a set that surely reaches ``limit`` is told as what is known by then, and 0 where
    ``most_work`` was done.
    """
    n, m = sets.shape
    found = np.zeros(n)
    rates, places = np.empty(m), np.empty(m, dtype=np.int64)
    for number in range(n):
        if work[0] >= most_work:
            break
        top = 0.0
        for i in range(m):
            rates[i], places[i] = rate[sets[number, i]], place[sets[number, i]]
            top = max(top, rates[i])
        total = 0.0
        for c in range(len(demand)):
            best = np.inf
            for group in range(len(largest)):
                if top > largest[group] * (1 + EPSILON):
                    continue
                need = demand[c] + spare * smallest[group]
                best = _beside(
                    sets[number], usd[phase[c]], most, rates, places, need, loss * demand[c], step,
                    others[group, phase[c]], best, work,
                )  # fmt: skip
            total += weight[c] * best
            if total + onward[c + 1] >= limit:
                total += onward[c + 1]
                break
        found[number] = total
    return found


@compiled
def _beside(
    pools: Ints, usd: Floats, most: Ints, rates: Floats, places: Ints, need: float, without: float, step:
    float,
    others: Floats, limit: float, work: Ints,
) -> float:  # fmt: skip
    """Least USD of one hour with any levels of ``pools`` and what ``others`` [X] cost for the rest."""
    m, steps = len(pools), len(others) - 1
    level = np.zeros(m, dtype=np.int64)
    spent, served = np.zeros(m + 1), np.zeros(m + 1)
    depth, found = 0, limit
    level[0] = -1
    while depth >= 0:
        work[0] += 1
        level[depth] += 1
        pool = pools[depth]
        if level[depth] > most[pool]:
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
        if served[m] < without * (1 - EPSILON):
            continue
        rest = need - served[m]
        if without > 0:
            for i in range(m):
                here = 0.0
                for j in range(m):
                    if places[j] == places[i]:
                        here += rates[j] * level[j]
                rest = max(rest, without - (served[m] - here))
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


@compiled
def state_costs(
    levels: Ints, counts: Ints, usd: Floats, rate: Floats, place: Ints, demand: Floats, spare: float,
    places: int, loss: float, least: float,
) -> Floats:  # fmt: skip
    """USD [C, S] an hour of every state in each class of demand; inf where it does not meet the class.

    ``levels`` [m, K]: the levels that each pool may take, ``counts`` [m] of them; ``usd`` [m, R].
    """
    m = len(counts)
    states = 1
    for i in range(m):
        states *= counts[i]
    found = np.empty((len(demand), states))
    level = np.zeros(m, dtype=np.int64)
    for state in range(states):
        rest, price = state, 0.0
        for i in range(m - 1, -1, -1):
            level[i] = levels[i, rest % counts[i]]
            rest //= counts[i]
            price += usd[i, level[i]]
        for c in range(len(demand)):
            good = meets(level, rate, place, demand[c], spare, places, loss, least)
            found[c, state] = price if good else np.inf
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
            for offset in range(inner):
                first = begin + offset
                # Up: pay the difference of what starting costs; down: nothing.
                best = np.inf
                rising = np.empty(size)
                for k in range(size):
                    at = first + k * inner
                    best = min(best, found[at] - start_usd[axis, levels[axis, k]])
                    rising[k] = best + start_usd[axis, levels[axis, k]]
                best = np.inf
                for k in range(size - 1, -1, -1):
                    at = first + k * inner
                    best = min(best, found[at])
                    found[at] = min(rising[k], best)
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
