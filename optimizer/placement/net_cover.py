"""The least price of a demand by the hour: whole units, stock, zones, and the spares of the largest replica.

With spares the need depends on the largest replica in the fleet, so the price is the least over what
that may be. Ranges of it are halved where they decide, until single rates do: exact there, below
elsewhere.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.cover import GRID, fractional_cover, least_cover
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.units import FleetCase, Units, only_units

FIRST_RANGES = 8
MAX_COVERS = 40
MANY = 256


def in_steps(rate: Floats, step: float) -> Ints:
    """Rates in whole steps, rounded up, at most the grid."""
    return np.minimum(np.ceil(rate / step * (1 - 1e-9)), GRID).astype(np.int64)


def net_cover(case: FleetCase, step: float, needs: Ints) -> tuple[Floats, tuple[float, ...]]:
    """The price [GRID + 1] of each net rate, and the largest replica's rates that decide at ``needs``."""
    rates = np.unique(case.units.largest)
    if case.spare == 0:
        return gross_cover(case, step, case.zones), (float(rates[-1]),)
    wanted = np.unique(needs)
    groups = [
        (int(g[0]), int(g[-1])) for g in np.array_split(np.arange(len(rates)), min(FIRST_RANGES, len(rates)))
    ]
    covers = {group: _range_cover(case, step, rates, group) for group in groups}
    made = len(covers)
    while True:
        active = _deciding(covers, wanted)
        wide = [(low, high) for low, high in active if low < high]
        if not wide or made >= MAX_COVERS:
            break
        for low, high in wide:
            middle = (low + high) // 2
            del covers[low, high]
            for half in ((low, middle), (middle + 1, high)):
                covers[half] = _range_cover(case, step, rates, half)
                made += 1
    cover: Floats = np.min(list(covers.values()), axis=0)
    return cover, tuple(sorted({float(rates[high]) for _, high in active}))


def _deciding(covers: dict[tuple[int, int], Floats], wanted: Ints) -> list[tuple[int, int]]:
    """Ranges that are the cheapest at some wanted rate, one for each."""
    groups = sorted(covers)
    prices = np.array([covers[group][wanted] for group in groups])
    return [groups[i] for i in np.unique(prices.argmin(axis=0))]


def _range_cover(case: FleetCase, step: float, rates: Floats, group: tuple[int, int]) -> Floats:
    """Least price when the largest replica is in a range: its highest allowed, its lowest set aside."""
    low, high = float(rates[group[0]]), float(rates[group[1]])
    own = (GRID * step + case.spare * high) / GRID
    gross = gross_cover(only_units(case, case.units.largest <= high), own, case.zones)
    needs = np.floor((np.arange(GRID + 1) * step + case.spare * low) / own * (1 - 1e-9)).astype(np.int64)
    cover: Floats = gross[np.minimum(needs, GRID)]
    return cover


def gross_cover(case: FleetCase, step: float, zones: int) -> Floats:
    """Least price of each rate, spares not counted."""
    units = case.units
    best = _best_of_offers(units)
    usd = units.usd_per_hour + units.surcharge_usd_per_hour
    keep = best[_useful(units, best, usd, step, zones)] if len(best) > MANY else best
    whole = least_cover(
        in_steps(units.requests_per_s[keep], step), usd[keep], units.most[keep], units.zone[keep], zones
    )
    parts = fractional_cover(units.requests_per_s[best], usd[best], units.most[best], step)
    found: Floats = np.maximum(whole, parts)
    return found


def _best_of_offers(units: Units) -> Ints:
    """On each offer the fastest configuration of each node count: the others cost as much and bring less."""
    order = np.lexsort((-units.requests_per_s, units.nodes, units.offer))
    offer, nodes = units.offer[order], units.nodes[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (offer[1:] != offer[:-1]) | (nodes[1:] != nodes[:-1])
    best: Ints = np.sort(order[first])
    return best


def _useful(units: Units, keep: Ints, hourly: Floats, step: float, zones: int) -> Ints:
    """Positions in ``keep`` that some cheapest cover may need.

    Within a kind the cheapest, until they could serve everything alone from enough zones; and no kind
    that another such kind beats in rate and price even with its dearest kept unit.
    """
    kinds: list[tuple[int, float, float, list[int]]] = []
    for kind in np.unique(units.kind[keep]):
        inside = np.flatnonzero(units.kind[keep] == kind)
        inside = inside[np.argsort(hourly[keep[inside]], kind="stable")]
        size = int(in_steps(units.requests_per_s[keep[inside[:1]]], step)[0])
        chosen, alone = _enough(units, keep, inside, GRID // max(1, size) + 2 + zones, zones)
        dearest = float(hourly[keep[chosen[-1]]]) if alone else np.inf
        kinds.append((size, float(hourly[keep[chosen[0]]]), dearest, chosen))
    kept = [row for index, row in enumerate(kinds) if not _beaten(index, kinds)]
    return np.array(sorted(position for row in kept for position in row[3]), dtype=np.int64)


def _enough(units: Units, keep: Ints, inside: Ints, enough: int, zones: int) -> tuple[list[int], bool]:
    chosen: list[int] = []
    seen: set[int] = set()
    total = 0
    for position in inside:
        chosen.append(int(position))
        total += int(units.most[keep[position]])
        seen.add(int(units.zone[keep[position]]))
        if total >= enough and len(seen) >= zones:
            return chosen, True
    return chosen, False


def _beaten(index: int, kinds: list[tuple[int, float, float, list[int]]]) -> bool:
    size, cheapest = kinds[index][:2]
    for other, (rate, _, dearest, _) in enumerate(kinds):
        if other != index and rate >= size and dearest <= cheapest:
            same = rate == size and kinds[index][2] <= kinds[other][1]
            if not same or other < index:
                return True
    return False
