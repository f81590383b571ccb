"""The cheapest cover of one hour's demand with any number of pools: a lower bound, and covers close to it.

Covering an hour is a multiple-choice knapsack: one level of each pool, whose rates sum to at least the need.
Rates are counted in ``STEPS`` steps of the need. Rounding up gives a lower bound, rounding down a real cover.
An LP relaxation first eliminates pools whose reduced cost exceeds the gap to a known cost.

The loss of a place limits how much of one place's rate counts. Let N be the need, D the demand and s the
share that must remain after the loss of any place. The others carry at least s·D, so a place's rate beyond N
− s·D is redundant. O owners (a pool, whatever is committed of it), R levels, S steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from optimizer.placement.fleets.pattern_loops import (
    add_pools,
    add_pools_by_place,
    join_parts,
    relaxed_cover,
    spared_cover,
)
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.problem.problem import Bools, Floats, Ints

STEPS = 2048
STEPS_OF_PLACES = 1024
MOST_BUILT = 3
"""For how many rates of the largest replica a cover is built."""
FURTHER_PLACES = 2
"""How many places beyond the required number are tried when covers are built."""
EPSILON = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class PoolPrices:
    """The pools in one hour: USD ``usd`` [O, R] of each level (inf above ``most`` [O]), ``rate`` and
    ``place`` [O].

    ``number`` [O] is each pool's index among all.
    """

    usd: Floats
    rate: Floats
    most: Ints
    place: Ints
    number: Ints

    def take(self, at: Ints) -> PoolPrices:
        """The pools at the indices ``at``."""
        return PoolPrices(self.usd[at], self.rate[at], self.most[at], self.place[at], self.number[at])

    def idle_usd(self) -> float:
        """Least cost of an hour without demand (negative where a dual price rewards holding nodes)."""
        return float(np.minimum(self.usd.min(axis=1, initial=0.0), 0.0).sum())

    def idle_levels(self) -> Ints:
        """The levels [O] of such an hour."""
        return np.where(self.usd.min(axis=1, initial=0.0) < 0, np.argmin(self.usd, axis=1), 0)

    def up_to(self, last: int) -> PoolPrices:
        """The pools whose rate is at most that of pool ``last``; pools are in ascending order of rate."""
        return self.take(np.arange(np.searchsorted(self.rate, self.rate[last], side="right")))

    def of_all(self, levels: Ints, whole: PoolPrices) -> Ints:
        """Converts levels of these pools to levels of ``whole``, from which they were taken; its numbers
        ascend.
        """
        found = np.zeros(len(whole.rate), dtype=np.int64)
        found[np.searchsorted(whole.number, self.number)] = levels
        return found

    def steps(self, step: float, *, up: bool) -> Ints:
        """Rates of the levels [O, R] in steps, rounded up or down."""
        exact = self.rate[:, None] * np.arange(self.usd.shape[1])[None, :] / step
        rounded = np.ceil(exact - EPSILON) if up else np.floor(exact + EPSILON)
        return rounded.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class HourCovers:
    """Covers of single hours under the rules of a fleet."""

    rules: FleetRules

    def bound_usd(self, prices: PoolPrices, demand: float, enough_usd: float = np.inf) -> float:
        """Lower bound on every cover of ``demand`` requests/s, capped at ``enough_usd``."""
        return self.bound(prices, demand, enough_usd)[0]

    def bound(
        self, prices: PoolPrices, demand: float, enough_usd: float = np.inf
    ) -> tuple[float, Ints | None]:
        """The same bound with levels [O] of that cost; None if the bound is ``enough_usd``.

        The levels are a cover if rates are rounded up; they may break other rules.
        """
        if demand <= 0:
            return prices.idle_usd(), prices.idle_levels()
        near, needs = self._near(prices, demand, enough_usd)
        step = float(needs.max(initial=demand)) / STEPS
        tables = _spared(near, near.steps(step, up=True), np.floor(needs / step + EPSILON).astype(np.int64))
        least, found = enough_usd, None
        for usd, last in tables.by_largest(near.rate):
            if usd >= least:
                break
            if self.rules.places > 1:
                below = near.up_to(last)
                apart, levels = self._in_places(below, demand, float(needs[last]))
                if apart > usd:
                    if apart < least:
                        least, found = apart, below.of_all(levels, prices)
                    continue
            least, found = usd, near.of_all(tables.levels(last), prices)
        return least, found

    def covers(self, prices: PoolPrices, demand: float, enough_usd: float = np.inf) -> Iterator[Ints]:
        """Covers [O] of ``demand`` requests/s that cost nearly the least; some may break a rule."""
        if demand <= 0:
            yield np.zeros(len(prices.rate), dtype=np.int64)
            return
        near, needs = self._near(prices, demand, enough_usd)
        step = float(needs.max(initial=demand)) / STEPS
        for up in (True, False):
            rounded = np.floor(needs / step + EPSILON) if up else np.ceil(needs / step - EPSILON)
            tables = _spared(near, near.steps(step, up=up), rounded.astype(np.int64))
            largest = (one for one in tables.by_largest(near.rate) if self._has_places(near.up_to(one[1])))
            for usd, last in islice(largest, MOST_BUILT):
                if usd < enough_usd:
                    yield near.of_all(tables.levels(last), prices)
                    if not up and self.rules.places > 1:
                        below = near.up_to(last)
                        for levels in self._built_in_places(below, demand, float(needs[last])):
                            yield below.of_all(levels, prices)

    def _has_places(self, prices: PoolPrices) -> bool:
        """Whether the pools stand in as many places as the rules require."""
        return len(np.unique(prices.place)) >= self.rules.places

    def _near(self, prices: PoolPrices, demand: float, enough_usd: float) -> tuple[PoolPrices, Floats]:
        """Pools [n] that a cover below ``enough_usd`` may use, by ascending rate, and the need if each is the
        largest.
        """
        reduced = np.zeros(len(prices.rate))
        least = relaxed_cover(prices.usd, prices.rate, prices.most, demand, reduced)
        used = np.minimum(reduced, 0.0)
        near = np.flatnonzero((prices.most > 0) & (least - used + reduced < enough_usd))
        near = near[np.argsort(prices.rate[near], kind="stable")]
        return prices.take(near), demand + self.rules.spare * prices.rate[near]

    def _in_places(self, near: PoolPrices, demand: float, need: float) -> tuple[float, Ints]:
        """Lower bound on covers of ``need`` requests/s in the required number of places, and levels [n] of
        that cost.
        """
        rules, size, levels = self.rules, STEPS_OF_PLACES, np.zeros(len(near.rate), dtype=np.int64)
        step = need / size
        steps = near.steps(step, up=True)
        loss = rules.loss_share * demand
        # Even one replica counts for at least one step.
        part = max(1, int(np.floor(rules.least_share * demand / step + EPSILON)))
        each = PlaceTables.build(near, steps, size)
        if len(each.usd) < rules.places:
            return np.inf, levels
        nearest = np.argsort(each.usd[:, part], kind="stable")[: rules.places]
        least, taken = float(each.usd[nearest, part].sum()), [(each.of(p), part) for p in nearest]
        if loss > 0:
            # The place whose limit is enforced: the one that is cheapest without limits.
            watched = int(np.argmin(each.usd[:, size]))
            most = int(np.ceil((need - loss) / step - EPSILON))
            there = _table(near, steps, each.place != watched, size)
            both = each.usd[watched, : most + 1] + there[0][size - np.arange(most + 1)]
            here = int(np.argmin(both))
            if both[here] > least:
                least, taken = float(both[here]), [(each.of(watched), here), (there, size - here)]
        if np.isfinite(least):
            for (_, choice, rows), at in taken:
                _backtrack(choice, steps[rows], at, rows, levels)
        return least, levels

    def _built_in_places(self, near: PoolPrices, demand: float, need: float) -> Iterator[Ints]:
        """Covers [n] in exactly the required number of places, each of which carries its share."""
        rules, size = self.rules, STEPS_OF_PLACES // 2
        step = need / size
        steps = near.steps(step, up=False)
        part = max(1, int(np.ceil(rules.least_share * demand / step - EPSILON)))
        most = max(part, int(np.floor((need - rules.loss_share * demand) / step + EPSILON)))
        each = PlaceTables.build(near, steps, size)
        order = (np.argsort(each.usd[:, at], kind="stable") for at in (max(part, size // rules.places), part))
        by_half, by_part = (near[: rules.places + FURTHER_PLACES].tolist() for near in order)
        nearest = list(dict.fromkeys((*by_half, *by_part[: rules.places])))
        for chosen in combinations(nearest, rules.places):
            value, parts = np.append(0.0, np.full(size, np.inf)), []
            for place in chosen:
                of_this = np.zeros(size + 1, dtype=np.int64)
                value = join_parts(value, each.usd[place], part, most, of_this)
                parts.append(of_this)
            if not np.isfinite(value[size]):
                continue
            levels, rest = np.zeros(len(near.rate), dtype=np.int64), size
            for place, of_this in zip(reversed(chosen), reversed(parts), strict=True):
                mine = int(of_this[rest])
                _, choice, rows = each.of(place)
                _backtrack(choice, steps[rows], mine, rows, levels)
                rest = max(0, rest - mine)
            yield levels


Table = tuple[Floats, Ints, Ints]
"""Least USD [S + 1] by steps, the chosen level [n, S + 1] of each pool, and the indices of the pools [n]."""


@dataclass(frozen=True, slots=True, eq=False)
class PlaceTables:
    """Least USD ``usd`` [P, S + 1] by steps within each place.

    ``choice`` [n, S + 1]: level of each pool; ``place`` [n]: index of each pool's place.
    """

    usd: Floats
    choice: Ints
    place: Ints

    @classmethod
    def build(cls, near: PoolPrices, steps: Ints, size: int) -> PlaceTables:
        """Fills the tables by dynamic programming."""
        places, place = np.unique(near.place, return_inverse=True)
        usd = np.full((len(places), size + 1), np.inf)
        usd[:, 0] = 0.0
        choice = np.zeros((len(near.rate), size + 1), dtype=np.int64)
        add_pools_by_place(usd, near.usd, steps, near.most, place.reshape(-1), choice)
        return cls(usd, choice, place.reshape(-1))

    def of(self, place: int) -> Table:
        """The table of one place."""
        rows = np.flatnonzero(self.place == place)
        return self.usd[place], self.choice[rows], rows


@dataclass(frozen=True, slots=True, eq=False)
class SparedTables:
    """The cheapest cover [n] for each choice of the last used pool, in the order of rates: its cost and that
    pool's level.

    ``choice`` [n, S + 1] holds the levels of the pools before it, ``rest`` [n] the steps that these serve.
    """

    usd: Floats
    level: Ints
    rest: Ints
    choice: Ints
    steps: Ints

    def by_largest(self, rate: Floats) -> list[tuple[float, int]]:
        """The cheapest cover for each distinct largest rate, cheapest first: its USD and its last used
        pool.
        """
        if not len(rate):
            return []
        first = np.flatnonzero(np.append(True, np.diff(rate) > 0))
        best = [
            int(begin + np.argmin(self.usd[begin:end]))
            for begin, end in zip(first, [*first[1:], len(rate)], strict=True)
        ]
        return sorted((float(self.usd[at]), at) for at in best if np.isfinite(self.usd[at]))

    def levels(self, last: int) -> Ints:
        """The levels [n] of the cover whose last used pool is ``last``."""
        found = np.zeros(len(self.usd), dtype=np.int64)
        rows = np.arange(last)
        _backtrack(self.choice[:last], self.steps[:last], int(self.rest[last]), rows, found)
        found[last] = self.level[last]
        return found


def _spared(near: PoolPrices, steps: Ints, needs: Ints) -> SparedTables:
    """Covers of ``needs`` [n] steps in which each pool in turn is the largest that is used."""
    count = len(near.rate)
    usd, level = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    choice = np.zeros((count, int(needs.max(initial=0)) + 1), dtype=np.int64)
    spared_cover(near.usd, steps, near.most, needs, usd, level, choice)
    rest = np.maximum(needs - steps[np.arange(count), level], 0)
    return SparedTables(usd, level, rest, choice, steps)


def _table(prices: PoolPrices, steps: Ints, mask: Bools, size: int) -> Table:
    """Least USD [size + 1] by steps of the pools in ``mask``, with the chosen levels and the pools'
    indices.
    """
    rows = np.flatnonzero(mask)
    value = np.append(0.0, np.full(size, np.inf))
    choice = np.zeros((len(rows), size + 1), dtype=np.int64)
    add_pools(value, prices.usd[rows], steps[rows], prices.most[rows], choice)
    return value, choice, rows


def _backtrack(choice: Ints, steps: Ints, at: int, rows: Ints, levels: Ints) -> None:
    """Writes into ``levels`` the levels of the pools ``rows`` [n] that serve ``at`` steps."""
    for row in range(len(rows) - 1, -1, -1):
        level = int(choice[row, at])
        levels[rows[row]] = level
        at = max(0, at - int(steps[row, level]))
