"""Least cost of covering a rate with whole units: the exact knapsack under every bound of a fleet.

Rates are cut into ``GRID`` steps, units rounded up and needs down, so that a cost read here is never
above the true one. Result [GRID + 1]: least USD per hour to cover at least that many steps, with at
least one unit in each of ``zones`` zones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimizer.placement.problem import Floats, Ints

GRID = 1024


def least_cover(steps: Ints, cost: Floats, most: Ints, zone: Ints, zones: int) -> Floats:
    """Bounded knapsack over units grouped by zone: at most ``most`` of each.

    cover[z][u]: least cost of rate u with units in at least z zones (z counted up to ``zones``).
    """
    cover = np.full((zones + 1, GRID + 1), np.inf)
    cover[0, 0] = 0.0
    for name in np.unique(zone):
        inside = np.flatnonzero(zone == name)
        without, within = cover, np.full_like(cover, np.inf)
        for unit in inside:
            for count in part_sizes(int(most[unit]), int(steps[unit]), GRID):
                gain, price = count * int(steps[unit]), count * float(cost[unit])
                within = np.minimum(within, _shifted(np.minimum(without, within), gain) + price)
        lifted = np.full_like(cover, np.inf)
        lifted[1:] = within[:-1]
        lifted[-1] = np.minimum(lifted[-1], within[-1])
        cover = np.minimum(without, lifted)
    found: Floats = np.minimum.accumulate(cover[zones][::-1])[::-1]
    return found


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


def _shifted(cover: Floats, gain: int) -> Floats:
    """Cover of u − gain at u; rates above the grid count as its end."""
    moved = np.full_like(cover, np.inf)
    if gain <= GRID:
        moved[:, gain:] = cover[:, : GRID + 1 - gain]
    tail = cover[:, max(0, GRID - gain) :].min(axis=1)
    moved[:, GRID] = np.minimum(moved[:, GRID], tail)
    return moved
