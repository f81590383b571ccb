"""A service day by day: what may stand all day, what may join by the hour, and the days from peak to peak.

N units of the menu, of which W have a minimum term of days but less than the whole time; K classes of hours
(the same need); J sizes of the largest replica; rates in 512 to 2,048 steps of the peak, fewer where there
are many units, these rounded up and needs too: sums of whole steps reach a need only where they reach its
next whole step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.day_knapsack import SIZE, least_steps, most_left
from optimizer.placement.fleet_menu import EPSILON, Menu, build_menu
from optimizer.placement.hour_covers import alike, zone_states
from optimizer.placement.hour_prices import FIRST, HourClasses, Sharing, hour_classes, sharing
from optimizer.placement.knapsack import NET, OWN, STEP
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.units import FleetCase

DAY_H = 24
LEAST_TERM_H = 48.0
FEWEST_STEPS, MOST_STEPS, STEPS_OVER_ALL = 512, 2048, 1 << 18
MANY = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Hours [B] from one peak to the next, ``count`` times: their classes, lengths, and whether a start may
    be charged in them (``later``). ``first``, ``last``: the whole time begins or ends with them."""

    count: int
    of: Ints
    lengths: Floats
    later: Bools
    first: bool = False
    last: bool = False

    @property
    def hours(self) -> float:
        """How long it is."""
        return float(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Units that stand or join: places in the menu ``at`` [M], and what ``day_knapsack`` takes of them:
    ``units`` [M, 5], and where alike ones begin, ``heads``."""

    at: Ints
    units: Ints
    heads: Ints


@dataclass(frozen=True, slots=True, eq=False)
class DayCase:
    """Everything of a service that does not depend on prices."""

    menu: Menu
    classes: HourClasses
    share: Sharing
    owed: Bools
    termed: Ints
    hourly: Bools
    standing: Group
    joining: Group
    sizes: int
    states: int
    spared: bool
    needs: Ints
    gross: Ints
    blocks: tuple[Block, ...]

    @property
    def hours(self) -> float:
        """The whole time."""
        return float(self.classes.lengths.sum())

    @property
    def steps(self) -> int:
        """The highest need, the spares included."""
        return max(int(self.gross.max()), 1)

    @property
    def least(self) -> Ints:
        """Steps of the smallest unit of each size [J] that may stand; beyond all where there is none."""
        return least_steps(self.standing.units, self.sizes, self.steps)

    @property
    def tops(self) -> Ints:
        """The most steps of each class [K] that a unit leaves that leads, by the hour or all day."""
        lead = self.joining.units if self.spared else self.joining.units[:0]
        return most_left(lead, self.needs, self.gross, self.least)

    @property
    def usual(self) -> Block:
        """The day that most hours are part of."""
        return max(self.blocks, key=lambda block: block.count * block.hours)

    @property
    def part(self) -> Floats:
        """How much of each need [N, K] a unit can meet."""
        steps = np.zeros(len(self.menu))
        steps[self.standing.at] = self.standing.units[:, 0]
        steps[self.joining.at] = self.joining.units[:, 0]
        found: Floats = np.minimum(steps[:, None] / np.maximum(self.needs[None, :], 1), 1.0)
        return found


def build_day_case(problem: Problem, case: FleetCase, first_hour: int, lengths: Floats) -> DayCase:
    """Days of a service due from ``first_hour``, with the ``lengths`` [H] that its hours are held."""
    menu, demand = build_menu(problem, case, float(lengths.sum())), case.demand[first_hour:]
    hours = float(lengths.sum())
    owed = menu.term_h > hours - EPSILON
    termed = ~owed & (menu.term_h >= LEAST_TERM_H)
    grid = min(MOST_STEPS, max(FEWEST_STEPS, STEPS_OVER_ALL // max(1, len(menu))))
    step = max(float(demand.max()), 1e-12) / grid
    needs = np.ceil(demand / step * (1 - EPSILON)).astype(np.int64)
    shortest = float(menu.term_h[menu.term_h > 0].min(initial=hours))
    classes = hour_classes(demand, lengths, needs, shortest)
    share = replace(sharing(menu, classes), bound=owed | termed)
    spare = case.spare * case.units.largest[menu.unit]
    sizes, size = np.unique(spare, return_inverse=True)
    highest = np.array([demand[classes.of == k].max() for k in range(len(classes.hours))])
    gross = np.ceil((highest[:, None] + sizes[None, :]) / step * (1 - EPSILON)).astype(np.int64)
    states = zone_states(menu, case.zones)
    rate = case.units.requests_per_s[menu.unit]
    units = np.stack(
        (
            np.maximum(np.ceil(rate / step * (1 - EPSILON)), 1).astype(np.int64),
            np.ceil((rate - spare) / step - EPSILON).astype(np.int64),
            np.array([states.of(int(zone)) for zone in menu.zone], dtype=np.int64),
            np.minimum(menu.most, MANY),
            size,
        ),
        axis=1,
    )
    standing = _group(units, menu.usd, owed | termed)
    units[:, OWN] = 0
    joining = _group(units, menu.usd, ~owed)
    needs = np.ceil(highest / step * (1 - EPSILON)).astype(np.int64)
    return DayCase(
        menu, classes, share, owed, np.flatnonzero(termed), ~owed & ~termed, standing, joining, len(sizes),
        states.count, case.spare > 0, needs, gross, _blocks(demand, classes),
    )  # fmt: skip


def _group(units: Ints, usd: Floats, kept: Bools) -> Group:
    at = np.flatnonzero(kept)
    key = units[at].T
    order, heads = alike(key[SIZE], key[NET], key[STEP], key[OWN], usd[at])
    return Group(at[order], np.ascontiguousarray(units[at[order]]), heads)


def _blocks(demand: Floats, classes: HourClasses) -> tuple[Block, ...]:
    """Alike days together, with what lies before the first peak and after the last."""
    first = int(np.argmax(demand[:DAY_H]))
    edges = np.unique([0, *range(first, len(demand), DAY_H), len(demand)])
    later = classes.day != FIRST
    counts: Counter[tuple[bytes, ...]] = Counter()
    found: dict[tuple[bytes, ...], Block] = {}
    for begin, end in itertools.pairwise(edges):
        parts = (classes.of[begin:end], classes.lengths[begin:end], later[begin:end])
        ends = bool(begin == 0), bool(end == len(demand))
        key = (*(part.tobytes() for part in parts), bytes(ends))
        counts[key] += 1
        found.setdefault(key, Block(0, *parts, *ends))
    return tuple(replace(block, count=counts[key]) for key, block in found.items())
