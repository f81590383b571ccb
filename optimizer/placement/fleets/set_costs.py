"""Costs of one set of pools: a lower bound over all hours, and its cheapest fleet, by dynamic programming.

m parts of a set, S states (one level of each part), R levels, C classes of hours, H hours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleets.hours import PEAK, SLOPE, TROUGH, HourClasses
from optimizer.placement.fleets.joint_pools import priced_in_bands, usd_per_rate
from optimizer.placement.fleets.loops import cover_hour
from optimizer.placement.fleets.pool_table import Pool, PoolTable
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.fleets.states import (
    cheapest_walk,
    costs_with_terms,
    least_over_hours,
    state_costs,
    state_levels,
    term_usd,
)
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.tuning import TUNING

NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PoolFleet:
    """A fleet on a set of parts: ``levels`` [H, m] of bundles of replicas ready in each hour, and its
    cost.
    """

    pools: tuple[int, ...]
    levels: Ints
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class Openings:
    """What other workloads leave over time: nodes ``free`` [P, O] of each offer in each of P situations, and
    the situation ``of_hour`` [H].
    """

    free: Ints
    of_hour: Ints

    @property
    def key(self) -> tuple[bytes, bytes]:
        """A hashable key."""
        return self.free.tobytes(), self.of_hour.tobytes()

    def allow(self, pool: Pool, unit_offer: Ints, unit_nodes: Ints) -> Bools:
        """Whether each level of a pool is available in each situation [P, R], given offer and nodes of the
        units [U].
        """
        allowed = np.ones((len(self.free), len(pool.usd)), dtype=np.bool_)
        offers = unit_offer[pool.units]
        for offer in np.unique(offers):
            mine = offers == offer
            nodes = pool.counts[:, mine] @ unit_nodes[pool.units[mine]]
            allowed &= nodes[None, :] <= self.free[:, offer][:, None]
        return allowed


@dataclass(slots=True, eq=False)
class SetCosts:
    """Prices sets of ``parts``, which cost ``part_usd`` [P, L, R] an hour at each dual price.

    ``openings``: what other workloads leave, which restricts fleets but not bounds; ``units`` [2, U]: offer
    and nodes of the case's units. ``work`` [1] counts levels tried, ``states`` the states that were bounded.
    """

    parts: PoolTable
    part_usd: Floats
    classes: HourClasses
    rules: FleetRules
    openings: Openings | None
    units: Ints
    work: Ints
    states: int = 0

    def least_usd(self, at: Ints, levels: Ints, counts: Ints, limit: float) -> float:
        """Lower bound on a set of parts [m]; it is not improved further once it reaches ``limit``."""
        usd, start_usd = self.parts.least_usd[at], self.parts.least_start_usd[at]
        termed = np.flatnonzero(self.parts.term_h[at])
        if int(np.prod(counts)) > (
            TUNING.fleets.most_states if len(termed) else TUNING.fleets.most_exact_states
        ):
            return 0.0
        least = self.over_hours_usd(at, levels, counts, usd, start_usd)
        # Nodes that are held throughout cost more at their full rate than with a rate and a start.
        for dearer in _all_and_each(termed):
            if least < limit:
                least = max(least, self.over_hours_usd(at, levels, counts, usd, start_usd, dearer))
        return least

    def over_hours_usd(
        self, at: Ints, levels: Ints, counts: Ints, usd: Floats, start_usd: Floats, dearer: Ints = NONE
    ) -> float:
        """Lower bound on the cost of parts [m] over all hours, at ``usd`` and ``start_usd`` [m, R].

        Parts in ``dearer`` pay their full rate and no start.
        """
        table, classes = self.parts, self.classes
        usd, start_usd, begin_usd = self._without_starts(at, usd, start_usd, dearer)
        cost = self._state_costs(at, levels, counts, usd)
        self.states += cost.shape[1]
        gone = classes.is_gone(table.until_s[at])
        cost, of_hour = _without_gone(cost, classes.demand_of, gone, levels, counts)
        period = 0 if gone.any() else classes.period
        return least_over_hours(
            cost, of_hour, classes.length, levels, counts, start_usd, begin_usd, period, classes.steady
        )

    def _by_stage(self, at: Ints, make: Callable[[Floats, Floats], Floats]) -> Floats:
        """The rows [D, S] that ``make`` returns for the demand of each stage and the rates [m] of the parts
        ``at`` in it.
        """
        classes = self.classes
        rows = [
            make(classes.levels[classes.level_stage == stage], rate)
            for stage, rate in enumerate(self._rates(at))
            if (classes.level_stage == stage).any()
        ]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _rates(self, at: Ints) -> Floats:
        """Requests/s [2, m] of a level of the parts ``at`` in each stage, in a fleet that stands on them."""
        table, kinds = self.parts, len(set(self.parts.gpu[at].tolist()))
        rates = np.ascontiguousarray(table.stage_rates[:, at])
        rates[0] *= self.rules.kinds_share(table.deviation[at], kinds)
        return rates

    def _state_costs(self, at: Ints, levels: Ints, counts: Ints, usd: Floats) -> Floats:
        """USD [D, S] an hour of each state of the parts ``at`` [m], which cost ``usd`` [m, R]."""
        rules, place = self.rules, self.parts.place[at]
        return self._by_stage(
            at,
            lambda demand, rate: state_costs(
                levels, counts, usd, rate, place, demand, float(rules.spare), rules.idle, rules.places,
                rules.loss_share, rules.least_share,
            ),
        )  # fmt: skip

    def _without_starts(
        self, at: Ints, usd: Floats, start_usd: Floats, dearer: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """Hourly costs, start costs [m, R] and costs of starts before the first hour [m], where the
        ``dearer`` parts pay their full rate instead of starts.
        """
        usd, start_usd, begin_usd = usd.copy(), linear(start_usd), self.parts.begin_usd[at].copy()
        usd[dearer] *= self.parts.full_share[at[dearer], None]
        start_usd[dearer], begin_usd[dearer] = 0.0, 0.0
        return usd, start_usd, begin_usd

    def walk(self, pools: tuple[int, ...], levels: Ints, counts: Ints) -> PoolFleet | None:
        """The cheapest fleet of the parts ``pools`` [m] at the given levels; None if there is none."""
        table, classes, at = self.parts, self.classes, np.array(pools, dtype=np.int64)
        cost = self._state_costs(at, levels, counts, table.usd[at])
        cut = classes.is_cut(table.sure_s[at])
        cost, of_hour = _without_gone(cost, classes.demand_of, cut, levels, counts)
        if self.openings is not None:
            cost, of_hour = self._where_open(self.openings, pools, cost, of_hour, levels, counts)
        start_usd = linear(table.start_usd[at])
        walk = cheapest_walk(cost, of_hour, classes.length, levels, counts, start_usd, table.begin_usd[at])
        if (walk < 0).any():
            return None
        found = state_levels(walk, levels, counts)
        return PoolFleet(pools, found, fleet_usd(table, classes, pools, found))

    def held_throughout(self, pools: tuple[int, ...], walked: PoolFleet) -> PoolFleet | None:
        """A fleet of the same parts whose nodes with minimum terms are held throughout, or None.

        A walk charges such nodes a rate and a start, which is less than what they cost when they are held for
        long. The search for their number begins at the most that the fleet ``walked`` uses in any hour, and
        moves one part at a time by steps that shrink to one level.
        """
        table, classes, at = self.parts, self.classes, np.array(pools, dtype=np.int64)
        held = np.flatnonzero(table.term_h[at])
        if not len(held) or self.openings is not None or classes.is_cut(table.sure_s[at]).any():
            return None
        hours = np.maximum(float(classes.length.sum()), table.term_h[at[held]])
        held_usd = table.usd[at[held]] * (table.full_share[at[held]] * hours)[:, None]
        length = np.zeros(len(classes.levels))
        np.add.at(length, classes.demand_of, classes.length)

        def price(levels: Ints) -> Floats:
            """USD [S] of the held levels [S, k] and the cheapest other parts beside them."""
            each_usd = held_usd[np.arange(len(held))[None, :], levels].sum(axis=1)
            usd: Floats = each_usd + length @ self._beside(at, levels, table.usd[at])
            return usd

        top = table.most[at[held]]
        levels, step = walked.levels.max(axis=0)[held], np.maximum(top // 4, 1)
        least = float(price(levels[None])[0])
        while np.isfinite(least):
            moves = np.concatenate((np.diag(step), -np.diag(step)))
            near = np.unique(np.clip(levels[None] + moves, 0, top), axis=0)
            usd = price(near)
            best = int(np.argmin(usd))
            if usd[best] < least:
                levels, least = near[best], float(usd[best])
            elif step.max() > 1:
                step = np.maximum(step // 2, 1)
            else:
                break
        return self._held_fleet(pools, held, levels)

    def _beside(self, at: Ints, levels: Ints, usd: Floats) -> Floats:
        """Least USD [D, S] an hour of the parts ``at`` [m] without minimum terms, for each level of demand,
        beside ``levels`` [S, k] of those with them. ``usd`` [m, R]: cost an hour.
        """
        table, rules = self.parts, self.rules
        slope = self.part_usd[SLOPE : SLOPE + 1, at]

        def beside(demand: Floats, rate: Floats) -> Floats:
            return costs_with_terms(
                table.term_h[at] > 0, levels, usd, usd_per_rate(slope, rate[None])[0], table.most[at], rate,
                table.place[at], demand, float(rules.spare), rules.idle, rules.places, rules.loss_share,
                rules.least_share, self.work,
            )  # fmt: skip

        return self._by_stage(at, beside)

    def _held_fleet(self, pools: tuple[int, ...], held: Ints, levels: Ints) -> PoolFleet | None:
        """The fleet that uses up to ``levels`` [k] of the ``held`` parts and the cheapest others in each
        hour.
        """
        table, classes, rules, at = self.parts, self.classes, self.rules, np.array(pools, dtype=np.int64)
        usd, most = table.usd[at].copy(), table.most[at].copy()
        usd[held], most[held] = 0.0, levels
        rates = self._rates(at)
        each = usd_per_rate(np.stack((usd, usd)), rates)
        found = np.zeros((len(classes.levels), len(at)), dtype=np.int64)
        for demand, stage, best in zip(classes.levels, classes.level_stage, found, strict=True):
            usd_per_hour = cover_hour(
                usd, each[stage], most, rates[stage], table.place[at], float(demand), float(rules.spare),
                rules.idle, rules.places, rules.loss_share, rules.least_share, np.inf, best, self.work,
            )  # fmt: skip
            if not np.isfinite(usd_per_hour):
                return None
        by_hour: Ints = found[classes.demand_of]
        return PoolFleet(pools, by_hour, fleet_usd(table, classes, pools, by_hour))

    def _where_open(
        self, openings: Openings, pools: tuple[int, ...], cost: Floats, of_hour: Ints, levels: Ints,
        counts: Ints,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        """Costs [C, S] of states by demand and situation, inf where other workloads hold the nodes; and the
        class of each hour [H].
        """
        allowed = [
            openings.allow(self.parts.pools[pool], *self.units)[:, levels[axis, : counts[axis]]]
            for axis, pool in enumerate(pools)
        ]
        return _only_allowed(cost, of_hour, openings.of_hour, allowed)

    def levels_of(self, pools: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The levels [m, K] to consider for each part, and their number [m]: all of them if there are few."""
        at = np.array(pools, dtype=np.int64)
        most = self.parts.most[at]
        if int(np.prod(most + 1)) > TUNING.fleets.most_states:
            return self.likely_levels(at)
        return all_levels(most), most + 1

    def likely_levels(self, at: Ints) -> tuple[Ints, Ints]:
        """The levels of each part in the cheapest covers of single hours, and the adjacent levels."""
        classes, rules = self.classes, self.rules
        order = at[np.argsort(self.parts.most[at], kind="stable")]
        table = self.parts.take(order)
        stage = classes.stage[classes.dual]
        phases = (classes.dual, classes.in_first_era(stage, TROUGH), classes.in_first_era(stage, PEAK))
        rate = self._rates(order)[classes.stage]
        prices = [(self.part_usd[:, order], rate, dual) for dual in phases]
        if classes.bands is not None and table.term_h.any():
            for charged in range(1, TUNING.fleets.bands, 2):
                banded_usd, dual, of_class = priced_in_bands(table, classes, charged)
                prices.append((banded_usd, rate[dual], of_class))
        wanted: list[set[int]] = [{0} for _ in order]
        best = np.zeros(len(order), dtype=np.int64)
        for part_usd, rates, dual in prices:
            each = usd_per_rate(part_usd, rates)
            for demand, price in {(float(d), int(p)) for d, p in zip(classes.demand, dual, strict=True)}:
                usd = cover_hour(
                    part_usd[price], each[price], table.most, rates[price], table.place, demand,
                    float(rules.spare), rules.idle, rules.places, rules.loss_share, rules.least_share, np.inf,
                    best, self.work,
                )  # fmt: skip
                if np.isfinite(usd):
                    for i, level in enumerate(best.tolist()):
                        near = (max(0, level - 1), level, min(level + 1, int(table.most[i])))
                        wanted[i].update(near)
        place = {int(pool): i for i, pool in enumerate(order)}
        chosen = [sorted(wanted[place[int(pool)]]) for pool in at]
        while int(np.prod([len(one) for one in chosen])) > TUNING.fleets.most_states:
            longest = max(range(len(chosen)), key=lambda i: len(chosen[i]))
            chosen[longest] = chosen[longest][::2] + chosen[longest][-1:]
        counts = np.array([len(one) for one in chosen], dtype=np.int64)
        levels = np.zeros((len(chosen), int(counts.max())), dtype=np.int64)
        for i, one in enumerate(chosen):
            levels[i, : len(one)] = one
        return levels, counts


