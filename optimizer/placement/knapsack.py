"""The table of a knapsack of units, compiled: what the least cost is as parts of them join, zones included.

A table [S, E + 1] holds the least USD an hour of units that bring at least so many steps and stand in a state
of zones (``ZoneStates``; one state where there are none). Units come in groups of the same replica, rate and
state. A unit that, once, makes no entry cheaper makes none cheaper however often and beside whatever comes
later: what it would bring is there for as little; nor do dearer units of its group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import copy, fill, most_parts

STEP, NET, OWN, MOST = range(4)
EMPTY = 0
NOBODY = -1
SAME = -1

Codes = NDArray[np.int8]


class Room(NamedTuple):
    """What tables are worked out in, one after the other.

    ``beside`` [S, 2 E + 1]: for each state the least USD of what a unit of it joins to be spread out, and
    from which state that ``came``; ``fresh`` [S]: whether that is so of the table as it stands. ``part``
    [P, 3]: units that joined together, how many, their steps; ``codes`` [P, 2, E + 1]: from which state
    that made an entry cheaper, for staying and for spreading out (with one state it is [P, 1, E + 1]).
    """

    table: Floats
    beside: Floats
    came: Codes
    fresh: Ints
    part: Ints
    codes: Codes


@compiled
def room_for(states: int, grid: int, parts: int, kept: bool) -> Room:
    """For tables of ``grid`` steps and so many parts in all; with codes only where they are ``kept``."""
    return Room(
        np.empty((states, grid + 1)),
        np.empty((states, 2 * grid + 1)),
        np.full((states, 2 * grid + 1), EMPTY, dtype=np.int8),
        np.empty(states, dtype=np.int64),
        np.empty((parts, 3), dtype=np.int64),
        np.empty((parts if kept else 1, min(states, 2), grid + 1), dtype=np.int8),
    )


@compiled
def most_in_all(units: Ints, grid: int) -> int:
    """No less than the parts that units ever join in, one more of each as a lead included."""
    parts = 1
    for unit in range(len(units)):
        parts += 2 + most_parts(min(units[unit, MOST], grid))
    return parts


@compiled
def begin(room: Room, top: int) -> None:
    """Nothing stands yet; entries up to ``top`` are to be used."""
    for state in range(len(room.table)):
        fill(room.table[state, : top + 1], np.inf)
    room.table[EMPTY, 0] = 0.0
    _change(room.fresh)


@compiled
def take_group(room: Room, units: Ints, first: int, last: int, usd: Floats, top: int, parts: int) -> int:
    """Allows the units of a group, the cheaper ones first; how many parts there are now."""
    unit = NOBODY
    for _ in range(first, last):
        unit = _dearer(usd, first, last, unit)
        if not helps(room, units, unit, usd[unit], top):
            break
        most = min(units[unit, MOST], top // units[unit, STEP] + 1)
        parts = take(room, units, unit, usd[unit], most, top, parts, True)
    return parts


@compiled
def _dearer(usd: Floats, first: int, last: int, before: int) -> int:
    """The next one in the order of prices, and of places where these are the same."""
    found = NOBODY
    for unit in range(first, last):
        after = before == NOBODY or (usd[unit], unit) > (usd[before], before)
        if after and (found == NOBODY or usd[unit] < usd[found]):
            found = unit
    return found


@compiled
def helps(room: Room, units: Ints, unit: int, usd: float, top: int) -> bool:
    """Whether one unit makes any entry cheaper. Entries never fall with their steps."""
    table, own = room.table, units[unit, OWN]
    grid, done = table.shape[1] - 1, len(table) - 1
    gain = min(units[unit, STEP], grid)
    if usd < table[own, min(gain, top)]:
        return True
    stays = own < done - 1 or done == 0
    if stays and _is_cheaper(table[own, gain : top + 1], table[own, : grid + 1], usd):
        return True
    if done == 0:
        return False
    _spread(room, own, top)
    return _is_cheaper(table[done, : top + 1], room.beside[own, grid - gain :], usd)


@compiled
def _spread(room: Room, own: int, top: int) -> None:
    """What a unit of state ``own`` joins to be spread out: any state but its own, from entry E on.

    Before that the least of all, for what a unit brings beyond the need.
    """
    if room.fresh[own]:
        return
    table = room.table
    grid, done = table.shape[1] - 1, len(table) - 1
    usd, came = room.beside[own, grid : grid + top + 1], room.came[own, grid : grid + top + 1]
    fill(usd, np.inf)
    for state in range(1, done + 1):
        if state != own or own == done - 1:
            _lower(usd, came, table[state], state)
    fill(room.beside[own, :grid], usd[0])
    _put(room.came[own, :grid], came[0] + 0)
    room.fresh[own] = 1


@compiled
def _alone(room: Room, own: int, gain: int, top: int) -> None:
    """What a unit joins to stay in its state, in place of what one of the last state does: nothing, or what
    stands there."""
    grid, done = room.table.shape[1] - 1, len(room.table) - 1
    usd, came = room.beside[done, grid - gain :], room.came[done, grid - gain :]
    if own < done - 1 or done == 0:
        copy(usd[gain : gain + top + 1], room.table[own])
        _put(came[: gain + top + 1], own)
    else:
        fill(usd[gain : gain + top + 1], np.inf)
    fill(usd[: gain + 1], 0.0)
    _put(came[: gain + 1], EMPTY)


@compiled
def take(room: Room, units: Ints, unit: int, usd: float, most: int, top: int, parts: int, kept: bool) -> int:
    """Allows ``most`` more of a unit, in parts that sum to any number of them; how many parts there are now.

    A part that makes nothing cheaper ends it: larger ones make nothing cheaper either.
    """
    table, own = room.table, units[unit, OWN]
    grid, done = table.shape[1] - 1, len(table) - 1
    left, size = most, 1
    while left > 0:
        count = min(size, left)
        gain, price = min(count * units[unit, STEP], grid), count * usd
        better, codes = 0, room.codes[parts if kept else 0]
        if done > 0:
            _spread(room, own, top)
            before, came = room.beside[own, grid - gain :], room.came[own, grid - gain :]
            better += _join(table[done, : top + 1], before, price, came, codes[1])
        _alone(room, own, gain, top)
        before, came = room.beside[done, grid - gain :], room.came[done, grid - gain :]
        better += _join(table[own, : top + 1], before, price, came, codes[0])
        if better == 0:
            break
        _change(room.fresh)
        room.part[parts, 0], room.part[parts, 1], room.part[parts, 2] = unit, count, gain
        parts += 1
        left -= count
        size *= 2
    return parts


@compiled
def _change(fresh: Ints) -> None:
    """The table is another now."""
    for state in range(len(fresh)):
        fresh[state] = 0


@compiled
def _put(came: Codes, state: int) -> None:
    for entry in range(len(came)):
        came[entry] = state


@compiled
def _lower(usd: Floats, came: Codes, row: Floats, state: int) -> None:
    """What is cheaper in the ``row`` of another state comes from there."""
    for entry in range(len(usd)):
        came[entry] = state if row[entry] < usd[entry] else came[entry]
        usd[entry] = row[entry] if row[entry] < usd[entry] else usd[entry]


@compiled
def _is_cheaper(target: Floats, before: Floats, price: float) -> bool:
    found = 0
    for entry in range(len(target)):
        found += before[entry] + price < target[entry]
    return found > 0


@compiled
def _join(target: Floats, before: Floats, price: float, came: Codes, code: Codes) -> int:
    """Entries that become cheaper, of which ``code`` then says from where."""
    found = 0
    for entry in range(len(target)):
        usd = before[entry] + price
        cheaper = usd < target[entry]
        found += cheaper
        code[entry] = came[entry] if cheaper else SAME
        target[entry] = usd if cheaper else target[entry]
    return found


@compiled
def read_back(
    part: Ints, codes: Codes, units: Ints, first: int, last: int, done: int, state: int, left: int,
    counts: Ints,
) -> None:  # fmt: skip
    """Adds the units of an entry, read backwards from the ``last`` of the parts that were on its table;
    ``done``: the state of those that are spread out."""
    for index in range(last - 1, first - 1, -1):
        unit = part[index, 0]
        if state == done or state == units[unit, OWN]:
            came = codes[index, 1 if state == done and done > 0 else 0, left]
            if came != SAME:
                counts[unit] += part[index, 1]
                left = max(0, left - part[index, 2])
                state = came
