"""The cheapest day of a fleet, compiled: units that stand all day, and by the hour what they leave.

A fleet's largest replicas are spared: a set that stands all day is *led* by one size of replica, and its
hours need so much more; or an hour is led by a larger replica that joins for it. Sizes [J] ascend; units come
in groups of the same size, rate and state of zones, ascending in the size. C steps of what stands, E =
``grid`` steps of a cover, Q classes of hours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.knapsack import (
    NET,
    NOBODY,
    STEP,
    Codes,
    begin,
    most_in_all,
    read_back,
    room_for,
    take_group,
)
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import cap, copy, fill, lower

SIZE = 4


class Ways(NamedTuple):
    """Sets of units and what they cost at each of Q prices.

    ``usd`` [Q, J, S, E + 1]: the least of those that bring at least so many steps and have no replica above a
    size (inf beyond what was asked for); S: nothing, one tracked zone alone, others, spread out (the last);
    with one state there are no zones. How they came about is in ``part`` and ``codes`` (``knapsack.Room``),
    of which ``upto`` [Q, J + 1] says where those of a price begin, and where they end after each size.
    """

    usd: Floats
    upto: Ints
    part: Ints
    codes: Codes


@compiled
def cheapest_sets(units: Ints, heads: Ints, usd: Floats, tops: Ints, sizes: int, states: int) -> Ways:
    """Sets of ``units`` [N, 5] (steps, steps as a lead, state of zones, most, size) that cost ``usd`` [Q, N].

    ``heads`` [G + 1]: where each group begins; ``tops`` [Q]: how many steps are asked for, E of the most.
    """
    grid = int(tops.max())
    found = np.empty((len(usd), sizes, states, grid + 1))
    upto = np.zeros((len(usd), sizes + 1), dtype=np.int64)
    room = room_for(states, grid, len(usd) * most_in_all(units, grid), True)
    parts = 0
    for price in range(len(usd)):
        begin(room, tops[price])
        upto[price, 0], group = parts, 0
        for size in range(sizes):
            while group < len(heads) - 1 and units[heads[group], SIZE] == size:
                parts = take_group(
                    room, units, heads[group], heads[group + 1], usd[price], tops[price], parts
                )
                group += 1
            upto[price, size + 1] = parts
            for state in range(states):
                copy(found[price, size, state, : tops[price] + 1], room.table[state])
                fill(found[price, size, state, tops[price] + 1 :], np.inf)
    return Ways(found, upto, room.part, room.codes)


def least_steps(units: Ints, sizes: int, top: int) -> Ints:
    """Steps of the smallest unit of each size [J], no more than ``top``; one more where there is none."""
    found = np.full(sizes, top + 1)
    np.minimum.at(found, units[:, SIZE], np.minimum(units[:, STEP], top))
    return found


def most_left(units: Ints, needs: Ints, gross: Ints, least: Ints) -> Ints:
    """The most steps [Q] that are left by what leads: any of ``units`` by the hour, or sets that stand."""
    left = np.maximum((gross - least).max(axis=1), needs - int(units[:, NET].min(initial=0)))
    found: Ints = np.clip(left, 1, max(int(gross.max()), 1))
    return found


@compiled
def cheapest_days(
    stand: Floats,
    plain: Floats,
    units: Ints,
    heads: Ints,
    usd: Floats,
    hours: Floats,
    needs: Ints,
    gross: Ints,
    least: Ints,
    spared: bool,
) -> Floats:
    """The least USD [J + 1, 2, C + 1] of a day by the size that leads what stands (last: nothing stands), in
    how many zones it stands (one, more) and the steps it brings.

    ``stand`` [1, J, S, C + 1] and ``plain`` [Q, J, 1, E + 1]: ``Ways``; ``usd`` [Q, N] of ``units``;
    ``hours`` [Q]; ``needs`` [Q] in steps, ``gross`` [Q, J], not less, with the spares of each size, no more
    than C; ``least`` [J]: ``least_steps`` of what stands.
    """
    sizes, zoned = stand.shape[1], stand.shape[2] > 1
    found = _by_zones(stand[0], least)
    # A lead may bring less than its spares: it then counts on what stands beyond the need.
    under = max(0, -int(units[:, NET].min())) if spared and len(units) else 0
    led, cost = np.full((sizes + 1, under + int(needs.max()) + 1), np.inf), np.empty(stand.shape[3])
    for hour in range(len(usd)):
        if hours[hour] <= 0:
            continue
        need, covers = needs[hour], plain[hour, :, 0]
        if spared:
            _lead(led[:, : under + need + 1], covers, units, heads, usd[hour], under)
        for size in range(sizes):
            low, left = least[size], gross[hour, size]
            _beside(cost[low:left], covers[size], led[size + 1, : max(under + need - low, 0) + 1])
            _add(found[size, 1, low:left], cost[low:], hours[hour])
            if zoned:
                _add(found[size, 0, low:left], cost[low:], hours[hour])
                # Whatever stands in one zone is to be joined by a unit.
                high = max(low, left)
                fill(cost[high:], min(covers[size, 1], led[size + 1, 0]))
                _add(found[size, 0, high:], cost[high:], hours[hour])
        found[sizes, 1, 0] += hours[hour] * (led[0, under + need] if spared else covers[sizes - 1, need])
        if zoned:
            alone = covers[sizes - 1, max(need, 1)]
            if spared:
                alone = _pair(covers, units, heads, usd[hour], need)
            found[sizes, 0, 0] += hours[hour] * alone
    return found


@compiled
def _by_zones(stand: Floats, least: Ints) -> Floats:
    """What stands [J + 1, 2, C + 1] without any hours: in one zone at least, and spread out."""
    sizes, states, entries = stand.shape
    found = np.full((sizes + 1, 2, entries), np.inf)
    found[sizes, 0 if states > 1 else 1, 0] = 0.0
    for size in range(sizes):
        low = least[size]
        copy(found[size, 1, low:], stand[size, states - 1, low:])
        for state in range(1, states):
            lower(found[size, 0, low:], stand[size, state, low:], 0.0)
    return found


@compiled
def _lead(led: Floats, plain: Floats, units: Ints, heads: Ints, usd: Floats, under: int) -> None:
    """The least USD of each need from -``under`` up to some [J + 1, D + 1], led by a unit of a size or a
    larger one."""
    size = len(plain)
    for group in range(len(heads) - 2, -1, -1):
        cheapest = _cheapest(usd, heads[group], heads[group + 1])
        while size > units[cheapest, SIZE]:
            size -= 1
            copy(led[size], led[size + 1])
        _lower_beyond(led[size], plain[size], under + units[cheapest, NET], usd[cheapest])
    while size > 0:
        size -= 1
        copy(led[size], led[size + 1])


@compiled
def _cheapest(usd: Floats, first: int, last: int) -> int:
    """Of some units."""
    found = first
    for unit in range(first, last):
        found = unit if usd[unit] < usd[found] else found
    return found


@compiled
def _lower_beyond(row: Floats, plain: Floats, net: int, usd: float) -> None:
    """A unit that meets ``net`` steps, beside it what meets the others, where that costs less."""
    entries, grid = len(row), len(plain) - 1
    first = min(max(net, 0), entries)
    last = max(min(entries, grid + net + 1), first)
    cap(row[:first], usd + plain[0])
    lower(row[first:last], plain[first - net :], usd)
    cap(row[last:], usd + plain[grid])


@compiled
def _beside(cost: Floats, plain: Floats, led: Floats) -> None:
    """What an hour costs beside so many steps, of as many as there are costs: units no larger than the lead
    of what stands, or led by a larger one."""
    left, need = len(cost), len(led) - 1
    for entry in range(left):
        cost[entry] = plain[left - entry]
    for entry in range(min(need, left)):
        cost[entry] = led[need - entry] if led[need - entry] < cost[entry] else cost[entry]
    cap(cost[need:], led[0])


@compiled
def _add(row: Floats, cost: Floats, hours: float) -> None:
    for entry in range(len(row)):
        row[entry] += hours * cost[entry]


@compiled
def _pair(plain: Floats, units: Ints, heads: Ints, usd: Floats, need: int) -> float:
    """The least of an hour in which nothing stands, of two units or more: the largest leads."""
    least, grid = np.inf, plain.shape[1] - 1
    for group in range(len(heads) - 1):
        unit = _cheapest(usd, heads[group], heads[group + 1])
        rest = min(max(need - units[unit, NET], 1), grid)
        least = min(least, usd[unit] + plain[units[unit, SIZE], rest])
    return least


@compiled
def set_of(ways: Ways, units: Ints, size: int, spread: bool, steps: int) -> Ints:
    """Counts [N] of a cheapest set of the first price that brings at least so many steps."""
    state, states = len(ways.usd[0, 0]) - 1, len(ways.usd[0, 0])
    if states > 1 and not spread:
        for other in range(1, states):
            if ways.usd[0, size, other, steps] < ways.usd[0, size, state, steps]:
                state = other
    counts = np.zeros(len(units), dtype=np.int64)
    _read(ways, units, 0, size, state, steps, counts)
    return counts


@compiled
def _read(ways: Ways, units: Ints, price: int, size: int, state: int, steps: int, counts: Ints) -> None:
    read_back(
        ways.part, ways.codes, units, ways.upto[price, 0], ways.upto[price, size + 1],
        ways.usd.shape[2] - 1, state, steps, counts,
    )  # fmt: skip


@compiled
def beside_set(
    ways: Ways, units: Ints, usd: Floats, size: int, needs: Ints, gross: Ints, least: int, spared: bool
) -> Ints:
    """Counts [Q, N] that join each hour at least cost beside what stands: ``gross`` [Q] steps are left to
    units no larger than ``size`` (negative: nothing stands), or ``needs`` [Q] to any that a larger one leads;
    ``least``: units at least."""
    plain, counts = ways.usd, np.zeros((len(usd), len(units)), dtype=np.int64)
    sizes, grid = plain.shape[1], plain.shape[3] - 1
    for hour in range(len(usd)):
        best, lead, upto, rest = np.inf, NOBODY, sizes - 1, 0
        if size >= 0 or not spared:
            upto = size if spared else sizes - 1
            rest = min(max(gross[hour], least), grid)
            best = plain[hour, upto, 0, rest]
        for unit in range(len(units) if spared else 0):
            own = units[unit, SIZE]
            at = min(max(needs[hour] - units[unit, NET], least if size < 0 else 0), grid)
            if own > size and usd[hour, unit] + plain[hour, own, 0, at] < best:
                best, lead = usd[hour, unit] + plain[hour, own, 0, at], unit
                upto, rest = own, at
        if best < np.inf:
            _read(ways, units, hour, upto, 0, rest, counts[hour])
            if lead != NOBODY:
                counts[hour, lead] += 1
    return counts
