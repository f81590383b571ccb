"""Compositions: what a fleet may consist of in one hour; the cheapest for each level of demand.

D shelf units that are worth a look, S compositions as counts [S, D] of them, L levels of demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.cover import part_sizes
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase

STEPS = 1024
MAX_LEVELS = 24
MAX_SPARE_RATES = 3
MAX_BASES = 8
RANKED = 6
SHARES = (0.0, 0.1, 0.3, 0.5, 0.75, 1.0)
RANKED_IN_ZONE = 2
MAX_ZONES_RANKED = 12
SLACK_STEPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """The units [D] that fleets are made of, ``most`` of each, USD per hour with its price of scarcity."""

    units: Ints
    rate: Floats
    largest: Floats
    usd: Floats
    zone: Ints
    most: Ints
    nodes: Ints
    offer: Ints
    free: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Compositions:
    """``counts`` [S, D] of the shelf's units; ``net`` [S] rate without its spares; ``usd`` [S] an hour."""

    shelf: Shelf
    counts: Ints
    net: Floats
    usd: Floats


def compose(
    problem: Problem, case: FleetCase, free: Ints, fixed: Sequence[int], nested: int = MAX_BASES
) -> Compositions | None:
    """The cheapest compositions for every level of demand, alone and over each other's smaller ones.

    ``fixed``: units that are held throughout and already paid; they come first on the shelf. ``nested``: of
    how many of the smaller ones.
    """
    shelf = _shelf(problem, case, free, fixed)
    if not len(shelf.units):
        return None
    start = np.zeros(len(shelf.units), dtype=np.int64)
    start[: len(set(fixed))] = shelf.most[: len(set(fixed))]
    levels = demand_levels(case.demand)
    found: dict[tuple[int, ...], None] = {}
    for counts in _covers(case, shelf, start, levels):
        found[tuple(int(n) for n in counts)] = None
    for base in list(found)[:nested]:
        for counts in _covers(case, shelf, np.array(base, dtype=np.int64), levels):
            found[tuple(int(n) for n in counts)] = None
    if not found:
        return None
    counts = np.array(list(found), dtype=np.int64)
    counts = counts[usable(shelf, counts, case.zones)]
    if not len(counts):
        return None
    return Compositions(shelf, counts, net_rates(shelf, counts, case.spare), counts @ shelf.usd)


def demand_levels(demand: Floats, most: int = MAX_LEVELS) -> Floats:
    """Distinct demands, lowest first; thinned to the highest of at most so many groups."""
    distinct = np.unique(demand)
    groups = np.array_split(distinct, min(most, len(distinct)))
    return np.array([group[-1] for group in groups])


def net_rates(shelf: Shelf, counts: Ints, spare: int) -> Floats:
    """Rate [S] of each composition without ``spare`` of its largest replicas."""
    largest = np.where(counts > 0, shelf.largest[None, :], 0.0).max(axis=1, initial=0.0)
    net: Floats = counts @ shelf.rate - spare * largest
    return net


def usable(shelf: Shelf, counts: Ints, zones: int) -> Bools:
    """Which compositions stock and zones allow."""
    return _in_stock(shelf, counts) & _in_zones(shelf, counts, zones)


def _in_stock(shelf: Shelf, counts: Ints) -> Bools:
    """Configurations of one offer share its nodes."""
    allowed = np.ones(len(counts), dtype=np.bool_)
    for offer in np.unique(shelf.offer):
        inside = shelf.offer == offer
        taken = counts[:, inside] @ shelf.nodes[inside]
        allowed &= taken <= int(shelf.free[inside].max())
    return allowed


def _in_zones(shelf: Shelf, counts: Ints, zones: int) -> Bools:
    seen = np.zeros(len(counts), dtype=np.int64)
    for zone in np.unique(shelf.zone):
        seen += (counts[:, shelf.zone == zone] > 0).any(axis=1)
    enough: Bools = seen >= zones
    return enough


