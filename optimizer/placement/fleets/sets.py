"""Which pools a fleet stands on: a best-first search over sets of pools, with a bound that holds at any time.

A set is first bounded by hours alone (``hours``), then priced exactly by dynamic programming over all hours.
Pairs are bounded beside any further pools, another in each hour; a set is looked at only where none of its
pairs is too dear. Large markets are searched branch by branch (``branches``). What is not looked at costs at
least the limit at which it was left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from optimizer.placement.fleets.beside import grown_sets, sets_beside_rate, sets_with_others
from optimizer.placement.fleets.branches import Branch, branches, can_branch, own_sets, whole_table
from optimizer.placement.fleets.hours import PEAK, SLOPE, TROUGH, HourClasses
from optimizer.placement.fleets.loops import cover_hour, cover_sets
from optimizer.placement.fleets.pools import Pool, PoolTable, undominated, with_empty
from optimizer.placement.fleets.rules import MOST_POOLS, FleetRules
from optimizer.placement.fleets.states import cheapest_walk, least_over_hours, state_costs, state_levels
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.stopwatch import never

MOST_STATES = 20_000
MOST_EXACT_STATES = 500_000
FIRST_POOLS, FIRST_OF_BRANCH = 8, 4
MOST_SETS = 1_000_000
MOST_KEPT = 4_000
MOST_UNBRANCHED, MOST_UNBRANCHED_OF_MANY = 120_000, 20_000
"""Sets beside one further pool, and beside more, of a market that is searched without branches."""
MOST_PRICED, MOST_PRICED_STATES = 16, 1_000_000
"""Sets that are priced: more where they have few states together."""
MOST_TRIED = 64
"""Of sets of which none may have a fleet in the hours that others leave."""
FEW_POOLS = 12
"""So few are searched to the end."""
MOST_WORK_FEWER = 20_000_000
"""Levels tried for fleets on fewer pools than the rules allow."""
MOST_BETWEEN = 6
"""Sets that are priced once more in the hours that others leave."""
MOST_VARIED = 12
MOST_VARIED_STATES = 2_000
"""Fleets with fewer bundles of one pool, where a set has no more states."""
MOST_WORK = 300_000_000
"""Levels that are tried in one search: about three seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolFleet:
    """A fleet on a set of pools: ``levels`` [H, m] bundles of replicas ready in each hour, and what it
    costs."""

    pools: tuple[int, ...]
    levels: Ints
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class Openings:
    """Nodes ``free`` [P, O] of each offer in each kind of hour, and the kind ``of_hour`` [H]."""

    free: Ints
    of_hour: Ints

    def allow(self, pool: Pool, unit_offer: Ints, unit_nodes: Ints) -> Bools:
        """Whether a pool can stand at each level in each kind of hour [P, R]; of units [U] offer and
        nodes."""
        allowed = np.ones((len(self.free), len(pool.usd)), dtype=np.bool_)
        offers = unit_offer[pool.units]
        for offer in np.unique(offers):
            mine = offers == offer
            nodes = pool.counts[:, mine] @ unit_nodes[pool.units[mine]]
            allowed &= nodes[None, :] <= self.free[:, offer][:, None]
        return allowed


