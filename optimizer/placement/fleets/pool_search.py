"""Which pools a fleet uses: best-first search over sets of pools, with a lower bound that is valid at any
time.

A set is first bounded by its hours alone (``hours``), then priced exactly by dynamic programming over all
hours. Smaller sets are bounded together with any further pools, which may differ from hour to hour; a set is
considered only if all its subsets are below the limit. Large markets are searched branch by branch
(``branches``). Whatever is not considered costs at least the limit at which it was discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from broker.domain.planning.effective_rules import MOST_POOLS
from optimizer.placement.fleets.branches import Branch, branches, can_branch, own_sets, whole_table
from optimizer.placement.fleets.further_pools import bounds_with_more, grown_sets, quick_bounds_with_one_more
from optimizer.placement.fleets.hours import SLOPE, HourClasses
from optimizer.placement.fleets.joint_pools import (
    JointPools,
    alike_pools,
    comparable_terms,
    join_parts,
    joined_usd,
    needed_pools,
    paired_parts,
    priced,
    priced_in_bands,
    usd_per_rate,
)
from optimizer.placement.fleets.loops import cover_sets
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.fleets.set_costs import Openings, PoolFleet, SetCosts, all_levels
from optimizer.placement.fleets.states import costs_alone
from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.runtime.tuning import TUNING


@dataclass(slots=True, eq=False)
class SetSearch:
    """A search over sets of the pools of ``parts``, and what it found; fleets refer to rows of ``parts``.

    ``openings``: what other workloads leave over time; the bound ignores it. ``units`` [2, U]: offer and
    nodes of the case's units. ``table`` combines the pools that are not dominated. ``incumbent_usd``: cost of
    a fleet that is already known; if it is finite, only the bound is searched, and no fleet is built.
    ``most_work``: levels that may be tried.
    """

    parts: PoolTable
    classes: HourClasses
    rules: FleetRules
    tolerance: float
    out_of_time: Callable[[], bool] = never
    openings: Openings | None = None
    units: Ints = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    incumbent_usd: float = np.inf
    most_work: int = TUNING.fleets.most_work
    best: PoolFleet | None = None
    fleets: list[PoolFleet] = field(default_factory=list)
    bound_usd: float = 0.0
    table: JointPools = field(init=False)
    costs: SetCosts = field(init=False)
    each: Floats = field(init=False)
    whole: Branch = field(init=False)
    skipped_usd: float = np.inf
    work: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    known: dict[tuple[int, ...], float] = field(default_factory=dict)
    alike: Ints | None = None
    alike_usd: dict[tuple[tuple[int, ...], ...], float] = field(default_factory=dict)
    walked: set[float] = field(default_factory=set)

    def __post_init__(self) -> None:
        parts = paired_parts(self.parts)
        if self.openings is None or len(parts) > TUNING.fleets.few_pools:
            # A pool that is dominated may be needed in hours in which others hold the dominating one.
            terms = comparable_terms(self.parts, self.classes)
            parts = parts[np.flatnonzero(needed_pools(self.parts, parts, self.rules, terms))]
        self._join(parts)

    @property
    def _size(self) -> int:
        """Number of pools in a set."""
        return min(self.rules.pools, len(self.table))

    def _join(self, parts: Ints) -> None:
        """Restricts the search to the pools of ``parts`` [L, 3]."""
        rows, of = np.unique(parts[parts >= 0], return_inverse=True)
        self.parts, parts = self.parts.take(rows), parts.copy()
        parts[parts >= 0] = of
        part_usd = priced(self.parts, self.classes)
        self.costs = SetCosts(
            self.parts, part_usd, self.classes, self.rules, self.openings, self.units, self.work
        )
        empty = self.rules.pools - 1 if len(parts) else 0
        self.table = join_parts(self.parts, parts, part_usd, self.classes.stage, self._wanted(parts), empty)
        self.whole = whole_table(self.table, self.classes, self.rules, self._size)
        self.each = usd_per_rate(self.table.usd, self.table.rate)
        self.alike = None

    def _wanted(self, parts: Ints) -> Ints:
        """Levels [L] that carry the whole demand and the spares alone."""
        classes, first = self.classes, parts.max(axis=1) if len(parts) else np.zeros(0, dtype=np.int64)
        wanted = np.zeros(len(first))
        for stage, rate in enumerate(self.parts.stage_rates[:, first]):
            peak = float(classes.levels[classes.level_stage == stage].max(initial=0.0))
            wanted = np.maximum(wanted, np.ceil(peak / rate - 1e-9))
        levels: Ints = wanted.astype(np.int64) + self.rules.spare + int(self.rules.idle) + 1
        return levels

    @property
    def owed(self) -> bool:
        """Whether a fleet may use commitments, which are paid however long it serves."""
        return bool((self.parts.usd[:, 0] > 0).any() or (self.parts.term_h > 0).any())

    @property
    def limit(self) -> float:
        """Cost from which a set is discarded."""
        return self.least_known_usd * (1 - self.tolerance)

    @property
    def least_known_usd(self) -> float:
        """Cost of the cheapest known fleet; inf if there is none."""
        return self.incumbent_usd if self.best is None else min(self.incumbent_usd, self.best.usd)

    @property
    def _only_proves(self) -> bool:
        return bool(np.isfinite(self.incumbent_usd))

    def run(self) -> None:
        """Finds the cheapest fleet; sets ``bound_usd``, a lower bound on every fleet under the rules."""
        size = self._size
        if size < 1:
            self.bound_usd = np.inf
            return
        if not self._only_proves:
            self.begin()
        sets, least = self._left(size)
        order = np.argsort(least, kind="stable")
        self._price(sets[order], least[order])

    def begin(self) -> None:
        """Finds a cheap fleet on promising pools without proving anything."""
        if self._size == MOST_POOLS:
            self._try_first(TUNING.fleets.first_count)
        if self._size:
            self._try_first(self._size)

    @property
    def least_usd(self) -> float:
        """Lower bound on any fleet from its hours alone."""
        return min(float(self.whole.onward[0]), self.skipped_usd) if self._size else np.inf

    def hourly_usd(self) -> Floats:
        """Lower bound of each hour [H] on any pools, without starts."""
        classes = self.classes
        slopes = classes.in_first_era(classes.level_stage, SLOPE)
        return self.whole.level_usd(classes.levels, slopes, self.rules.spare)[classes.demand_of]

    def _left(self, size: int) -> tuple[Ints, Floats]:
        """Sets of ``size`` pools [N, size] below the limit, and their lower bounds [N] in USD, summed over
        hours.

        A large market is searched by kinds of GPU.
        """
        found = self._left_in(self.whole, size)
        if found is not None:
            return found
        parts = [(np.zeros((0, size), dtype=np.int64), np.zeros(0))]
        for tried in (False,) if self._only_proves else (True, False):
            for branch in branches(self.table, self.classes, self.rules, size):
                if branch.onward[0] >= self.limit:
                    continue
                if np.isfinite(self.limit) and self.out_of_time():
                    self.skipped_usd = min(self.skipped_usd, float(branch.onward[0]))
                    continue
                if tried:
                    self._try_near(branch, size)
                    continue
                part = self._left_in(branch, size)
                parts += [] if part is None else [part]
        return np.concatenate([sets for sets, _ in parts]), np.concatenate([least for _, least in parts])

    def _left_in(self, branch: Branch, size: int) -> tuple[Ints, Floats] | None:
        """The same within one branch; None if the market should be searched by branches instead."""
        branched = branch is not self.whole or not can_branch(self.table, self.rules, size)
        sets, parents_usd = branch.rows[:, None], float(branch.onward[0])
        if parents_usd >= self.limit:
            sets = sets[:0]
        for more in range(size - 1, 0, -1):
            if more == 1 and self.rules.loss_share > 0:
                sets = sets[self._quick_bounds_with_one_more(sets, branch) < self.limit]
            # A set costs at least as much as its subsets.
            least = np.maximum(self.extended_bounds(sets, branch, more), parents_usd)
            near = least < self.limit
            if not branched and near.sum() > TUNING.fleets.most_kept:
                return None
            parents_usd = float(least.min(initial=np.inf))
            most = TUNING.fleets.most_unbranched if more <= 2 else TUNING.fleets.most_unbranched_of_many
            most = TUNING.fleets.most_sets if branched else most
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
        """The sets in their order; if there are too many, only those with the lowest bounds."""
        if len(sets) <= TUNING.fleets.most_kept:
            return sets
        order = np.argsort(least, kind="stable")
        self.skipped_usd = min(self.skipped_usd, float(least[order[TUNING.fleets.most_kept]]))
        return sets[np.sort(order[: TUNING.fleets.most_kept])]

    def extended_bounds(self, sets: Ints, branch: Branch, further: int) -> Floats:
        """Lower bounds of sets extended by ``further`` pools of a branch."""
        table, classes, rules = self.table, self.classes, self.rules
        return bounds_with_more(
            sets, table.usd, table.most, table.rate, table.place, classes.demand, classes.dual,
            classes.weight, float(rules.spare), rules.loss_share, rules.least_share, rules.places, further,
            branch.largest, branch.smallest, branch.step, branch.further_usd[further], branch.any_usd,
            branch.onward, self.limit, self.work, self.most_work,
        )  # fmt: skip

    def _quick_bounds_with_one_more(self, sets: Ints, branch: Branch) -> Floats:
        """A quick lower bound of sets extended by one pool, which is charged by its rate."""
        table, classes = self.table, self.classes
        each = self.each[:, branch.rows].min(axis=1)
        return quick_bounds_with_one_more(
            sets, table.usd, table.most, table.rate, classes.demand, classes.dual, classes.weight,
            self.rules.spare * branch.smallest[0], self.rules.loss_share,
            np.where(np.isfinite(each), each, 0.0), branch.onward, self.limit,
        )  # fmt: skip

    def _covers(self, sets: Ints, most_work: int | None = None, limit: float | None = None) -> Floats:
        """Lower bounds of sets, summed over hours; inf from the limit on and for sets that break a rule, NaN
        if there was no time.

        Pools count at the rates that hold in a fleet of as many kinds of GPU as their set has. Fleets on
        fewer kinds are those of other sets.
        """
        limit = self.limit if limit is None else limit
        most_work = self.most_work if most_work is None else most_work
        gpus = np.sort(self.table.gpu[sets], axis=1)
        kinds = np.maximum(1, (np.diff(gpus, axis=1, prepend=-1) > 0).sum(axis=1))
        least = np.zeros(len(sets))
        for count in np.unique(kinds).tolist():
            least[kinds == count] = self._covers_of_kinds(sets[kinds == count], count, most_work, limit)
        return least

    def _rates(self, kinds: int) -> Floats:
        """The rate [P, L] of a level of each pool at each dual price, in a fleet of ``kinds`` of GPU."""
        table, stands = self.table, self.table.place >= 0
        deviation = np.zeros(len(table))
        deviation[stands] = self.parts.deviation[table.parts.max(axis=1)[stands]]
        share = self.rules.kinds_share(deviation, kinds)
        return np.where(self.classes.stage[:, None] == 0, table.rate * share, table.rate)

    def _covers_of_kinds(self, sets: Ints, kinds: int, most_work: int, limit: float) -> Floats:
        """The same for sets that all have as many ``kinds`` of GPU."""
        table, classes, rate = self.table, self.classes, self._rates(kinds)
        every, onward = np.arange(len(table)), self.whole.onward
        least = self._covered(sets, table.usd, rate, every, classes.dual, onward, most_work, limit)
        for charged in TUNING.fleets.bands_charged if classes.bands is not None else ():
            left = np.flatnonzero(least < limit)
            if len(left):
                pools, at = np.unique(sets[left], return_inverse=True)
                usd, dual, of_class = self._usd_in_bands(pools, charged)
                at, in_bands = at.reshape(len(left), sets.shape[1]), rate[dual][:, pools]
                again = self._covered(
                    at, usd, in_bands, pools, of_class, np.zeros_like(onward), most_work, limit
                )
                least[left] = np.where(np.isnan(again), least[left], np.maximum(least[left], again))
        return least

    def _usd_in_bands(self, pools: Ints, charged: int) -> tuple[Floats, Ints, Ints]:
        """USD [K, n, R] an hour of some pools if nodes with minimum terms are charged in the first bands of
        demand only, the dual price of each [K], and the index of each class [C] among the K prices.
        """
        table = self.table
        rows, of = np.unique(table.parts[pools], return_inverse=True)
        stands = rows >= 0
        parts = of.reshape(-1, table.parts.shape[1]) - int(not stands.all())
        some = self.parts.take(rows[stands])
        usd, dual, of_class = priced_in_bands(some, self.classes, charged)
        joint = joined_usd(some, parts, usd, table.most[pools], table.usd.shape[2])
        return joint, dual, of_class

    def _covered(
        self, sets: Ints, usd: Floats, rate: Floats, pools: Ints, dual: Ints, onward: Floats, most_work: int,
        limit: float,
    ) -> Floats:  # fmt: skip
        """Lower bounds of ``sets`` of ``pools`` [n], which cost ``usd`` [K, n, R] an hour and serve ``rate``
        [K, n] a level.
        """
        table, classes, rules = self.table, self.classes, self.rules
        return cover_sets(
            sets, usd, usd_per_rate(usd, rate), table.most[pools], np.ascontiguousarray(rate),
            table.place[pools], table.gpu[pools], classes.demand, dual, classes.weight, float(rules.spare),
            rules.idle, rules.places, rules.loss_share, rules.least_share, rules.gpus, onward, limit,
            self.work, most_work,
        )  # fmt: skip

    def _try_first(self, count: int) -> None:
        """Finds a first limit by local search: sets of ``count`` promising pools, then exchanges of one pool
        while they help.
        """
        near, size = self._promising(), self._size
        empty = tuple(int(pool) for pool in np.flatnonzero(self.table.place < 0)[: size - count])
        near = [pool for pool in near if pool not in empty]
        sets = self._apart([(*one, *empty) for one in combinations(sorted(near), count)], size)
        if self.rules.places > 1 and size > 1:
            self._solve_cheapest_alone(sets)
        while len(sets):
            chosen = self._solve_first(sets)
            if chosen is None:
                break
            sets = self._apart(
                [
                    tuple(sorted((*(pool for pool in chosen if pool != left), other)))
                    for left in chosen
                    if left not in empty
                    for other in range(len(self.table))
                    if other not in chosen
                ],
                size,
            )

    def _solve_cheapest_alone(self, sets: Ints) -> None:
        """Prices a few of ``sets``: those on two pools that cost least if each carries half of the demand."""
        stands = self.table.place[sets] >= 0
        pairs = sets[stands.sum(axis=1) == TUNING.fleets.first_count]
        usd = np.where(self.table.place[pairs] >= 0, self._alone_usd(0.5)[pairs], 0.0).sum(axis=1)
        pairs = pairs[np.argsort(usd, kind="stable")[: TUNING.fleets.first_tried_of_terms]]
        for pools, least in zip(pairs, self._covers(pairs), strict=True):
            if least < self.limit:
                self._solve(tuple(int(i) for i in pools), float(least))

    def _solve_first(self, sets: Ints) -> tuple[int, ...] | None:
        """Prices the sets with the lowest bounds until one is cheaper than all before; None if none of a few
        is.
        """
        least = self._covers(sets)
        before, left = self.limit, TUNING.fleets.first_tried_of_terms if self.classes.bands is not None else 1
        for at in np.argsort(np.where(np.isnan(least), np.inf, least), kind="stable"):
            one = tuple(int(i) for i in sets[at])
            if not least[at] < before or not left:
                break
            if one not in self.known:
                self._solve(one, float(least[at]))
                left -= 1
                if self.limit < before:
                    return one
        return None

    def _try_near(self, branch: Branch, size: int) -> None:
        """Prices the set of promising pools of a branch with the lowest bound."""
        near = self._promising(branch.rows, TUNING.fleets.first_of_branch)
        sets = self._apart(list(combinations(sorted(near), size)), size)
        sets = sets[own_sets(self.table, branch, sets)]
        least = self._covers(sets)
        least[np.isnan(least)] = np.inf
        if least.min(initial=np.inf) < self.limit:
            self._solve(tuple(int(i) for i in sets[np.argmin(least)]), float(least.min()))

    def _promising(self, rows: Ints | None = None, first: int = TUNING.fleets.first_pools) -> list[int]:
        """Pools with the lowest cost per request or for half of the peak, plus the best in further places
        until one place more than required is covered.
        """
        table, half_usd = self.table, self._alone_usd(0.5)
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

    def _alone_usd(self, share: float) -> Floats:
        """USD [L] for which each pool carries a share of the demand of every hour without other pools."""
        table, classes, parts = self.parts, self.classes, self.table.parts
        hours = np.zeros(len(classes.levels))
        np.add.at(hours, classes.demand_of, classes.length)
        held_h = np.maximum(float(classes.length.sum()), table.term_h) * table.full_share
        by_hour = np.where((parts[:, :2] < 0).all(axis=1), parts[:, 2], parts[:, 0])
        stands = np.flatnonzero((parts >= 0).any(axis=1))
        found = np.full(len(parts), np.inf)
        found[stands] = costs_alone(
            np.stack((by_hour, parts[:, 1]), axis=1)[stands], table.usd, table.usd * held_h[:, None],
            table.most, table.stage_rates, share * classes.levels, classes.level_stage, hours,
        )  # fmt: skip
        return found

    def _apart(self, sets: list[tuple[int, ...]], size: int) -> Ints:
        """The sets whose pools all have different owners."""
        owner = self.table.owner
        kept = [one for one in sets if len(set(owner[list(one)].tolist())) == len(one)]
        return np.array(kept, dtype=np.int64).reshape(-1, size)

    def _price(self, sets: Ints, least: Floats) -> None:
        """Prices sets in ascending order of their bounds until no remaining set can be cheaper."""
        proven = np.inf
        for count, (row, usd) in enumerate(zip(sets, least, strict=True)):
            enough = count >= TUNING.fleets.most_tried
            if np.isfinite(self.limit):
                enough = (
                    count >= TUNING.fleets.most_priced
                    and self.costs.states > TUNING.fleets.most_priced_states
                )
                enough = enough or self.out_of_time()
            if usd >= self.limit or enough:
                proven = min(proven, usd)
                break
            self._solve(tuple(int(i) for i in row), usd)
        # Whatever was discarded at a limit costs at least that limit, and limits only fall.
        self.bound_usd = min([proven, self.limit, self.skipped_usd, *self.known.values()])

    def _solve(self, pools: tuple[int, ...], least: float) -> None:
        """Prices one set, whose fleets cost at least ``least``."""
        if pools in self.known:
            return
        pattern = self._pattern(pools)
        if self.openings is None and pattern in self.alike_usd:
            self.known[pools] = self.alike_usd[pattern]
            return
        # Of states with equal cost the first is taken, which uses the pools that come first.
        rows = self._rows(pools[::-1])
        at = np.array(rows, dtype=np.int64)
        levels, counts = all_levels(self.parts.most[at]), self.parts.most[at] + 1
        least = max(least, self.costs.least_usd(at, levels, counts, self.limit))
        # A set with the same bound as another contains a superfluous pool, unless other workloads hold nodes.
        fresh = self.openings is not None or least not in self.walked
        if fresh and not self._only_proves and least < self.least_known_usd:
            self.walked.add(least)
            self._try_walk(rows, levels, counts)
        self.known[pools] = self.alike_usd[pattern] = least

    def _try_walk(self, rows: tuple[int, ...], levels: Ints, counts: Ints) -> None:
        """Finds the fleet of a set, on a selection of levels if there are many states."""
        if int(np.prod(counts)) > TUNING.fleets.most_states:
            at = np.array(rows, dtype=np.int64)
            levels, counts = self.costs.likely_levels(at)
            usd = self.costs.over_hours_usd(at, levels, counts, self.parts.usd[at], self.parts.start_usd[at])
            if usd >= self.least_known_usd:
                return
        self.costs.states += TUNING.fleets.walk_states * int(np.prod(counts))
        self._walk(rows, levels, counts)

    def _walk(self, rows: tuple[int, ...], levels: Ints, counts: Ints) -> PoolFleet | None:
        """Finds and keeps the cheapest fleet of some parts; None if there is none."""
        fleet = self.costs.walk(rows, levels, counts)
        if fleet is not None:
            held = self.costs.held_throughout(rows, fleet)
            fleet = fleet if held is None or held.usd >= fleet.usd else held
            self.fleets.append(fleet)
            if fleet.usd < self.least_known_usd:
                self.best = fleet
        return fleet

    def _rows(self, pools: tuple[int, ...]) -> tuple[int, ...]:
        """The parts of the pools."""
        return tuple(int(row) for pool in pools for row in self.table.parts[pool] if row >= 0)

    def _pattern(self, pools: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Cache key of a set's cost: its pools up to equality, and which of them share a place."""
        if self.alike is None:
            self.alike = alike_pools(self.parts, self.table.parts)
        alike = self.alike.tolist()
        order = sorted(pools, key=lambda pool: alike[pool])
        places, gpus = self.table.place[order].tolist(), self.table.gpu[order].tolist()
        return tuple(
            (alike[pool], places.index(places[i]), gpus.index(gpus[i])) for i, pool in enumerate(order)
        )

    def fewer(self) -> list[PoolFleet]:
        """The cheapest fleet for each smaller number of pools than the rules allow."""
        size = self._size
        near = [pool for pool in self._promising() if self.table.place[pool] >= 0] if self.fleets else []
        empty = [int(pool) for pool in np.flatnonzero(self.table.place < 0)]
        found = []
        for count in range(self.rules.places, min(size, len(near) + 1)):
            rest = empty[: size - count]
            sets = self._apart([(*sorted(one), *rest) for one in combinations(near, count)], size)
            least = self._covers(sets, int(self.work[0]) + TUNING.fleets.most_work_fewer, np.inf)
            least[np.isnan(least)] = np.inf
            if not np.isfinite(least).any():
                continue
            rows = self._rows(tuple(int(pool) for pool in sets[np.argmin(least)]))
            fleet = self._walk(rows, *self.costs.levels_of(rows))
            found += [] if fleet is None else [fleet]
        return found

    def between(self, openings: Openings) -> list[PoolFleet]:
        """The cheapest fleets if other workloads leave only ``openings``, on sets that are cheap without that
        restriction.
        """
        before, self.costs.openings = self.costs.openings, openings
        best, fleets = self.best, list(self.fleets)
        for pools in sorted(self.known, key=lambda one: (self.known[one], one))[: TUNING.fleets.most_between]:
            rows = self._rows(pools[::-1])
            self._walk(rows, *self.costs.levels_of(rows))
        found = self.fleets[len(fleets) :]
        self.costs.openings, self.best, self.fleets = before, best, fleets
        return found
