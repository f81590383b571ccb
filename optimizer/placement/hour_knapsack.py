"""The knapsack of one hour, compiled: which units cover a need at least cost, zones and spares included.

A table [S, E + 1] holds the least USD an hour of units that bring at least so many steps and stand in a state
of zones (``ZoneStates``). Units come in groups of the same replica, rate and state, ascending in the replica.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import fill, lower, most_parts

STEP, NET, OWN, MOST = range(4)
EMPTY = 0
NOBODY = -1
SAME = -1

Codes = NDArray[np.int8]


class Room(NamedTuple):
    """What one hour after the other is worked out in.

    ``beside`` [S, 2 E + 1]: for each state the least USD of what a unit of it joins to be spread out, and
    from which state that ``came``; ``fresh`` [S]: whether that is so of the table as it stands. ``part``
    [P, 3]: units that joined together, how many, their steps; ``codes`` [P, 2, E + 1]: from which state
    that made an entry cheaper, for staying and for spreading out.
    """

    table: Floats
    beside: Floats
    came: Codes
    fresh: Ints
    part: Ints
    codes: Codes


class Lead(NamedTuple):
    """The cheapest fleet so far, its unit with the largest replica, and what that joins: the state of zones
    and how many parts were on the table."""

    usd: float
    unit: int
    state: int
    parts: int


@compiled
def cover_hours(
    units: Ints, heads: Ints, usd: Floats, needs: Ints, states: int, grid: int, spared: bool, kept: bool
) -> tuple[Floats, Ints]:
    """The least USD of each hour [Q] (inf: none) and, where ``kept``, the counts [Q, N] that cost it.

    ``units`` [N, 4]: steps, steps when it leads (if ``spared``), state of zones alone, most; ``heads``
    [G + 1]: where each group begins; ``usd`` [Q, N]; ``needs`` [Q] in steps, of which a table has ``grid``.
    """
    found, counts = np.empty(len(usd)), np.zeros((len(usd), len(units)), dtype=np.int64)
    lowest, parts = 0, 1
    for unit in range(len(units)):
        lowest = min(lowest, units[unit, NET]) if spared else 0
        parts += 2 + most_parts(min(units[unit, MOST], grid))
    room = Room(
        np.empty((states, grid + 1)),
        np.empty((states, 2 * grid + 1)),
        np.empty((states, 2 * grid + 1), dtype=np.int8),
        np.empty(states, dtype=np.int64),
        np.empty((parts, 3), dtype=np.int64),
        np.empty((parts if kept else 1, 2, grid + 1), dtype=np.int8),
    )
    for hour in range(len(usd)):
        need = needs[hour]
        top = min(max(need - lowest, 1), grid)
        lead = _cover_hour(room, units, heads, usd[hour], need, top, spared, kept)
        found[hour] = lead.usd
        if kept and lead.usd < np.inf:
            left = min(max(need, 1), grid)
            if lead.unit != NOBODY:
                counts[hour, lead.unit] += 1
                left = min(max(need - units[lead.unit, NET], 0), grid)
            _read_back(room, units, lead, left, counts[hour])
    return found, counts


@compiled
def _cover_hour(
    room: Room, units: Ints, heads: Ints, usd: Floats, need: int, top: int, spared: bool, kept: bool
) -> Lead:
    """Fills the table up to ``top`` and says which fleet is the cheapest.

    Of a unit all but the last may join before it is tried as the lead.
    """
    grid, done = room.table.shape[1] - 1, len(room.table) - 1
    for state in range(done + 1):
        fill(room.table[state, : top + 1], np.inf)
    room.table[EMPTY, 0] = 0.0
    _change(room.fresh)
    lead = Lead(np.inf, NOBODY, done, 0)
    parts = lead.parts
    for group in range(len(heads) - 1):
        first, last = heads[group], heads[group + 1]
        cheapest = first
        for unit in range(first, last):
            cheapest = unit if usd[unit] < usd[cheapest] else cheapest
        helps = _helps(room, units, cheapest, usd[cheapest], top)
        for unit in range(first, last) if helps else range(cheapest, cheapest + 1):
            useful = min(units[unit, MOST], grid // units[unit, STEP] + 2)
            for more in range(2 if spared else 1):
                if more > 0:
                    lead = _as_lead(room, units, unit, usd[unit], need, parts, lead)
                if helps:
                    most = 1 if more > 0 else (useful - 1 if spared else useful)
                    parts = _take(room, units, unit, usd[unit], most, top, parts, kept)
    if spared:
        return lead
    return Lead(room.table[done, min(max(need, 1), grid)], NOBODY, done, parts)


@compiled
def _as_lead(room: Room, units: Ints, unit: int, usd: float, need: int, parts: int, lead: Lead) -> Lead:
    """The unit as the one with the largest replica, if that is cheaper."""
    table, done, own = room.table, len(room.table) - 1, units[unit, OWN]
    at = min(max(need - units[unit, NET], 0), table.shape[1] - 1)
    for state in range(min(1, done), done + 1):
        joins = done == 0 or state != own or own == done - 1
        if joins and table[state, at] + usd < lead.usd:
            lead = Lead(table[state, at] + usd, unit, state, parts)
    return lead


@compiled
def _helps(room: Room, units: Ints, unit: int, usd: float, top: int) -> bool:
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
def _alone(room: Room, own: int, top: int) -> None:
    """What a unit joins to stay in its state, in place of what one of the last state does: nothing, or what
    stands there."""
    grid, done = room.table.shape[1] - 1, len(room.table) - 1
    usd, came = room.beside[done, grid : grid + top + 1], room.came[done, grid : grid + top + 1]
    fill(usd, np.inf)
    if own < done - 1 or done == 0:
        lower(usd, room.table[own], 0.0)
    _put(came, own)
    usd[0], came[0] = 0.0, EMPTY
    fill(room.beside[done, :grid], 0.0)
    _put(room.came[done, :grid], EMPTY)


@compiled
def _take(room: Room, units: Ints, unit: int, usd: float, most: int, top: int, parts: int, kept: bool) -> int:
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
        _alone(room, own, top)
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
def _read_back(room: Room, units: Ints, lead: Lead, left: int, counts: Ints) -> None:
    """Adds the units that a lead joins, read backwards from where it stands."""
    done, state = len(room.table) - 1, lead.state
    for index in range(lead.parts - 1, -1, -1):
        unit = room.part[index, 0]
        if state == done or state == units[unit, OWN]:
            came = room.codes[index, 1 if state == done and done > 0 else 0, left]
            if came != SAME:
                counts[unit] += room.part[index, 1]
                left = max(0, left - room.part[index, 2])
                state = came