@dataclass(slots=True, eq=False)
class SetSearch:
    """The state of a search. ``table`` holds the pools that none of the others make needless.

    ``openings``: when others hold what of the stock; the bound takes no notice of them. ``units`` tells offer
    and nodes [2, U] of the case's units.
    """

    table: PoolTable
    classes: HourClasses
    rules: FleetRules
    tolerance: float
    out_of_time: Callable[[], bool] = never
    openings: Openings | None = None
    units: Ints = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    best: PoolFleet | None = None
    fleets: list[PoolFleet] = field(default_factory=list)
    bound_usd: float = 0.0
    phased: Floats = field(init=False)
    each: Floats = field(init=False)
    whole: Branch = field(init=False)
    skipped_usd: float = np.inf
    work: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    known: dict[tuple[int, ...], float] = field(default_factory=dict)
    alike: Ints = field(init=False)
    alike_usd: dict[tuple[tuple[int, int], ...], float] = field(default_factory=dict)
    states: int = 0

    def __post_init__(self) -> None:
        kept = self.table
        if self.openings is None or len(kept) > FEW_POOLS:
            # What others close at times may be needed at others.
            kept = kept.take(np.flatnonzero(needed_pools(kept, self.rules)))
        self.table = with_empty(kept, min(self.rules.pools, MOST_POOLS) - 1) if len(kept) else kept
        self.phased = phased_usd(self.table)
        self.each = _per_rate(self.phased, self.table)
        self.alike = _alike(self.table)

    @property
    def limit(self) -> float:
        """A set that costs at least so much is of no use."""
        return np.inf if self.best is None else self.best.usd * (1 - self.tolerance)

    def run(self) -> None:
        """Finds the cheapest fleet; ``bound_usd`` is at most what any fleet under the rules costs."""
        size = min(self.rules.pools, len(self.table), MOST_POOLS)
        if size < 1:
            self.bound_usd = np.inf
            return
        self.begin()
        sets, least = self._left(size)
        order = np.argsort(least, kind="stable")
        self._price(sets[order], least[order])

    def begin(self) -> None:
        """Finds a cheap fleet on promising pools, and proves nothing."""
        size = min(self.rules.pools, len(self.table), MOST_POOLS)
        if size:
            self.whole = whole_table(self.table, self.phased, self.classes, self.rules, size)
            self._try_first(size)

    def hourly_usd(self) -> Floats:
        """What each hour [H] costs at least on any pools, starts left out."""
        classes = self.classes
        slopes = np.full(len(classes.levels), SLOPE, dtype=np.int64)
        return self.whole.level_usd(classes.levels, slopes, self.rules.spare)[classes.demand_of]

    def _left(self, size: int) -> tuple[Ints, Floats]:
        """Sets of ``size`` pools [N, size] that may be worth it, and the USD [N] that they cost at least hour
        by hour; of a large market kind by kind of GPU."""
        found = self._left_in(self.whole, size)
        if found is not None:
            return found
        parts = [(np.zeros((0, size), dtype=np.int64), np.zeros(0))]
        for tried in (True, False):
            for branch in branches(self.table, self.phased, self.classes, self.rules, size):
                if branch.onward[0] >= self.limit:
                    continue
                if tried:
                    self._try_near(branch, size)
                    continue
                part = self._left_in(branch, size)
                parts += [] if part is None else [part]
        return np.concatenate([sets for sets, _ in parts]), np.concatenate([least for _, least in parts])

    def _left_in(self, branch: Branch, size: int) -> tuple[Ints, Floats] | None:
        """The same of one branch; None of the whole market where it is better branched."""
        branched = branch is not self.whole or not can_branch(self.table, self.rules, size)
        sets, parents_usd = branch.rows[:, None], float(branch.onward[0])
        if parents_usd >= self.limit:
            sets = sets[:0]
        for more in range(size - 1, 0, -1):
            if more == 1 and self.rules.loss_share > 0:
                sets = sets[self._beside_rate(sets, branch) < self.limit]
            # A set costs at least what its parts do.
            least = np.maximum(self.beside(sets, branch, more), parents_usd)
            near = least < self.limit
            if not branched and near.sum() > MOST_KEPT:
                return None
            parents_usd = float(least.min(initial=np.inf))
            most = MOST_UNBRANCHED if more <= 2 else MOST_UNBRANCHED_OF_MANY
            most = MOST_SETS if branched else most
            sets = grown_sets(self._nearest(sets[near], least[near]), self.table.owner, most)
            if len(sets) == most:
                if not branched:
                    return None
                self.skipped_usd = min(self.skipped_usd, parents_usd)
        sets = sets[own_sets(self.table, branch, sets)]
        least = self._covers(sets)
        if np.isnan(least).any():
            self.skipped_usd = min(self.skipped_usd, parents_usd)
        left = least < self.limit
        return sets[left], least[left]

    def _nearest(self, sets: Ints, least: Floats) -> Ints:
        """The sets in their order; of very many those with the lowest bounds."""
        if len(sets) <= MOST_KEPT:
            return sets
        order = np.argsort(least, kind="stable")
        self.skipped_usd = min(self.skipped_usd, float(least[order[MOST_KEPT]]))
        return sets[np.sort(order[:MOST_KEPT])]

    def beside(self, sets: Ints, branch: Branch, further: int) -> Floats:
        """What sets cost at least beside so many further pools of a branch."""
        table, classes, rules = self.table, self.classes, self.rules
        return sets_with_others(
            sets, self.phased, table.most, table.rate, table.place, classes.demand, classes.phase,
            classes.weight, float(rules.spare), rules.loss_share, rules.least_share, rules.places, further,
            branch.largest, branch.smallest, branch.step, branch.beside[further], branch.any_usd,
            branch.onward, self.limit, self.work, MOST_WORK,
        )  # fmt: skip

    def _beside_rate(self, sets: Ints, branch: Branch) -> Floats:
        """What sets cost at least beside one further pool, quickly: that pool is charged by its rate."""
        table, classes = self.table, self.classes
        return sets_beside_rate(
            sets, self.phased, table.most, table.rate, classes.demand, classes.phase, classes.weight,
            self.rules.spare * float(branch.smallest[0]), self.rules.loss_share,
            self.each[:, branch.rows].min(axis=1), branch.onward, self.limit,
        )  # fmt: skip

    def _covers(self, sets: Ints, most_work: int = MOST_WORK, limit: float | None = None) -> Floats:
        """What sets cost at least, hour by hour; inf from the limit on and where they break a
        rule, NaN where there was no time for it."""
        table, classes, rules = self.table, self.classes, self.rules
        return cover_sets(
            sets, self.phased, self.each, table.most, table.rate, table.place, table.gpu, classes.demand,
            classes.phase, classes.weight, float(rules.spare), rules.places, rules.loss_share,
            rules.least_share, rules.gpus, self.whole.onward, self.limit if limit is None else limit,
            self.work, most_work,
        )  # fmt: skip

    def _try_first(self, size: int) -> None:
        """Sets of promising pools, then one pool exchanged for any other while that helps: a first limit."""
        near = self._promising()
        sets = self._apart(list(combinations(sorted(near), size)), size)
        while len(sets):
            least = self._covers(sets, MOST_WORK)
            least[np.isnan(least)] = np.inf
            order = [int(at) for at in np.argsort(least, kind="stable") if least[at] < self.limit]
            fresh = [
                one for one in (tuple(int(i) for i in sets[at]) for at in order) if one not in self.known
            ]
            if not fresh:
                break
            chosen, before = fresh[0], self.limit
            self._solve(chosen, float(least.min()))
            if not self.limit < before:
                break
            sets = self._apart(
                [
                    tuple(sorted((*chosen[:i], *chosen[i + 1 :], other)))
                    for i in range(size)
                    for other in range(len(self.table))
                    if other not in chosen
                ],
                size,
            )

    def _try_near(self, branch: Branch, size: int) -> None:
        """The set of promising pools of a branch that looks cheapest."""
        near = self._promising(branch.rows, FIRST_OF_BRANCH)
        sets = self._apart(list(combinations(sorted(near), size)), size)
        sets = sets[own_sets(self.table, branch, sets)]
        least = self._covers(sets)
        least[np.isnan(least)] = np.inf
        if least.min(initial=np.inf) < self.limit:
            self._solve(tuple(int(i) for i in sets[np.argmin(least)]), float(least.min()))

    def _promising(self, rows: Ints | None = None, first: int = FIRST_POOLS) -> list[int]:
        """Pools with the lowest prices per request and those that carry half of the peak most cheaply, and
        the best of further places until there are more than are asked for."""
        table, half = self.table, float(self.classes.demand.max()) / 2
        level = np.maximum(np.ceil(half / table.rate - 1e-9).astype(np.int64), 1)
        able = level <= table.most
        half_usd = np.where(able, table.usd[np.arange(len(table)), np.minimum(level, table.most)], np.inf)
        by_half, by_each = np.lexsort((self.each[SLOPE], half_usd)), np.argsort(self.each[SLOPE])
        if rows is not None:
            by_half, by_each = by_half[np.isin(by_half, rows)], by_each[np.isin(by_each, rows)]
        near = list(dict.fromkeys([*by_half[:first], *by_each[: first // 2]]))
        for other in by_half:
            standing = set(table.place[near].tolist()) - {-1}
            if len(standing) > self.rules.places:
                break
            if int(table.place[other]) not in standing:
                near.append(other)
        empty = np.flatnonzero(table.place < 0)
        return [int(pool) for pool in dict.fromkeys([*near, *empty])]

    def _apart(self, sets: list[tuple[int, ...]], size: int) -> Ints:
        """Those of some sets whose pools are all different, but for their commitments."""
        owner = self.table.owner
        kept = [one for one in sets if len(set(owner[list(one)].tolist())) == len(one)]
        return np.array(kept, dtype=np.int64).reshape(-1, size)

    def _price(self, sets: Ints, least: Floats) -> None:
        """Prices sets, cheapest bound first, until none that is left can be cheaper."""
        proven = np.inf
        for count, (row, usd) in enumerate(zip(sets, least, strict=True)):
            enough = count >= MOST_TRIED
            if self.best is not None:
                enough = count >= MOST_PRICED and self.states > MOST_PRICED_STATES
                enough = enough or self.out_of_time()
            if usd >= self.limit or enough:
                proven = min(proven, usd)
                break
            self._solve(tuple(int(i) for i in row), usd)
        # What was left out at a limit costs at least that limit, and limits only fall.
        self.bound_usd = min([proven, self.limit, self.skipped_usd, *self.known.values()])

    def _solve(self, pools: tuple[int, ...], least: float) -> None:
        """Prices one set, whose fleets cost ``least`` or more."""
        if pools in self.known:
            return
        table, classes, rules = self.table, self.classes, self.rules
        pattern = self._pattern(pools)
        if self.openings is None and pattern in self.alike_usd:
            self.known[pools] = self.alike_usd[pattern]
            return
        # Of states that cost the same the first is taken: the one on the pools that come first.
        at = np.array(pools[::-1], dtype=np.int64)
        most = table.most[at]
        needed = (
            float(rules.spare), rules.places, rules.loss_share, rules.least_share
        )  # fmt: skip

        def over_hours(levels: Ints, counts: Ints, start_usd: Floats) -> float:
            cost = state_costs(
                levels, counts, table.usd[at], table.rate[at], table.place[at], classes.levels, *needed
            )
            return least_over_hours(
                cost, classes.demand_of, classes.length, levels, counts, linear(start_usd), classes.period
            )

        every = _all_levels(most)
        size = int(np.prod(most + 1))
        self.states += size
        if size <= MOST_EXACT_STATES:
            least = max(least, over_hours(every, most + 1, table.least_start_usd[at]))
        most_usd = np.inf if self.best is None else self.best.usd
        if least < most_usd:
            levels, counts = (every, most + 1) if size <= MOST_STATES else self._likely_levels(at)
            if size <= MOST_STATES or over_hours(levels, counts, table.start_usd[at]) < most_usd:
                self._walk(pools[::-1], levels, counts)
        self.known[pools] = self.alike_usd[pattern] = least

    def _pattern(self, pools: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """What a set costs depends on: its pools but for their names, and which of them share a place."""
        order = sorted(pools, key=lambda pool: int(self.alike[pool]))
        places = self.table.place[order].tolist()
        return tuple((int(self.alike[pool]), places.index(places[i])) for i, pool in enumerate(order))

    def _walk(self, pools: tuple[int, ...], levels: Ints, counts: Ints) -> PoolFleet | None:
        """The cheapest fleet of ``pools`` [m] on some levels of each; None where there is none."""
        table, classes, rules, at = self.table, self.classes, self.rules, np.array(pools, dtype=np.int64)
        cost = state_costs(
            levels, counts, table.usd[at], table.rate[at], table.place[at], classes.levels,
            float(rules.spare), rules.places, rules.loss_share, rules.least_share,
        )  # fmt: skip
        of_hour = classes.demand_of
        if self.openings is not None:
            cost, of_hour = self._where_open(self.openings, pools, cost, levels, counts)
        start_usd = linear(table.start_usd[at])
        walk = cheapest_walk(cost, of_hour, classes.length, levels, counts, start_usd)
        return self._offer(pools, state_levels(walk, levels, counts)) if (walk >= 0).all() else None

    def _where_open(
        self, openings: Openings, pools: tuple[int, ...], cost: Floats, levels: Ints, counts: Ints
    ) -> tuple[Floats, Ints]:
        """Costs [C, S] of states by demand and kind of hour, inf where others hold the nodes, and the class
        of each hour [H]."""
        kinds = len(openings.free)
        blocked = np.zeros((kinds, *counts))
        for axis, pool in enumerate(pools):
            allowed = openings.allow(self.table.pools[pool], *self.units)[:, levels[axis, : counts[axis]]]
            shape = [kinds] + [1] * len(pools)
            shape[axis + 1] = int(counts[axis])
            blocked += np.where(allowed, 0.0, np.inf).reshape(shape)
        classes, of_hour = np.unique(self.classes.demand_of * kinds + openings.of_hour, return_inverse=True)
        return cost[classes // kinds] + blocked.reshape(kinds, -1)[classes % kinds], of_hour.reshape(-1)

    def fewer(self) -> list[PoolFleet]:
        """The cheapest fleets that are known on fewer pools than the rules allow, one for each number."""
        size = min(self.rules.pools, len(self.table), MOST_POOLS)
        near = [pool for pool in self._promising() if self.table.place[pool] >= 0] if self.fleets else []
        empty = [int(pool) for pool in np.flatnonzero(self.table.place < 0)]
        found = []
        for count in range(self.rules.places, min(size, len(near) + 1)):
            rest = empty[: size - count]
            sets = self._apart([(*sorted(one), *rest) for one in combinations(near, count)], size)
            least = self._covers(sets, int(self.work[0]) + MOST_WORK_FEWER, np.inf)
            least[np.isnan(least)] = np.inf
            if not np.isfinite(least).any():
                continue
            pools = tuple(int(pool) for pool in sets[np.argmin(least)])
            fleet = self._walk(pools, *self._levels_of(pools))
            found += [] if fleet is None else [fleet]
        return found

    def between(self, openings: Openings) -> list[PoolFleet]:
        """The cheapest fleets in the hours that others leave, on sets that are known to be cheap without
        them."""
        before, self.openings = self.openings, openings
        best, fleets = self.best, list(self.fleets)
        for pools in sorted(self.known, key=lambda one: (self.known[one], one))[:MOST_BETWEEN]:
            self._walk(pools[::-1], *self._levels_of(pools[::-1]))
        found = self.fleets[len(fleets) :]
        self.openings, self.best, self.fleets = before, best, fleets
        return found

    def vary(self) -> None:
        """Further fleets on the pools of the best: each holds at its peak fewer bundles of one pool than
        another that is known, for those who want the same nodes."""
        if self.best is None or np.prod(self.table.most[list(self.best.pools)] + 1) > MOST_VARIED_STATES:
            return
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        waiting = sorted(self.fleets, key=lambda fleet: fleet.usd)
        for fleet in waiting:
            peaks = fleet.levels.max(axis=0)
            for axis in np.flatnonzero(peaks > 0):
                most = np.array(self.table.most[list(fleet.pools)])
                most[axis] = peaks[axis] - 1
                key = fleet.pools, tuple(int(i) for i in most)
                if key in seen:
                    continue
                if len(seen) >= MOST_VARIED or self.out_of_time():
                    return
                seen.add(key)
                other = self._walk(fleet.pools, _all_levels(most), most + 1)
                if other is not None:
                    waiting.append(other)

    def _offer(self, pools: tuple[int, ...], levels: Ints) -> PoolFleet:
        fleet = PoolFleet(pools, levels, fleet_usd(self.table, self.classes, pools, levels))
        self.fleets.append(fleet)
        if self.best is None or fleet.usd < self.best.usd:
            self.best = fleet
        return fleet

    def _levels_of(self, pools: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Levels [m, K] that each pool of a set may take, and how many [m]: all where these are few."""
        at = np.array(pools, dtype=np.int64)
        most = self.table.most[at]
        if int(np.prod(most + 1)) > MOST_STATES:
            return self._likely_levels(at)
        return _all_levels(most), most + 1

    def _likely_levels(self, at: Ints) -> tuple[Ints, Ints]:
        """Levels of each pool in the cheapest covers of single hours, and those beside them."""
        table, classes, rules = self.table, self.classes, self.rules
        order = at[np.argsort(table.most[at], kind="stable")]
        wanted: list[set[int]] = [{0} for _ in order]
        best = np.zeros(len(order), dtype=np.int64)
        for demand, phase in {(float(d), int(p)) for d, p in zip(classes.demand, classes.phase, strict=True)}:
            for tried in {phase, TROUGH, PEAK}:
                usd = cover_hour(
                    self.phased[tried][order], self.each[tried][order], table.most[order],
                    table.rate[order], table.place[order], demand,
                    float(rules.spare), rules.places, rules.loss_share, rules.least_share, np.inf, best,
                    self.work,
                )  # fmt: skip
                if np.isfinite(usd):
                    for i, level in enumerate(best):
                        wanted[i].update(
                            (
                                max(0, int(level) - 1),
                                int(level),
                                min(int(level) + 1, int(table.most[order[i]])),
                            )
                        )
        place = {int(pool): i for i, pool in enumerate(order)}
        chosen = [sorted(wanted[place[int(pool)]]) for pool in at]
        while int(np.prod([len(one) for one in chosen])) > MOST_STATES:
            longest = max(range(len(chosen)), key=lambda i: len(chosen[i]))
            chosen[longest] = chosen[longest][::2] + chosen[longest][-1:]
        counts = np.array([len(one) for one in chosen], dtype=np.int64)
        levels = np.zeros((len(chosen), int(counts.max())), dtype=np.int64)
        for i, one in enumerate(chosen):
            levels[i, : len(one)] = one
        return levels, counts


def fleet_usd(table: PoolTable, classes: HourClasses, pools: tuple[int, ...], levels: Ints) -> float:
    """What a fleet with ``levels`` [H, m] of ``pools`` [m] costs; starts before the first hour are free."""
    at = np.array(pools, dtype=np.int64)
    usd = table.usd[at[None, :], levels].sum(axis=1) @ classes.length
    starts = table.start_usd[at[None, :], levels]
    return float(usd + np.maximum(np.diff(starts, axis=0), 0).sum())


def _all_levels(most: Ints) -> Ints:
    return np.tile(np.arange(int(most.max()) + 1), (len(most), 1))


def linear(start_usd: Floats) -> Floats:
    """Start costs without the levels that no pool has."""
    found: Floats = np.where(np.isfinite(start_usd), start_usd, 0.0)
    return found


def needed_pools(table: PoolTable, rules: FleetRules) -> Ints:
    """Pools [L] (1: keep) that some best fleet under the rules may need."""
    if not len(table):
        return np.zeros(0, dtype=np.int64)
    each = np.where(np.isfinite(table.usd), table.usd, 0.0)
    levels = np.maximum(np.arange(table.usd.shape[1]), 1)
    cheapest = np.where(np.isfinite(table.usd), table.usd, np.inf)[:, 1:] / (
        table.rate[:, None] * levels[None, 1:]
    )
    order = np.lexsort((each.sum(axis=1), cheapest.min(axis=1, initial=np.inf)))
    group = table.gpu if rules.gpus < rules.pools else np.zeros_like(table.gpu)
    return undominated(
        table.usd, table.start_usd, table.most, table.rate, group, table.place, table.owner, rules.pools,
        rules.spare > 0, rules.places > 1, order.astype(np.int64),
    )  # fmt: skip


def phased_usd(table: PoolTable) -> Floats:
    """USD [3, L, R] an hour at the prices of a trough, a slope and a peak; never falling with the level."""
    found = np.stack([table.least_usd] * 3)
    for pool in range(len(table)):
        levels = np.arange(table.most[pool] + 1)
        usd, start = table.least_usd[pool, levels], table.least_start_usd[pool, levels]
        beyond = start > 0
        if not beyond.any():
            continue
        base = usd[~beyond].max(initial=0.0)
        worth = float(((usd[beyond] - base) / start[beyond]).min())
        start = start * min(1.0, max(0.0, worth))
        found[PEAK, pool, levels] = usd + start
        found[TROUGH, pool, levels] = np.minimum.accumulate((usd - start)[::-1])[::-1]
    return found


def _alike(table: PoolTable) -> Ints:
    """The same number [L] for pools that are alike in rate, stock, prices and what starting costs."""
    money = (table.usd, table.least_usd, table.start_usd, table.least_start_usd)
    rows = np.concatenate((*money, table.rate[:, None], table.most[:, None]), axis=1)
    rows = np.where(np.isfinite(rows), rows, -1.0)
    alike: Ints = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return alike


def _per_rate(phased: Floats, table: PoolTable) -> Floats:
    """The least USD [3, L] an hour per unit of rate."""
    served = table.rate[:, None] * np.maximum(np.arange(phased.shape[2]), 1)[None, :]
    found: Floats = (phased / served[None, :, :])[:, :, 1:].min(axis=2, initial=np.inf)
    return found