def _shelf(problem: Problem, case: FleetCase, free: Ints, fixed: Sequence[int]) -> Shelf:
    units = case.units
    front = np.array(list(dict.fromkeys(fixed)), dtype=np.int64)
    flexible = (problem.table.min_s[units.offer] <= HOUR_S) & (free[units.offer] >= units.nodes)
    flexible[front] = False
    return shelf_of(case, fixed, _worth_a_look(case, np.flatnonzero(flexible), front, fixed), free)


def shelf_of(case: FleetCase, fixed: Sequence[int], rest: Ints, free: Ints) -> Shelf:
    """The shelf of the ``fixed`` units and of ``rest``."""
    units = case.units
    front = np.array(list(dict.fromkeys(fixed)), dtype=np.int64)
    chosen = np.concatenate((front, rest))
    usd = units.usd_per_hour[chosen] + units.surcharge_usd_per_hour[chosen]
    usd[: len(front)] = 0.0
    left = free[units.offer[chosen]]
    most = left // units.nodes[chosen]
    for place, unit in enumerate(front):
        most[place] = sum(1 for u in fixed if u == unit)
    return Shelf(
        units=chosen,
        rate=units.requests_per_s[chosen],
        largest=units.largest[chosen],
        usd=usd,
        zone=units.zone[chosen],
        most=most.astype(np.int64),
        nodes=units.nodes[chosen],
        offer=units.offer[chosen],
        free=left,
    )


def _worth_a_look(case: FleetCase, among: Ints, front: Ints, fixed: Sequence[int]) -> Ints:
    """Positions of units that are cheap for what the fixed leave of some level: of all, and in each zone."""
    units = case.units
    usd = units.usd_per_hour[among] + units.surcharge_usd_per_hour[among]
    rate, largest = units.requests_per_s[among], units.largest[among]
    held = float(units.requests_per_s[list(fixed)].sum()) if len(fixed) else 0.0
    spared = case.spare * np.maximum(largest, float(units.largest[front].max(initial=0.0)))
    kept: set[int] = set()
    for demand in _wanted(case, held):
        whole = np.maximum(1, np.ceil((demand + spared - held) / rate * (1 - 1e-9)))
        kept |= set(_first(np.lexsort((among, usd, whole * usd)), RANKED))
    for order in (np.lexsort((among, usd / rate)), np.lexsort((among, usd))):
        kept |= set(_first(order, RANKED))
        if case.zones > 1:
            kept |= set(_first_in_zones(units.zone[among], order))
    chosen: Ints = among[np.array(sorted(kept), dtype=np.int64)]
    return chosen


def _wanted(case: FleetCase, held: float) -> list[float]:
    """Demands from the least to the highest that ``held`` leaves open."""
    high = float(case.demand.max(initial=0.0))
    low = min(high, max(float(case.demand.min(initial=0.0)), held))
    return [low + (high - low) * share for share in SHARES]


def _first(order: Ints, count: int) -> list[int]:
    return [int(i) for i in order[:count]]


def _first_in_zones(zone: Ints, order: Ints) -> list[int]:
    seen: dict[int, int] = {}
    kept = []
    for position in order:
        name = int(zone[position])
        if name not in seen and len(seen) >= MAX_ZONES_RANKED:
            continue
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= RANKED_IN_ZONE:
            kept.append(int(position))
    return kept


def _covers(case: FleetCase, shelf: Shelf, base: Ints, levels: Floats) -> Iterator[Ints]:
    """``base`` and the cheapest that must join it for each level; none where stock or zones run out."""
    in_base = base > 0
    opened = frozenset(int(z) for z in shelf.zone[in_base])
    missing = max(0, case.zones - len(opened))
    held = float(base @ shelf.rate)
    least = float(shelf.largest[in_base].max(initial=0.0))
    for rate in _spare_rates(case, shelf, least):
        inside = np.flatnonzero(shelf.largest <= rate)
        needs = np.maximum(0.0, levels + case.spare * rate - held)
        step = max(float(needs.max()), 1e-9) / STEPS
        most = (shelf.most - base)[inside]
        steps = np.minimum(np.rint(shelf.rate[inside] / step), STEPS).astype(np.int64)
        table = CoverTable(steps, shelf.usd[inside], most, shelf.zone[inside], missing, opened)
        for level, need in zip(levels, needs, strict=True):
            counts = _exact_cover(case, shelf, base, inside, table, float(level), int(np.floor(need / step)))
            if counts is not None:
                yield counts


