"""The knapsack of one hour, compiled: which units cover a need at least cost, zones and spares included.

A table [S, E + 1] holds the least USD an hour of units that bring at least so many steps and stand in a state
of zones (``ZoneStates``). Units come in groups of the same replica, rate and state, ascending in the replica.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.compiled import compiled
from optimizer.placement.problem import Floats, Ints

STEP, NET, OWN, MOST = range(4)
EMPTY = 0
NOBODY = -1
SAME = -1

Codes = NDArray[np.int8]


@compiled
def cover_hours(
    units: Ints, heads: Ints, usd: Floats, needs: Ints, states: int, grid: int, spared: bool, kept: bool
) -> tuple[Floats, Ints]:
    """The least USD of each hour [Q] (inf: none) and, where ``kept``, the counts [Q, N] that cost it.

    ``units`` [N, 4]: steps, steps when it leads (if ``spared``), state of zones alone, most; ``heads`` [G + 1]:
    where each group begins; ``usd`` [Q, N]; ``needs`` [Q] in steps, of which a table has ``grid``.
    """
    hours, done = len(usd), states - 1
    found, counts = np.empty(hours), np.zeros((hours, len(units)), dtype=np.int64)
    lowest, longest = 0, 1
    for unit in range(len(units)):
        lowest = min(lowest, units[unit, NET]) if spared else 0
        longest += 2 + _parts(min(units[unit, MOST], grid), grid)
    codes = np.empty((longest if kept else 1, 2, grid + 1), dtype=np.int8)
    part = np.empty((longest, 3), dtype=np.int64)
    table = np.empty((states, grid + 1))
    beside, came = np.empty((states, 2 * grid + 1)), np.empty((states, 2 * grid + 1), dtype=np.int8)
    fresh = np.zeros(states, dtype=np.int64)
    for hour in range(hours):
        need, price = needs[hour], usd[hour]
        top = min(max(need - lowest, 1), grid)
        for state in range(states):
            for entry in range(top + 1):
                table[state, entry] = np.inf
            fresh[state] = 0
        table[EMPTY, 0] = 0.0
        parts, lead, lead_state, lead_parts, least = 0, NOBODY, done, 0, np.inf
        for group in range(len(heads) - 1):
            first, last = heads[group], heads[group + 1]
            best = first
            for unit in range(first, last):
                best = unit if price[unit] < price[best] else best
            helps = _helps(table, beside, came, fresh, units, best, price[best], top)
            for unit in range(first if helps else best, last if helps else best + 1):
                useful = min(units[unit, MOST], grid // units[unit, STEP] + 2)
                for turn in range(2 if spared else 1):
                    count = useful if not spared else (useful - 1 if turn == 0 else 1)
                    if turn == 1:
                        at = min(max(need - units[unit, NET], 0), grid)
                        for state in range(min(1, done), states):
                            if done == 0 or state != units[unit, OWN] or state == done - 1:
                                if table[state, at] + price[unit] < least:
                                    least, lead = table[state, at] + price[unit], unit
                                    lead_state, lead_parts = state, parts
                    if helps:
                        parts = _take(
                            table, beside, came, fresh, codes, part, units, unit, price[unit], count, top,
                            parts, kept,
                        )  # fmt: skip
        left = min(max(need, 1), grid)
        if not spared:
            least, lead_parts = table[done, left], parts
        found[hour] = least
        if kept and least < np.inf:
            if lead != NOBODY:
                counts[hour, lead] += 1
                left = min(max(need - units[lead, NET], 0), grid)
            _read_back(units, codes, part, lead_parts, lead_state, left, done, counts[hour])
    return found, counts


@compiled
def _parts(most: int, grid: int) -> int:
    """How many parts sum to any number up to ``most``."""
    parts = 0
    while most > 0:
        most //= 2
        parts += 1
    return parts


@compiled
def _helps(
    table: Floats, beside: Floats, came: Codes, fresh: Ints, units: Ints, unit: int, usd: float, top: int
) -> bool:
    """Whether one unit makes any entry cheaper. Entries never fall with their steps."""
    grid, done, own = table.shape[1] - 1, len(table) - 1, units[unit, OWN]
    gain = min(units[unit, STEP], grid)
    edge = min(gain, top)
    if usd < table[own, edge]:
        return True
    if (own < done - 1 or done == 0) and _is_cheaper(table[own, gain : top + 1], table[own, : grid + 1], usd):
        return True
    if done == 0:
        return False
    _spread(table, beside[own], came[own], fresh, own, top)
    return _is_cheaper(table[done, : top + 1], beside[own, grid - gain :], usd)


@compiled
def _spread(table: Floats, beside: Floats, came: Codes, fresh: Ints, own: int, top: int) -> None:
    """What a unit of state ``own`` joins to be spread out: any state but its own, from entry ``grid`` on.

    Before that the least of all, for what a unit brings beyond the need.
    """
    if fresh[own]:
        return
    grid, done = table.shape[1] - 1, len(table) - 1
    usd, state_of = beside[grid : grid + top + 1], came[grid : grid + top + 1]
    _begin(usd, state_of, table[done], done)
    for state in range(1, done):
        if state != own or own == done - 1:
            _lower(usd, state_of, table[state], state)
    _fill(beside[:grid], came[:grid], usd[0], state_of[0])
    fresh[own] = 1


@compiled
def _alone(table: Floats, beside: Floats, came: Codes, own: int, top: int) -> None:
    """The same to stay in the state: nothing, or what stands there."""
    grid, done = table.shape[1] - 1, len(table) - 1
    usd, state_of = beside[grid : grid + top + 1], came[grid : grid + top + 1]
    if own < done - 1 or done == 0:
        _begin(usd, state_of, table[own], own)
    else:
        _fill(usd, state_of, np.inf, own)
    usd[0], state_of[0] = 0.0, EMPTY
    _fill(beside[:grid], came[:grid], 0.0, EMPTY)


@compiled
def _take(
    table: Floats,
    beside: Floats,
    came: Codes,
    fresh: Ints,
    codes: Codes,
    part: Ints,
    units: Ints,
    unit: int,
    usd: float,
    most: int,
    top: int,
    parts: int,
    kept: bool,
) -> int:
    """Allows ``most`` more of a unit, in parts that sum to any number of them; how many parts there are now.

    A part that makes nothing cheaper ends it: larger ones make nothing cheaper either.
    """
    grid, done, own = table.shape[1] - 1, len(table) - 1, units[unit, OWN]
    left, size = most, 1
    while left > 0:
        count = min(size, left)
        gain, price = min(count * units[unit, STEP], grid), count * usd
        better, code = 0, codes[parts if kept else 0]
        if done > 0:
            _spread(table, beside[own], came[own], fresh, own, top)
            better += _join(
                table[done, : top + 1], beside[own, grid - gain :], price, came[own, grid - gain :], code[1]
            )
        _alone(table, beside[done], came[done], own, top)
        better += _join(
            table[own, : top + 1], beside[done, grid - gain :], price, came[done, grid - gain :], code[0]
        )
        if better == 0:
            break
        fresh[:] = 0
        part[parts, 0], part[parts, 1], part[parts, 2] = unit, count, gain
        parts += 1
        left -= count
        size *= 2
    return parts


@compiled
def _fill(usd: Floats, state_of: Codes, value: float, state: int) -> None:
    for entry in range(len(usd)):
        usd[entry] = value
        state_of[entry] = state


@compiled
def _begin(before: Floats, state_of: Codes, row: Floats, state: int) -> None:
    for entry in range(len(before)):
        before[entry] = row[entry]
        state_of[entry] = state


@compiled
def _lower(before: Floats, state_of: Codes, row: Floats, state: int) -> None:
    """What is cheaper in the ``row`` of another state comes from there."""
    for entry in range(len(before)):
        state_of[entry] = state if row[entry] < before[entry] else state_of[entry]
        before[entry] = row[entry] if row[entry] < before[entry] else before[entry]


@compiled
def _is_cheaper(target: Floats, before: Floats, price: float) -> bool:
    found = 0
    for entry in range(len(target)):
        found += before[entry] + price < target[entry]
    return found > 0


@compiled
def _join(target: Floats, before: Floats, price: float, state_of: Codes, code: Codes) -> int:
    found = 0
    for entry in range(len(target)):
        usd = before[entry] + price
        cheaper = usd < target[entry]
        found += cheaper
        code[entry] = state_of[entry] if cheaper else SAME
        target[entry] = usd if cheaper else target[entry]
    return found


@compiled
def _read_back(
    units: Ints, codes: Codes, part: Ints, parts: int, state: int, left: int, done: int, counts: Ints
) -> None:
    """Adds the units of a cheapest cover, read backwards from where it stands."""
    for index in range(parts - 1, -1, -1):
        unit = part[index, 0]
        if state == done or state == units[unit, OWN]:
            came = codes[index, 1 if state == done and done > 0 else 0, left]
            if came != SAME:
                counts[unit] += part[index, 1]
                left = max(0, left - part[index, 2])
                state = came
