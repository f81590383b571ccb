"""The cheapest set of units for each of many hours, each with its own need and its own prices, in one pass.

Units come in ascending order of their largest replica, so that what is read after each size is the
cheapest among fleets with no larger replica. N units, Q hours, S states of zones, E = ``STEPS``. A table
[S, Q, E + 1] holds the least USD an hour of units that bring at least so many steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.placement.cover import part_sizes
from optimizer.placement.fleet_menu import STEPS, Menu
from optimizer.placement.problem import Bools, Floats, Ints

MAX_TRACKED = 3
EMPTY = 0
NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Covers:
    """``usd`` [Q] an hour (inf: none), no more than that of any fleet; ``counts`` [Q, N] that cost it."""

    usd: Floats
    counts: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ZoneStates:
    """Where a fleet stands: nowhere, in one tracked zone alone, in others, or spread out.

    Untracked zones count as one until a second unit joins, so a state never asks for more than the truth.
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

    def sources(self, own: int) -> Iterator[tuple[int, list[int]]]:
        """States to which a unit of state ``own`` leads, each with those from which it does."""
        if not self.spread:
            yield 0, [0]
            return
        stays = [EMPTY, own] if own < self.done - 1 else [EMPTY]
        yield own, stays
        yield self.done, [s for s in range(1, self.count) if s not in stays]


