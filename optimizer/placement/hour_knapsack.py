"""The knapsack of one hour, compiled: which units cover a need at least cost, zones and spares included.

Units come in groups of the same replica, rate and state of zones, ascending in the replica.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.knapsack import (
    MOST,
    NET,
    NOBODY,
    OWN,
    STEP,
    Room,
    begin,
    helps,
    most_in_all,
    read_back,
    room_for,
    take,
)
from optimizer.placement.problem import Floats, Ints


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
    lowest = 0
    for unit in range(len(units)):
        lowest = min(lowest, units[unit, NET]) if spared else 0
    room = room_for(states, grid, most_in_all(units, grid), kept)
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
            read_back(room.part, room.codes, units, 0, lead.parts, states - 1, lead.state, left, counts[hour])
    return found, counts


@compiled
def _cover_hour(
    room: Room, units: Ints, heads: Ints, usd: Floats, need: int, top: int, spared: bool, kept: bool
) -> Lead:
    """Fills the table up to ``top`` and says which fleet is the cheapest.

    Of a unit all but the last may join before it is tried as the lead.
    """
    grid, done = room.table.shape[1] - 1, len(room.table) - 1
    begin(room, top)
    lead = Lead(np.inf, NOBODY, done, 0)
    parts = lead.parts
    for group in range(len(heads) - 1):
        first, last = heads[group], heads[group + 1]
        cheapest = first
        for unit in range(first, last):
            cheapest = unit if usd[unit] < usd[cheapest] else cheapest
        helping = helps(room, units, cheapest, usd[cheapest], top)
        for unit in range(first, last) if helping else range(cheapest, cheapest + 1):
            useful = min(units[unit, MOST], grid // units[unit, STEP] + 2)
            for more in range(2 if spared else 1):
                if more > 0:
                    lead = _as_lead(room, units, unit, usd[unit], need, parts, lead)
                if helping:
                    most = 1 if more > 0 else (useful - 1 if spared else useful)
                    parts = take(room, units, unit, usd[unit], most, top, parts, kept)
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