def _exact_cover(
    case: FleetCase, shelf: Shelf, base: Ints, inside: Ints, table: CoverTable, level: float, need: int
) -> Ints | None:
    """The cheapest cover whose exact rate is enough: the grid's rounding is made up for step by step."""
    for more in range(SLACK_STEPS):
        taken = table.counts(min(STEPS, need + more))
        if taken is None:
            return None
        counts = base.copy()
        counts[inside] += taken
        if net_rates(shelf, counts[None, :], case.spare)[0] >= level * (1 - 1e-12):
            return counts
    return None


def _spare_rates(case: FleetCase, shelf: Shelf, least: float) -> list[float]:
    """Rates of the largest replica to try: with spares, a fleet of small replicas needs less beside demand.

    Those that decide the price of the whole market come first, then a few others, for scarce stock.
    """
    rates = np.unique(shelf.largest)
    rates = rates[rates >= least]
    if case.spare == 0 or len(rates) <= 1:
        return [float(rates.max(initial=least))]
    groups = np.array_split(rates, min(MAX_SPARE_RATES, len(rates)))
    tried = {least, *case.spare_rates, *(float(group[-1]) for group in groups)}
    return sorted(rate for rate in tried if rate >= least and rate > 0)


class CoverTable:
    """Bounded knapsack with its choices: least[z, u], the cost of u steps and z further zones."""

    def __init__(
        self, steps: Ints, usd: Floats, most: Ints, zone: Ints, zones: int, opened: frozenset[int]
    ) -> None:
        self._zones = zones
        self._size = len(steps)
        self._layers: list[tuple[Bools, Bools | None, int, int, int]] = []
        least = np.full((zones + 1, STEPS + 1), np.inf)
        least[0, 0] = 0.0
        for name in np.unique(zone):
            inside = np.flatnonzero(zone == name)
            within = np.full_like(least, np.inf)
            for unit in inside:
                within = self._add_unit(
                    least, within, int(unit), int(steps[unit]), float(usd[unit]), int(most[unit])
                )
            lift = 0 if int(name) in opened else 1
            closed = within[np.maximum(0, np.arange(zones + 1) - lift)]
            used: Bools = closed < least
            self._layers.append((used, None, -1, 0, lift))
            least = np.where(used, closed, least)
        self._least = least

    def _add_unit(
        self, least: Floats, within: Floats, unit: int, steps: int, usd: float, most: int
    ) -> Floats:
        for count in part_sizes(most, steps, STEPS):
            before = np.maximum(0, np.arange(STEPS + 1) - count * steps)
            first, further = least[:, before], within[:, before]
            new = np.minimum(first, further) + count * usd
            taken: Bools = new < within
            self._layers.append((taken, first <= further, unit, count, count * steps))
            within = np.where(taken, new, within)
        return within

    def counts(self, need: int) -> Ints | None:
        """Units of the cheapest cover of ``need`` steps; None when there is none."""
        zone, at = self._zones, need
        if not np.isfinite(self._least[zone, at]):
            return None
        counts = np.zeros(self._size, dtype=np.int64)
        inside = False
        for chosen, opens, unit, count, change in reversed(self._layers):
            if opens is None:
                inside = bool(chosen[zone, at])
                zone = max(0, zone - change) if inside else zone
            elif inside and chosen[zone, at]:
                counts[unit] += count
                inside = not opens[zone, at]
                at = max(0, at - change)
        return counts