def zone_states(menu: Menu, zones: int) -> ZoneStates:
    """States that track the zones with the cheapest units."""
    if zones < 2:
        return ZoneStates((), spread=False)
    best: dict[int, int] = {}
    for price in (menu.whole_usd, menu.whole_usd / menu.steps):
        for place, at in enumerate(np.argsort(price, kind="stable")):
            zone = int(menu.zone[at])
            best[zone] = min(best.get(zone, place), place)
    return ZoneStates(tuple(sorted(best, key=lambda z: (best[z], z))[:MAX_TRACKED]), spread=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """Where a part improved state ``target`` [Q, E + 1], and from which state it ``came``."""

    target: int
    better: Bools
    came: NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """``count`` of a unit that joined together."""

    unit: int
    count: int
    gain: int
    ways: tuple[_Way, ...]


def hour_covers(menu: Menu, states: ZoneStates, usd: Floats, needs: Ints) -> Covers:
    """The cheapest fleet for each hour at prices ``usd`` [N, Q] and ``needs`` [Q] in steps."""
    leads, parts = _filled(menu, states, usd, needs, kept=True)
    return Covers(leads.usd, _counts(menu, parts, leads, needs))


def least_usd(menu: Menu, states: ZoneStates, usd: Floats, needs: Ints) -> Floats:
    """What the cheapest fleet of each hour costs [Q], without saying which it is."""
    return _filled(menu, states, usd, needs, kept=False)[0].usd


def _filled(
    menu: Menu, states: ZoneStates, usd: Floats, needs: Ints, *, kept: bool
) -> tuple[_Leads, list[_Part]]:
    """The lead of each hour's cheapest fleet, and how the entries came about where that is ``kept``.

    A unit that, once, makes no entry cheaper makes none cheaper however often and beside whatever comes
    later: what it would bring is there for as little. So alike units are left out together.
    """
    table = np.full((states.count, len(needs), STEPS + 1), np.inf)
    table[EMPTY, :, 0] = 0.0
    leads, parts, spared = _Leads.none(len(needs)), list[_Part](), bool(menu.size.any())
    for group in _alike(menu, states, usd):
        first, own = int(group[0]), states.of(int(menu.zone[group[0]]))
        gain = min(int(menu.steps[first]), STEPS)
        cheapest = usd[group].min(axis=0)
        if not _helps(table, states, own, gain, cheapest):
            if spared:
                leads.try_units(table, states, menu, group, usd, needs, len(parts))
            continue
        for at in group:
            _take(table, states, menu, int(at), usd[at], parts, kept=kept, leaving=spared)
            if spared:
                leads.try_units(table, states, menu, np.array([at]), usd, needs, len(parts))
                _take_parts(table, states, menu, int(at), usd[at], parts, [1], kept=kept)
    if not spared:
        leads = _Leads.not_needed(table, states, needs, len(parts))
    return leads, parts


def _alike(menu: Menu, states: ZoneStates, usd: Floats) -> list[Ints]:
    """Units of the same replica, rate and state of zones, those that cost least by their rate first.

    Ascending in the replica: whatever may join a lead is on the table when it is tried.
    """
    mean = usd.mean(axis=1)
    own = np.array([states.of(int(zone)) for zone in menu.zone])
    order = np.lexsort((mean, own, menu.net, menu.steps, menu.size))
    same = np.stack((own, menu.net, menu.steps, menu.size))[:, order]
    edges = np.flatnonzero((same[:, 1:] != same[:, :-1]).any(axis=0)) + 1
    groups = np.split(order, edges) if len(order) else []
    return sorted(groups, key=lambda g: (float(menu.size[g[0]]), float(mean[g[0]]) / int(menu.steps[g[0]])))


def _helps(table: Floats, states: ZoneStates, own: int, gain: int, usd: Floats) -> bool:
    """Whether one unit of a state makes any entry of the table cheaper."""
    price = usd[:, None]
    for target, froms in states.sources(own):
        if not froms:
            continue
        least = table[froms].min(axis=0) if len(froms) > 1 else table[froms[0]]
        if (least[:, : STEPS + 1 - gain] + price < table[target][:, gain:]).any():
            return True
        if (least[:, :1] + price < table[target][:, :gain]).any():
            return True
    return False


def _take(
    table: Floats,
    states: ZoneStates,
    menu: Menu,
    at: int,
    usd: Floats,
    parts: list[_Part],
    *,
    kept: bool,
    leaving: bool,
) -> None:
    """Allows as many of a unit as can be useful; ``leaving`` the last, which is tried as the lead before."""
    steps = int(menu.steps[at])
    useful = min(int(menu.most[at]), -(-STEPS // steps) + 1)
    _take_parts(table, states, menu, at, usd, parts, part_sizes(useful - leaving, steps, STEPS), kept=kept)


def _take_parts(
    table: Floats,
    states: ZoneStates,
    menu: Menu,
    at: int,
    usd: Floats,
    parts: list[_Part],
    sizes: Iterable[int],
    *,
    kept: bool,
) -> None:
    for count in sizes:
        if not kept:
            _add(table, states, menu, at, count, usd)
            continue
        part = _join(table, states, menu, at, count, usd)
        if not any(way.better.any() for way in part.ways):
            return
        parts.append(part)


@dataclass(slots=True, eq=False)
class _Leads:
    """The unit with the largest replica in the cheapest fleet of each hour [Q], and what it joins.

    ``state`` and ``parts``: the state of zones before it, and how many parts were on the table.
    """

    usd: Floats
    unit: Ints
    state: Ints
    parts: Ints

    @classmethod
    def none(cls, hours: int) -> _Leads:
        """No fleet yet."""
        unit, state, parts = (np.zeros(hours, dtype=np.int64) for _ in range(3))
        return cls(np.full(hours, np.inf), unit, state, parts)

    @classmethod
    def not_needed(cls, table: Floats, states: ZoneStates, needs: Ints, parts: int) -> _Leads:
        """Without spares the table says it all."""
        found = cls.none(len(needs))
        found.usd = table[states.done, np.arange(len(needs)), np.clip(needs, 1, STEPS)]
        found.unit[:], found.state[:], found.parts[:] = NOBODY, states.done, parts
        return found

    def try_units(
        self,
        table: Floats,
        states: ZoneStates,
        menu: Menu,
        group: Ints,
        usd: Floats,
        needs: Ints,
        parts: int,
    ) -> None:
        """Takes the cheapest of alike units as the lead where that is cheaper."""
        own, hours = states.of(int(menu.zone[group[0]])), np.arange(len(needs))
        froms = np.array(next((f for t, f in states.sources(own) if t == states.done), []), dtype=np.int64)
        if not len(froms):
            return
        steps = np.clip(needs - menu.net[group[0]], 0, STEPS)
        prices = table[froms[:, None], hours[None, :], steps[None, :]]
        first = prices.argmin(axis=0)
        which = usd[group].argmin(axis=0)
        least = prices[first, hours] + usd[group[which], hours]
        better = least < self.usd
        self.usd[better], self.parts[better] = least[better], parts
        self.unit[better], self.state[better] = group[which[better]], froms[first[better]]


def _join(table: Floats, states: ZoneStates, menu: Menu, at: int, count: int, usd: Floats) -> _Part:
    """Allows ``count`` more of a unit, together and once; in place."""
    gain, price = min(count * int(menu.steps[at]), STEPS), (count * usd)[:, None]
    ways, priced = [], []
    for target, froms in states.sources(states.of(int(menu.zone[at]))):
        if not froms:
            continue
        least, came = table[froms[0]], np.full(table.shape[1:], froms[0], dtype=np.int8)
        for state in froms[1:]:
            np.copyto(came, state, where=table[state] < least)
            least = np.minimum(least, table[state])
        joined = np.empty_like(least)
        joined[:, gain:] = least[:, : STEPS + 1 - gain]
        joined[:, :gain] = least[:, :1]
        joined += price
        ways.append(_Way(target, joined < table[target], came))
        priced.append(joined)
    for way, joined in zip(ways, priced, strict=True):
        np.copyto(table[way.target], joined, where=way.better)
    return _Part(at, count, gain, tuple(ways))


def _add(table: Floats, states: ZoneStates, menu: Menu, at: int, count: int, usd: Floats) -> None:
    """The same without keeping how."""
    gain, price = min(count * int(menu.steps[at]), STEPS), (count * usd)[:, None]
    priced = []
    for target, froms in states.sources(states.of(int(menu.zone[at]))):
        if froms:
            least = table[froms].min(axis=0) if len(froms) > 1 else table[froms[0]]
            priced.append((target, least[:, : STEPS + 1 - gain] + price, least[:, :1] + price))
    for target, high, low in priced:
        np.minimum(table[target][:, gain:], high, out=table[target][:, gain:])
        np.minimum(table[target][:, :gain], low, out=table[target][:, :gain])


def _counts(menu: Menu, parts: list[_Part], leads: _Leads, needs: Ints) -> Ints:
    """Units [Q, N] of each cheapest fleet, read backwards from its lead."""
    hours, known = np.arange(len(needs)), np.isfinite(leads.usd)
    counts = np.zeros((len(needs), len(menu)), dtype=np.int64)
    led = known & (leads.unit != NOBODY)
    counts[hours[led], leads.unit[led]] += 1
    state = leads.state.copy()
    left = np.where(led, np.clip(needs - menu.net[leads.unit], 0, STEPS), np.clip(needs, 1, STEPS))
    for index in range(len(parts) - 1, -1, -1):
        part, before = parts[index], state.copy()
        for way in part.ways:
            taken = known & (leads.parts > index) & (before == way.target) & way.better[hours, left]
            if taken.any():
                rows = np.flatnonzero(taken)
                counts[rows, part.unit] += part.count
                left[rows] = np.maximum(0, left[rows] - part.gain)
                state[rows] = way.came[rows, left[rows]]
    return counts
