"""The cheapest day of a fleet, compiled: units that stand all day, and by the hour what they leave.

A fleet's largest replicas are spared: a set that stands all day is *led* by one size of replica, and its
hours need so much more; or an hour is led by a larger replica that joins for it. Sizes [J] ascend; units come
in ascending order of their size. C steps of what stands, E = ``grid`` steps of a cover, Q classes of hours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import most_parts

STEP, NET, SIZE, STATE, MOST = range(5)
NO_CODE = -1
NOBODY = -1
Codes = NDArray[np.int32]


@compiled
def standing_sets(units: Ints, usd: Floats, sizes: int, states: int, top: int) -> tuple[Floats, Codes, Ints]:
    """The least USD [J, S, top + 1] of sets that bring at least so many steps, with no replica above a size.

    ``units`` [N, 5]: steps, steps as a lead, size, state of zones, most; ``usd`` [N] all day. S: nothing, one
    tracked zone alone, others, spread out (the last); with one state there are no zones. Also which entry, as
    state × (top + 1) + steps, each part joined [P, S, top + 1] (-1: it did not help), and the parts [P, 3]:
    unit, count, steps.
    """
    part = _split(units, top)
    codes = np.full((len(part), states, top + 1), NO_CODE, dtype=np.int32)
    table = np.full((states, top + 1), np.inf)
    table[0, 0] = 0.0
    found = np.full((sizes, states, top + 1), np.inf)
    number = 0
    for size in range(sizes):
        while number < len(part) and units[part[number, 0], SIZE] == size:
            unit, count, gain = part[number]
            _stand(table, codes[number], units[unit, STATE], gain, count * usd[unit])
            number += 1
        found[size] = table
        for state in range(states):
            for entry in range(top - 1, -1, -1):
                found[size, state, entry] = min(found[size, state, entry], found[size, state, entry + 1])
    return found, codes, part


@compiled
def _split(units: Ints, top: int) -> Ints:
    """Parts [P, 3] of units that sum to any useful count: unit, count, steps."""
    parts = 0
    for unit in range(len(units)):
        parts += most_parts(min(units[unit, MOST], top // units[unit, STEP] + 1))
    part, number = np.zeros((parts, 3), dtype=np.int64), 0
    for unit in range(len(units)):
        left, count = min(units[unit, MOST], top // units[unit, STEP] + 1), 1
        while left > 0:
            count = min(count, left)
            left -= count
            part[number] = (unit, count, min(count * units[unit, STEP], top))
            count, number = 2 * count, number + 1
    return part


@compiled
def _stand(table: Floats, codes: Codes, own: int, gain: int, usd: float) -> None:
    """Lets a part join once. Entries are what exactly so many steps cost, the last what more cost too."""
    states, top = table.shape[0], table.shape[1] - 1
    done = states - 1
    for entry in range(top, -1, -1):
        for came in range(states):
            price = table[came, entry] + usd
            if price == np.inf:
                continue
            target = came
            if done > 0:
                alone = came == 0 or (came == own and own < done - 1)
                target = own if alone else done
            to = min(entry + gain, top)
            if (to != entry or target != came) and price < table[target, to]:
                table[target, to], codes[target, to] = price, came * (top + 1) + entry


@compiled
def _led(plain: Floats, units: Ints, usd: Floats) -> Floats:
    """The least USD [J, 2, E + 1] led by a unit of each size, where what it leaves needs none or one more."""
    sizes, grid = len(plain), plain.shape[1] - 1
    found = np.full((sizes, 2, grid + 1), np.inf)
    for unit in range(len(units)):
        size = units[unit, SIZE]
        for more in range(2):
            for entry in range(grid + 1):
                rest = min(max(entry - units[unit, NET], more), grid)
                found[size, more, entry] = min(found[size, more, entry], usd[unit] + plain[size, rest])
    return found


@compiled
def cheapest_days(
    stand: Floats,
    plain: Floats,
    units: Ints,
    usd: Floats,
    hours: Floats,
    needs: Ints,
    gross: Ints,
    spared: bool,
) -> Floats:
    """The least USD [J + 1, 2, C + 1] of a day by the size that leads what stands (last: nothing stands), in
    how many zones it stands (one, more) and the steps it brings.

    ``stand`` [J, S, C + 1] and ``plain`` [Q, J, E + 1] as found by the others; ``usd`` [Q, N] of ``units``;
    ``hours`` [Q]; ``needs`` [Q] in steps, ``gross`` [Q, J] with the spares of each size.
    """
    sizes, grid = len(stand), plain.shape[2] - 1
    found = _by_zones(stand)
    after = np.full((sizes + 1, 2, grid + 1), np.inf)
    for hour in range(len(usd)):
        if hours[hour] <= 0:
            continue
        if spared:
            led = _led(plain[hour], units, usd[hour])
            for size in range(sizes - 1, -1, -1):
                after[size] = np.minimum(after[size + 1], led[size])
        for spread in range(2):
            least, need = 1 - spread, min(needs[hour], grid)
            for size in range(sizes):
                _join(
                    found[size, spread], plain[hour, size], after[size + 1, 0], hours[hour], needs[hour],
                    gross[hour, size], least,
                )  # fmt: skip
            alone = after[0, least, need] if spared else plain[hour, sizes - 1, max(need, least)]
            found[sizes, spread, 0] += hours[hour] * alone
    return found


@compiled
def _by_zones(stand: Floats) -> Floats:
    """What stands [J + 1, 2, C + 1] without any hours: in one zone at least, and spread out."""
    sizes, states, entries = stand.shape
    found = np.full((sizes + 1, 2, entries), np.inf)
    found[sizes, 0 if states > 1 else 1, 0] = 0.0
    for size in range(sizes):
        found[size, 1] = stand[size, states - 1]
        for state in range(1, states):
            found[size, 0] = np.minimum(found[size, 0], stand[size, state])
    return found


@compiled
def _join(found: Floats, plain: Floats, led: Floats, hours: float, need: int, gross: int, least: int) -> None:
    """Adds an hour to what stands [C + 1]: units no larger than its lead, or led by a larger one."""
    grid = len(plain) - 1
    for entry in range(len(found)):
        if found[entry] < np.inf:
            price = plain[min(max(gross - entry, least), grid)]
            found[entry] += hours * min(price, led[min(max(need - entry, 0), grid)])


@compiled
def set_of(
    codes: Codes, parts: Ints, stand: Floats, units: Ints, size: int, spread: bool, steps: int
) -> Ints:
    """Counts [N] of a cheapest set of ``standing_sets`` that brings at least so many steps."""
    counts = np.zeros(len(units), dtype=np.int64)
    states, top = stand.shape[1], stand.shape[2] - 1
    state = states - 1
    if states > 1 and not spread:
        for other in range(1, states):
            if stand[size, other, steps] < stand[size, state, steps]:
                state = other
    # The last entry of the same price is the one that was made.
    entry = steps
    while entry < top and stand[size, state, entry + 1] == stand[size, state, entry]:
        entry += 1
    for number in range(len(parts) - 1, -1, -1):
        code = codes[number, state, entry]
        if units[parts[number, 0], SIZE] <= size and code != NO_CODE:
            counts[parts[number, 0]] += parts[number, 1]
            state, entry = code // (top + 1), code % (top + 1)
    return counts


@compiled
def hour_ways(units: Ints, usd: Floats, sizes: int, grid: int) -> tuple[Floats, Codes, Ints]:
    """Of one hour the least USD [J, E + 1] of at least so many steps with no replica above a size, the entry
    that each part joined [P, E + 1] (-1: it did not help), and the parts [P, 3]."""
    part, plain = _split(units, grid), np.empty((sizes, grid + 1))
    came = np.full((len(part), grid + 1), NO_CODE, dtype=np.int32)
    table = np.full(grid + 1, np.inf)
    table[0] = 0.0
    number = 0
    for size in range(sizes):
        while number < len(part) and units[part[number, 0], SIZE] == size:
            unit, count, gain = part[number]
            for entry in range(grid, 0, -1):
                before = max(entry - gain, 0)
                if table[before] + count * usd[unit] < table[entry]:
                    table[entry], came[number, entry] = table[before] + count * usd[unit], before
            number += 1
        plain[size] = table
    return plain, came, part


@compiled
def hour_set(
    plain: Floats, came: Codes, part: Ints, units: Ints, usd: Floats, size: int, need: int, gross: int,
    least: int, spared: bool,
) -> Ints:  # fmt: skip
    """Counts [N] that join one hour at least cost beside what stands: ``gross`` steps of units no larger than
    ``size`` (negative: nothing stands), or ``need`` led by a larger one; ``least``: units at least."""
    sizes, grid = len(plain), plain.shape[1] - 1
    best, lead, upto, rest = np.inf, NOBODY, sizes - 1, 0
    if size >= 0 or not spared:
        upto = max(size, 0) if spared else sizes - 1
        rest = min(max(gross, least), grid)
        best = plain[upto, rest]
    if spared:
        for unit in range(len(units)):
            at = min(max(need - units[unit, NET], least if size < 0 else 0), grid)
            if units[unit, SIZE] > size and usd[unit] + plain[units[unit, SIZE], at] < best:
                best, lead = usd[unit] + plain[units[unit, SIZE], at], unit
                upto, rest = units[unit, SIZE], at
    counts = np.zeros(len(units), dtype=np.int64)
    if best == np.inf:
        return counts
    if lead != NOBODY:
        counts[lead] += 1
    for index in range(len(part) - 1, -1, -1):
        if units[part[index, 0], SIZE] <= upto and came[index, rest] != NO_CODE:
            counts[part[index, 0]] += part[index, 1]
            rest = came[index, rest]
    return counts
