"""The cheapest fleet on any number of pools: patterns of single hours, joined by a shortest path.

A pattern is one level for each pool. The first patterns are covers of single hours (``covers``) at the dual
prices of a trough, a slope and a peak, and the fleets on few pools. Then come neighbours of the patterns on
the shortest path over all hours, whose edges cost the starts between patterns.

The lower bound is the sum of hourly covers at the best dual prices of starts (``start_duals``). Commitments
are owed in full: each hour is charged a part of them, with weights that grow with demand as far as that
raises the bound. Offers that end before the horizon count as pools of their own, and for the bound as if they
stayed. O owners (a pool, whatever is committed of it), R levels, K patterns, C classes, H hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from optimizer.placement.fleets.covers import HourCovers, PoolPrices
from optimizer.placement.fleets.joint_pools import phased_usd
from optimizer.placement.fleets.pattern_loops import cheapest_through, meeting, start_costs_between
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.fleets.rules import MOST_POOLS
from optimizer.placement.fleets.set_costs import Openings, PoolFleet, fleet_usd, linear
from optimizer.placement.fleets.sets import FEW_POOLS, PoolSearch, SetSearch
from optimizer.placement.fleets.start_duals import StartDuals
from optimizer.placement.problem.problem import NEVER_GONE, Bools, Floats, Ints

FEW_TOLERANCE = 0.05
"""The search on few pools only provides a start here, so it may stop early."""
MOST_PATTERNS = 400
MOST_ROUNDS = 8
MOST_BASES = 3
MOST_BEGUN = 12
NEAR_POOLS = 40
SLACK = 0.03
"""Neighbours are kept that cost at most this share more than the cheapest pattern of their hour."""
COMMITMENT_POWERS = (0.0, 0.5, 1.0, 2.0, 4.0)
TINY_USD = 1e-9
SHORTFALL = 1e-6
"""Share by which rounding may raise the sum of the bound."""


@dataclass(slots=True, eq=False)
class PatternSearch(PoolSearch):
    """State of a search over patterns: how many units of each pool one hour has."""

    phased: Floats = field(init=False)
    duals: StartDuals = field(init=False)
    first: Ints = field(init=False)
    patterns: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.parts = _apart(self.parts)
        self.phased = phased_usd(self.parts)
        self.first = np.unique(self.parts.owner, return_index=True)[1].astype(np.int64)
        self.patterns = np.zeros((0, len(self.first)), dtype=np.int64)
        self.duals = StartDuals.begin(self.parts, self.classes, self.first, HourCovers(self.rules))

    @property
    def owed(self) -> bool:
        """Whether a fleet may use commitments, which are paid however long it serves."""
        return bool((self.parts.usd[:, 0] > 0).any())

    @property
    def least_usd(self) -> float:
        """A lower bound that is valid before the search: 0."""
        return 0.0

    def run(self) -> None:
        """Finds a cheap fleet; sets ``bound_usd``, a lower bound on every fleet under the rules."""
        if not len(self.parts):
            self.bound_usd = np.inf
            return
        few = self._few_pools()
        few.run()
        begun = self._taken_from(few)
        if self.best is not None:
            self.duals, covers = self.duals.ascend(self.best.usd, self.out_of_time)
            self._add(np.array(covers).reshape(-1, len(self.first)))
        tried: set[tuple[int, ...]] = set()
        for rows, within in self._bases(begun):
            key = (*rows.tolist(), *np.flatnonzero(within).tolist())
            if key not in tried and len(tried) < MOST_BASES:
                tried.add(key)
                self._improve(rows, within)
        self.bound_usd = self._bound()

    def proven_usd(self, fleet_usd: float) -> float:
        """A lower bound on every fleet after further subgradient steps towards ``fleet_usd``, the cost of a
        known one.
        """
        self.duals, _ = self.duals.ascend(fleet_usd, self.out_of_time)
        return min(self._bound(), fleet_usd)

    def begin(self) -> None:
        """Finds a cheap fleet on few pools without proving anything."""
        few = self._few_pools()
        few.begin()
        self._taken_from(few)

    def _taken_from(self, few: SetSearch) -> list[PoolFleet]:
        """Adopts the cheapest fleets of a search on few pools."""
        cheapest = sorted(few.fleets, key=lambda fleet: fleet.usd)[:MOST_BEGUN]
        found = [self._renumbered(few, fleet) for fleet in cheapest]
        return [self._offer(fleet.pools, fleet.levels) for fleet in found]

    def _few_pools(self) -> SetSearch:
        """The initial search, on few pools."""
        rules = replace(self.rules, pools=min(self.rules.pools, MOST_POOLS))
        tolerance = FEW_TOLERANCE if len(self.parts) > FEW_POOLS else self.tolerance
        return SetSearch(
            self.parts, self.classes, rules, tolerance, self.out_of_time, self.openings, self.units
        )

    def fewer(self) -> list[PoolFleet]:
        """Nothing, since this search already starts from fleets on few pools."""
        return []

    def between(self, openings: Openings) -> list[PoolFleet]:
        """The cheapest fleets if other workloads leave only ``openings``."""
        if self.best is None:
            return []
        best, fleets, rows = self.best, list(self.fleets), self._rows_of(self.best)
        self.openings = openings
        self._improve(rows, self._within(best, rows))
        found = self.fleets[len(fleets) :]
        self.openings, self.best, self.fleets = None, best, fleets
        return found

    def hourly_usd(self) -> Floats:
        """Lower bound of each hour [H] on any pools, without starts."""
        covers, demand = HourCovers(replace(self.rules, places=1)), self.classes.levels
        prices = self.duals.without_starts()
        each: Floats = np.array([covers.bound_usd(prices, float(one)) for one in demand]) * (1 - SHORTFALL)
        return each[self.classes.demand_of]

    def _bound(self) -> float:
        """A lower bound on every fleet, for each choice of kinds of GPU."""
        top = np.inf if self.best is None else self.best.usd
        nothing = np.zeros(len(self.duals.slots.demand))
        powers = COMMITMENT_POWERS if (self.parts.usd[:, 0] > 0).any() else COMMITMENT_POWERS[:1]
        ways, each = list[StartDuals](), list[Floats]()
        for power in powers:
            if ways and self.out_of_time():
                break
            ways.append(self.duals.charged(power))
            each.append(ways[-1].bounds_usd(None, nothing, np.inf))
        at = int(np.argmax([usd.sum() for usd in each]))
        least = float(each[at].sum())
        if self.rules.gpus < len(np.unique(self.parts.gpu)) and np.isfinite(least):
            any_kinds, least = least, top
            for chosen in self._of_kinds():
                if self.out_of_time():
                    least = min(least, any_kinds)
                    break
                least = min(least, float(ways[at].bounds_usd(chosen, each[at], least).sum()))
        return min(top, least * (1 - SHORTFALL))

    def _of_kinds(self) -> Iterator[Bools]:
        """Masks of owners [O] for each choice of as many kinds of GPU as the rules allow."""
        gpu = self.parts.gpu[self.first]
        kinds = np.unique(gpu).tolist()
        for chosen in combinations(kinds, min(self.rules.gpus, len(kinds))):
            yield np.isin(gpu, chosen)

    def _bases(self, begun: list[PoolFleet]) -> Iterator[tuple[Ints, Bools]]:
        """Rows [O] with the commitments of known fleets, and the owners [O] on which to search.

        If few pools carry no fleet, each choice of kinds of GPU is tried instead, cheapest at the peak first.
        """
        for fleet in begun:
            rows = self._rows_of(fleet)
            yield rows, self._within(fleet, rows)
        if not begun:
            yield from ((self.first, chosen) for _, chosen in sorted(self._peaks(), key=lambda one: one[0]))

    def _peaks(self) -> Iterator[tuple[float, Bools]]:
        """Lower bound of the hour with most demand for each choice of kinds that can carry it."""
        covers, prices = HourCovers(self.rules), self.duals.without_starts()
        for chosen in self._of_kinds():
            usd = covers.bound_usd(prices.take(np.flatnonzero(chosen)), float(self.classes.levels.max()))
            if np.isfinite(usd):
                yield usd, chosen

    def _improve(self, rows: Ints, within: Bools) -> None:
        """Searches fleets with given commitments: covers of hours first, then neighbours of the patterns in
        use.
        """
        self._add(self._covers(rows, within))
        best = self._walk(rows, within)
        for _ in range(MOST_ROUNDS):
            if best is None or self.out_of_time():
                break
            self._add(self._neighbours(best, rows, within))
            better = self._walk(rows, within)
            if better is None or better.usd >= best.usd * (1 - 1e-6):
                break
            best = better
        if best is not None and len(best.pools) > self.rules.pools:
            self._on_fewer(best, rows)

    def _covers(self, rows: Ints, within: Bools) -> Ints:
        """Covers [K, O] of each class at the prices of its phase, and the patterns that use all that is there
        in each era.
        """
        table, classes, covers = self.parts, self.classes, HourCovers(self.rules)
        eras = [within & (table.until_s[rows] > begin_s) for begin_s in classes.era_s]
        known = [self._costs(self.patterns, rows, there) for there in eras]
        found = [np.where(there, table.most[rows], 0) for there in eras]
        for c in range(len(classes.demand)):
            era = int(classes.era[classes.dual[c]])
            most = found[era]
            usd = self.phased[classes.phase[classes.dual[c]], rows]
            prices = PoolPrices(
                usd - usd[:, :1], table.rate[rows], most, table.place[rows], np.arange(len(rows))
            )
            at = int(np.searchsorted(classes.levels, classes.demand[c]))
            enough = float(known[era][at].min(initial=np.inf)) - float(table.usd[rows[within], 0].sum())
            found += covers.covers(prices, float(classes.demand[c]), enough * (1 + SLACK))
        return np.array(found)

    def _neighbours(self, fleet: PoolFleet, rows: Ints, within: Bools) -> Ints:
        """Neighbours [K, O] of a fleet's patterns: one bundle more or less, or another pool in its place."""
        table = self.parts
        rate, most = table.rate[rows], np.where(within, table.most[rows], 0)
        each = (table.usd[rows, 1] - table.usd[rows, 0]) / rate if table.usd.shape[1] > 1 else rate
        levels = self._by_owner(fleet)
        near = np.argsort(np.where(most > 0, each, np.inf), kind="stable")[:NEAR_POOLS]
        near = np.unique(np.append(near, np.flatnonzero(levels.any(axis=0))))
        near = near[most[near] > 0]
        found = []
        for pattern in np.unique(levels, axis=0):
            for owner in np.flatnonzero(pattern):
                for given in {1, int(pattern[owner])}:
                    base = pattern.copy()
                    base[owner] -= given
                    found.append(base)
                    for other in near[near != owner]:
                        share = given * rate[owner] / rate[other]
                        for count in {int(np.floor(share)), int(np.ceil(share))}:
                            if 0 < count <= most[other] - base[other]:
                                found.append(base.copy())
                                found[-1][other] += count
            for other in near:
                if pattern[other] < most[other]:
                    found.append(pattern.copy())
                    found[-1][other] += 1
        patterns = np.unique(np.array(found).reshape(-1, len(rows)), axis=0)
        least = self._costs(self.patterns, rows, within).min(axis=1, initial=np.inf)
        near = self._costs(patterns, rows, within) <= least[:, None] * (1 + SLACK)
        found_near: Ints = patterns[near.any(axis=0)]
        return found_near

    def _on_fewer(self, fleet: PoolFleet, rows: Ints) -> None:
        """Removes one pool after another, the least harmful first, until the fleet is on few enough pools."""
        used: Bools = np.any(self._by_owner(fleet) > 0, axis=0)
        while used.sum() > self.rules.pools:
            tried = []
            for owner in np.flatnonzero(used):
                within = used.copy()
                within[owner] = False
                self._add(self._covers(rows, within))
                other = self._walk(rows, within)
                if other is not None:
                    tried.append((other.usd, int(owner)))
            if not tried:
                return
            used[min(tried)[1]] = False

    def _add(self, patterns: Ints) -> None:
        """Adds patterns that are new."""
        known = {row.tobytes() for row in self.patterns}
        fresh = [row for row in np.unique(patterns, axis=0) if row.tobytes() not in known]
        if fresh:
            self.patterns = np.concatenate((self.patterns, np.array(fresh)))

    def _costs(self, patterns: Ints, rows: Ints, within: Bools) -> Floats:
        """USD [D, K] an hour of patterns at each demand; inf if a pattern is infeasible or uses pools outside
        ``within`` [O].
        """
        table, rules = self.parts, self.rules
        good = meeting(
            patterns, table.rate[rows], table.place[rows], self.classes.levels, float(rules.spare),
            rules.places, rules.loss_share, rules.least_share,
        )  # fmt: skip
        allowed: Bools = ~np.any(patterns[:, ~within] > 0, axis=1)
        usd = table.usd[rows[within][None, :], patterns[:, within]].sum(axis=1)
        cost: Floats = np.where(good.T & allowed[None, :], usd[None, :], np.inf)
        return cost

    def _walk(self, rows: Ints, within: Bools, only: Bools | None = None) -> PoolFleet | None:
        """The cheapest fleet that is a path through the patterns, or through those in ``only`` [K]; None if
        there is none.
        """
        cost, of_hour = self._costs(self.patterns, rows, within), self.classes.demand_of
        if only is not None:
            cost = np.where(only[None, :], cost, np.inf)
        cut = self.classes.is_cut(self.parts.sure_s[rows])
        if cut.any():
            kinds, situation = np.unique(cut, axis=0, return_inverse=True)
            cost, of_hour = _only_open(cost, of_hour, situation.reshape(-1), kinds @ self.patterns.T > 0)
        if self.openings is not None:
            cost, of_hour = self._where_open(self.openings, rows, within, cost, of_hour)
        least = cost.min(axis=1, initial=np.inf)
        if not np.isfinite(least).all():
            return None
        # The cheapest pattern may cost 0, so patterns of equal cost get the ratio 1 without a division.
        dear = cost > least[:, None]
        above = np.where(dear, cost / np.maximum(least, TINY_USD)[:, None], 1.0).min(axis=0)
        near = np.argsort(above, kind="stable")[:MOST_PATTERNS]
        near = near[np.isfinite(above[near])]
        start_usd = linear(self.parts.start_usd[rows])
        between = start_costs_between(self.patterns[near], start_usd)
        walk = cheapest_through(cost[:, near], of_hour, self.classes.length, between)
        if (walk < 0).any():
            return None
        levels = self.patterns[near[walk]]
        held = np.flatnonzero(within & (levels.any(axis=0) | (self.parts.usd[rows, 0] > 0)))
        return self._offer(tuple(int(row) for row in rows[held]), levels[:, held])

    def _where_open(
        self, openings: Openings, rows: Ints, within: Bools, cost: Floats, of_hour: Ints
    ) -> tuple[Floats, Ints]:
        """Costs [C, K] by demand and availability, inf where other workloads hold the nodes; and the class of
        each hour [H].
        """
        kinds = len(openings.free)
        blocked = np.zeros((kinds, len(self.patterns)), dtype=np.bool_)
        for owner in np.flatnonzero(within & (self.patterns.any(axis=0) | (self.parts.usd[rows, 0] > 0))):
            allowed = openings.allow(self.parts.pools[int(rows[owner])], *self.units)
            blocked |= ~allowed[:, np.minimum(self.patterns[:, owner], allowed.shape[1] - 1)]
        return _only_open(cost, of_hour, openings.of_hour, blocked)

    def _offer(self, pools: tuple[int, ...], levels: Ints) -> PoolFleet:
        fleet = PoolFleet(pools, levels, fleet_usd(self.parts, self.classes, pools, levels))
        if len(pools) <= self.rules.pools:
            self.fleets.append(fleet)
            if self.best is None or fleet.usd < self.best.usd:
                self.best = fleet
        return fleet

    def _renumbered(self, few: SetSearch, fleet: PoolFleet) -> PoolFleet:
        """A fleet of another search with the row numbers of this one; its patterns are added."""
        pools = tuple(int(few.parts.row[row]) for row in fleet.pools)
        found = PoolFleet(pools, fleet.levels, fleet.usd)
        self._add(np.unique(self._by_owner(found), axis=0))
        return found

    def _by_owner(self, fleet: PoolFleet) -> Ints:
        """Levels [H, O] of a fleet by owner."""
        found = np.zeros((len(fleet.levels), len(self.first)), dtype=np.int64)
        found[:, self._owner(np.array(fleet.pools, dtype=np.int64))] = fleet.levels
        return found

    def _owner(self, rows: Ints) -> Ints:
        return np.searchsorted(self.first, rows, side="right") - 1

    def _rows_of(self, fleet: PoolFleet) -> Ints:
        """The row [O] of each owner with the commitments of a fleet; the owner's first row if it uses
        none.
        """
        rows, pools = self.first.copy(), np.array(fleet.pools, dtype=np.int64)
        rows[self._owner(pools)] = pools
        return rows

    def _within(self, fleet: PoolFleet, rows: Ints) -> Bools:
        """The owners [O] that a search around a fleet may use: its kinds of GPU if these are limited, and no
        commitments that it does not have.
        """
        within: Bools = self.parts.usd[rows, 0] <= 0
        within[self._owner(np.array(fleet.pools, dtype=np.int64))] = True
        gpu = self.parts.gpu[self.first]
        if self.rules.gpus < len(np.unique(gpu)):
            within &= np.isin(gpu, np.unique(self.parts.gpu[list(fleet.pools)]))
        return within


def _apart(table: PoolTable) -> PoolTable:
    """The table with an owner of its own for each part whose offers end before the horizon."""
    fresh = np.diff(table.owner, prepend=-1) != 0
    return replace(table, owner=np.cumsum(fresh | (table.until_s < NEVER_GONE)))


def _only_open(cost: Floats, of_hour: Ints, situation: Ints, blocked: Bools) -> tuple[Floats, Ints]:
    """Costs [C, K] by class and ``situation`` [H], inf where a pattern is ``blocked`` in it [situations, K];
    and the class of each hour [H].
    """
    kinds = len(blocked)
    classes, of_each = np.unique(of_hour * kinds + situation, return_inverse=True)
    found = np.where(blocked[classes % kinds], np.inf, cost[classes // kinds])
    return found, of_each.reshape(-1)
