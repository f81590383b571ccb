"""The least that a fleet costs from a known start, and the bases that come near it.

A fleet is a *base*, held throughout, and a *rest* by the hour. The base is an exact knapsack by rate, zones
and largest replica; beside each amount of it the rest costs at least its knapsack in each hour, at prices
that no holding pays more than (``fleet_shapes``): one start for each daily peak, and minimum terms that a
peak alone must pay. The bound is the least over the bases of the best over the shapes.
P pairs of (prices, demand) with the hours that they stand for, X steps of a base's price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.cover import GRID
from optimizer.placement.fleet_menu import EPSILON, Kitchen, Menu, build_kitchen
from optimizer.placement.fleet_shapes import Shape, flat_shape, peaked_shape, thresholds
from optimizer.placement.fleet_tables import EMPTY, SizedTables, sized_tables, zone_states
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import FleetCase

MAX_THRESHOLDS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """Amount of a base: the size of its largest replica (position, −1: no base), zone state, net steps."""

    bound_usd: float
    size: int
    state: int
    steps: int
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class FleetLayers:
    """``bases`` from the least bound on; ``tables`` of the base's units."""

    kitchen: Kitchen
    bases: tuple[Base, ...]
    tables: SizedTables

    @property
    def least_usd(self) -> float:
        """No fleet costs less."""
        return self.bases[0].bound_usd if self.bases else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class _Hours:
    """Prices [N, Q] of the rest, and [P] pairs of prices and needs with their hours; ``first`` pair of
    each system of prices, of which any one is valid for the whole time."""

    usd: Floats
    prices: Ints
    needs: Ints
    weights: Floats
    first: Ints


def build_layers(problem: Problem, case: FleetCase, first_hour: int, lengths: Floats) -> FleetLayers:
    """Layers of a service due from ``first_hour``, with the ``lengths`` [H] that its hours are held."""
    kitchen = build_kitchen(problem, case, float(lengths.sum()))
    states = zone_states((kitchen.base, kitchen.rest), case.zones)
    whole = sized_tables(kitchen.base, kitchen.base.whole_usd[:, None], states)
    hours = _hours(kitchen, case.demand[first_hour:], lengths)
    rest = sized_tables(kitchen.rest, hours.usd, states)
    found = [*_without_base(rest, hours), *_with_base(kitchen, case.spare, whole, rest, hours)]
    return FleetLayers(kitchen, tuple(sorted(found, key=lambda b: (b.bound_usd, -b.steps))), whole)


def _hours(kitchen: Kitchen, demand: Floats, lengths: Floats) -> _Hours:
    rest, spared = kitchen.rest, bool((kitchen.base.size > 0).any())
    needs = np.clip(np.floor(demand / kitchen.step_rate * (1 - EPSILON)), 0 if spared else 1, GRID)
    terms = tuple(sorted({float(t) for t in rest.term_h if t > 0}))
    shapes = [flat_shape(len(demand), terms)]
    if terms or (rest.lead_h > 0).any():
        shapes += [
            peaked_shape(demand > level, lengths, terms) for level in thresholds(demand, MAX_THRESHOLDS)
        ]
    usd, prices, pair_needs, weights, first = [], [], [], [], []
    columns = 0
    for shape in shapes:
        regimes, of_hour = np.unique(
            np.stack((shape.start, *(shape.term[t] for t in terms))), axis=1, return_inverse=True
        )
        pairs, inverse = np.unique(np.stack((of_hour, needs)), axis=1, return_inverse=True)
        first.append(sum(len(p) for p in prices))
        prices.append(pairs[0].astype(np.int64) + columns)
        pair_needs.append(pairs[1].astype(np.int64))
        weights.append(np.bincount(inverse, weights=lengths))
        usd.append(_priced(rest, regimes, terms, shape))
        columns += regimes.shape[1]
    return _Hours(
        np.concatenate(usd, axis=1),
        np.concatenate(prices),
        np.concatenate(pair_needs),
        np.concatenate(weights),
        np.array(first),
    )


def _priced(rest: Menu, regimes: Floats, terms: Sequence[float], shape: Shape) -> Floats:
    """USD an hour [N, Q] of each unit in each regime of a shape."""
    most_off = float(-shape.start.min(initial=0.0))
    lead = np.minimum(rest.lead_h, 1 / most_off) if most_off > 0 else rest.lead_h
    factor = 1 + lead[:, None] * regimes[0][None, :]
    for place, term in enumerate(terms):
        factor[rest.term_h == term] = regimes[1 + place]
    usd: Floats = rest.usd[:, None] * np.maximum(factor, 0.0) + rest.surcharge_usd[:, None]
    return usd


def _without_base(rest: SizedTables, hours: _Hours) -> list[Base]:
    if not rest.leading:
        return []
    done = rest.states.done
    price = np.min([table[done] for table in rest.leading], axis=0)
    usd = float(np.add.reduceat(price[hours.prices, hours.needs] * hours.weights, hours.first).max())
    return [Base(usd, -1, EMPTY, 0, 0.0)] if np.isfinite(usd) else []


def _with_base(
    kitchen: Kitchen, spare: int, whole: SizedTables, rest: SizedTables, hours: _Hours
) -> list[Base]:
    found: list[Base] = []
    for held in range(whole.states.count):
        enough = whole.states.completing(held)
        within = [table[enough].min(axis=0) for table in rest.within]
        larger = _suffix_least([table[enough].min(axis=0) for table in rest.leading])
        for place, size in enumerate(whole.sizes):
            steps, usd = _amounts(whole.leading[place][held, 0])
            if not len(steps):
                continue
            at = int(np.searchsorted(rest.sizes, size, side="right"))
            spared = int(np.ceil(spare * size / kitchen.step_rate))
            hourly = within[at][hours.prices[None, :], np.maximum(0, hours.needs[None, :] - steps[:, None])]
            if at < len(larger):
                gross = np.maximum(0, hours.needs[None, :] - steps[:, None] - spared)
                hourly = np.minimum(hourly, larger[at][hours.prices[None, :], gross])
            totals = np.add.reduceat(hourly * hours.weights, hours.first, axis=1).max(axis=1) + usd
            found.extend(
                Base(float(total), place, held, int(step), float(owed))
                for total, step, owed in zip(totals, steps, usd, strict=True)
                if np.isfinite(total)
            )
    return found


def _suffix_least(tables: Sequence[Floats]) -> list[Floats]:
    """Least over each table and those after it."""
    found: list[Floats] = []
    for table in reversed(tables):
        found.append(np.minimum(table, found[-1]) if found else table)
    return found[::-1]


def _amounts(price: Floats) -> tuple[Ints, Floats]:
    """For each price [X] the highest rate that it buys."""
    rises = np.append(np.diff(price) > EPSILON, True)
    steps = np.flatnonzero(rises & np.isfinite(price))
    return steps, price[steps]
