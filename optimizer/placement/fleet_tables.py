"""Knapsacks of a fleet in one pass: units by ascending largest replica, under many prices at once.

S states of zones, Q prices, G sizes of the largest replica; E = ``GRID``. A table [S, Q, E + 1] holds the
least USD an hour of units that bring at least so many steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.cover import GRID, part_sizes
from optimizer.placement.fleet_menu import Menu
from optimizer.placement.problem import Floats, Ints

MAX_TRACKED = 6
EMPTY = 0


@dataclass(frozen=True, slots=True, eq=False)
class ZoneStates:
    """Where the units of a fleet stand: nowhere, in one tracked zone alone, elsewhere, or spread out.

    Untracked zones count as one until a second part joins, so a state never asks for more than the truth.
    With no zones to spread over there is one state.
    """

    tracked: tuple[int, ...]
    spread: bool

    @property
    def count(self) -> int:
        """How many states."""
        return len(self.tracked) + 3 if self.spread else 1

    @property
    def done(self) -> int:
        """The state that meets the request."""
        return self.count - 1

    def of(self, zone: int) -> int:
        """State of a unit that stands alone."""
        if not self.spread:
            return 0
        return self.tracked.index(zone) + 1 if zone in self.tracked else self.done - 1

    def sources(self, own: int) -> tuple[list[int], list[int]]:
        """States from which a unit of state ``own`` leads to ``own``, and those from which to ``done``."""
        if not self.spread:
            return [0], []
        alone = [EMPTY, own] if own < self.done - 1 else [EMPTY]
        return alone, [s for s in range(1, self.count) if s not in alone]

    def completing(self, held: int) -> list[int]:
        """States of the rest that are enough beside a base in state ``held``."""
        if not self.spread or held == self.done:
            return list(range(self.count))
        if held == EMPTY:
            return [self.done]
        return [s for s in range(1, self.count) if s != held or held == self.done - 1]


def zone_states(menus: tuple[Menu, ...], zones: int) -> ZoneStates:
    """States that track the zones with the cheapest units."""
    if zones < 2:
        return ZoneStates((), spread=False)
    ranked: dict[int, float] = {}
    for menu in menus:
        for price in (menu.whole_usd, menu.whole_usd / menu.steps):
            order = np.argsort(price, kind="stable")
            for place, at in enumerate(order):
                zone = int(menu.zone[at])
                ranked[zone] = min(ranked.get(zone, np.inf), float(place))
    return ZoneStates(tuple(sorted(ranked, key=lambda z: (ranked[z], z))[:MAX_TRACKED]), spread=True)


@dataclass(frozen=True, slots=True, eq=False)
class SizedTables:
    """``sizes`` [G] ascending; ``within`` [G + 1] tables over units below the g-th size;

    ``leading`` [G] tables of the rate left without the spares, when the largest is of that size.
    """

    states: ZoneStates
    sizes: Floats
    within: tuple[Floats, ...]
    leading: tuple[Floats, ...]


def sized_tables(menu: Menu, usd: Floats, states: ZoneStates) -> SizedTables:
    """All tables of a menu at prices ``usd`` [N, Q]."""
    table = np.full((states.count, usd.shape[1], GRID + 1), np.inf)
    table[EMPTY, :, 0] = 0.0
    within, leading = [table], []
    sizes = np.unique(menu.size)
    for size in sizes:
        group = np.flatnonzero(menu.size == size)
        table = table.copy()
        for at in group:
            for count in part_sizes(int(menu.most[at]), int(menu.steps[at]), GRID):
                add_part(table, states, int(menu.zone[at]), count * int(menu.steps[at]), count * usd[at])
        within.append(table)
        leading.append(_leading(menu, usd, states, group, table))
    return SizedTables(states, sizes, tuple(within), tuple(leading))


def add_part(table: Floats, states: ZoneStates, zone: int, gain: int, usd: Floats) -> None:
    """Allows one more part of ``gain`` steps at ``usd`` [Q], at most once; in place."""
    own = states.of(zone)
    alone, spread = states.sources(own)
    joined = [(own, _moved(table[alone].min(axis=0), gain) + usd[:, None])]
    if spread:
        joined.append((states.done, _moved(table[spread].min(axis=0), gain) + usd[:, None]))
    for state, price in joined:
        np.minimum(table[state], price, out=table[state])


def _moved(table: Floats, gain: int) -> Floats:
    """The table [Q, E + 1] with ``gain`` steps brought by something else; ``gain`` may be negative."""
    index = np.clip(np.arange(GRID + 1) - gain, 0, GRID)
    moved: Floats = table[:, index]
    return moved


def _leading(menu: Menu, usd: Floats, states: ZoneStates, group: Ints, table: Floats) -> Floats:
    """One unit of the group leads; what joins it is any of the table."""
    found = np.full_like(table, np.inf)
    for at in group:
        own = states.of(int(menu.zone[at]))
        alone, spread = states.sources(own)
        gain, price = int(menu.net[at]), usd[at][:, None]
        found[own] = np.minimum(found[own], _moved(table[alone].min(axis=0), gain) + price)
        if spread:
            joined = _moved(table[spread].min(axis=0), gain) + price
            found[states.done] = np.minimum(found[states.done], joined)
    return found