def _only_allowed(
    cost: Floats, of_hour: Ints, situation: Ints, allowed: Sequence[Bools]
) -> tuple[Floats, Ints]:
    """Costs [C, S] of states by class and ``situation`` [H], and the class of each hour; inf where a level of
    a part is not ``allowed`` [K, levels] in one of the K situations.
    """
    kinds = len(allowed[0])
    blocked = np.zeros((kinds, *(one.shape[1] for one in allowed)))
    for axis, one in enumerate(allowed):
        shape = [kinds] + [1] * len(allowed)
        shape[axis + 1] = one.shape[1]
        blocked += np.where(one, 0.0, np.inf).reshape(shape)
    classes, of_each = np.unique(of_hour * kinds + situation, return_inverse=True)
    return cost[classes // kinds] + blocked.reshape(kinds, -1)[classes % kinds], of_each.reshape(-1)


def _without_gone(
    cost: Floats, of_hour: Ints, gone: Bools, levels: Ints, counts: Ints
) -> tuple[Floats, Ints]:
    """The same where nothing is held of parts that are ``gone`` [H, m]."""
    if not gone.any():
        return cost, of_hour
    kinds, situation = np.unique(gone, axis=0, return_inverse=True)
    allowed = [
        ~kinds[:, axis, None] | (levels[axis, :count] == 0)[None, :] for axis, count in enumerate(counts)
    ]
    return _only_allowed(cost, of_hour, situation.reshape(-1), allowed)


def fleet_usd(table: PoolTable, classes: HourClasses, pools: tuple[int, ...], levels: Ints) -> float:
    """Cost of a fleet with ``levels`` [H, m] of the parts ``pools`` [m]. Starts before the first hour are
    free, except for minimum terms.
    """
    total = 0.0
    for column, row in enumerate(pools):
        mine = np.ascontiguousarray(levels[:, column])
        usd, start = table.usd[row], table.start_usd[row]
        if table.term_h[row] > 0:
            each = np.diff(linear(usd), prepend=0.0) * table.full_share[row]
            lead = np.maximum(np.diff(linear(start), prepend=0.0) - table.begin_usd[row], 0.0)
            total += term_usd(mine, each, lead, table.term_h[row], classes.length)
        else:
            total += float(usd[mine] @ classes.length + np.maximum(np.diff(start[mine]), 0).sum())
    return total


def _all_and_each(rows: Ints) -> list[Ints]:
    """All rows together, then each one alone if there are several."""
    if not len(rows):
        return []
    return [rows, *(rows[i : i + 1] for i in range(len(rows) if len(rows) > 1 else 0))]


def all_levels(most: Ints) -> Ints:
    """The levels [m, R] of parts that may each have any level up to ``most`` [m]."""
    return np.tile(np.arange(int(most.max()) + 1), (len(most), 1))


def linear(start_usd: Floats) -> Floats:
    """Start costs with 0 for levels that do not exist."""
    found: Floats = np.where(np.isfinite(start_usd), start_usd, 0.0)
    return found
