"""Least cost of covering a rate with whole units: the exact knapsack under every bound of a fleet.

Rates are cut into ``GRID`` steps, units rounded up and needs down, so that a cost read here is never
above the true one. Result [GRID + 1]: least USD per hour to cover at least that many steps, with at
least one unit in each of ``zones`` zones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import fill, lower

GRID = 1024


def least_cover(steps: Ints, cost: Floats, most: Ints, zone: Ints, zones: int) -> Floats:
    """Bounded knapsack over units grouped by zone: at most ``most`` of each."""
    order = np.lexsort((cost / np.maximum(steps, 1), zone))
    names = np.ascontiguousarray(zone[order])
    cover = np.full((zones + 1, GRID + 1), np.inf)
    cover[0, 0] = 0.0
    return _least_cover(steps[order], cost[order].astype(np.float64), most[order], names, cover)


@compiled
def _least_cover(steps: Ints, cost: Floats, most: Ints, zone: Ints, cover: Floats) -> Floats:
    """cover[z, u]: least cost of at least rate u with units in at least z zones, of at most its last."""
    zones, within, source = len(cover) - 1, np.empty_like(cover), np.empty(2 * cover.shape[1])
    first = 0
    while first < len(zone):
        last = first
        for count in range(zones + 1):
            fill(within[count], np.inf)
        while last < len(zone) and zone[last] == zone[first]:
            _allow(cover, within, source, steps[last], cost[last], most[last])
            last += 1
        for count in range(zones, -1, -1):
            lower(cover[min(count + 1, zones)], within[count], 0.0)
        first = last
    found: Floats = cover[zones]
    return found


@compiled
def _allow(without: Floats, within: Floats, source: Floats, steps: int, cost: float, most: int) -> None:
    """Lets a unit join, in parts that sum to any number of it, until a part makes nothing cheaper."""
    grid = without.shape[1] - 1
    left, part = min(most, grid // max(1, steps) + 2), 1
    while left > 0:
        count = min(part, left)
        gain, better = min(count * steps, grid), 0
        for number in range(len(without)):
            before = source[grid : 2 * grid + 1]
            fill(before, np.inf)
            lower(before, without[number], 0.0)
            lower(before, within[number], 0.0)
            fill(source[grid - gain : grid], source[grid])
            better += lower(within[number], source[grid - gain :], count * cost)
        if better == 0:
            break
        left -= count
        part *= 2


def fractional_cover(rate: Floats, cost: Floats, most: Ints, step: float) -> Floats:
    """Least USD [GRID + 1] for each rate in ``step`` when units may be taken in part: not above the truth.

    It lies above the knapsack where units are so small beside the need that rounding them up to steps
    gives more away than taking them in part.
    """
    order = np.argsort(cost / rate, kind="stable")
    rates = np.concatenate(([0.0], np.cumsum((rate * most)[order])))
    costs = np.concatenate(([0.0], np.cumsum((cost * most)[order])))
    found: Floats = np.interp(np.arange(GRID + 1) * step, rates, costs) * (1 - 1e-9)
    return found


def part_sizes(most: int, steps: int, grid: int) -> Iterator[int]:
    """Counts that sum to any number up to the useful most (binary splitting)."""
    left = min(most, grid // max(1, steps) + 2)
    part = 1
    while left > 0:
        take = min(part, left)
        yield take
        left -= take
        part *= 2
