"""The dual prices of starts for fleets on many pools, and the bound of the hours at these prices.

A fleet that has n[h] ready in hour h pays Σ_h (S(n[h]) − S(n[h−1]))⁺ for starts, which is at least
Σ_h θ[h]·(S(n[h]) − S(n[h−1])) for any 0 ≤ θ ≤ 1. So an hour costs usd(n) + (θ[h] − θ[h+1])·S(n), and the sum
of the cheapest covers of all hours is a bound (Dantzig and Wolfe's, relaxed after Lagrange). θ begins at 1
while demand rises and at 0 while it falls, and goes up the subgradient with Polyak's step towards the cost of
the best fleet that is known. Where demand repeats, so does θ. O owners, R levels, H hours, T slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.fleets.covers import HourCovers, PoolPrices
from optimizer.placement.fleets.hours import HourClasses
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.stopwatch import never

MOST_HOURS = 240
"""Of hours that do not repeat; of more, θ stays what it is at the beginning."""
STEPS_UP, STEPS_UP_IN_PLACES = 120, 12
"""Steps of θ: covers in several places take ten times as long."""
DEFLECTION = 0.7
PATIENCE = 4
"""Steps without a better bound before they are halved."""
NEARBY = 0.01
SMALL_STEP = 0.05
SMALL_GAP = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Hours that are alike [T]: ``hour`` of the demand, how many (``count``), ``length`` of each in hours;
    ``here`` and ``next`` [T] number the θ of the hour and of the one after it, -1 where that is 0."""

    demand: Floats
    count: Floats
    length: Floats
    here: Ints
    next: Ints
    period: int


def slots_of(classes: HourClasses) -> Slots:
    """The slots of some hours: those of a period, and the first and the last hour on their own."""
    demand, hours = classes.levels[classes.demand_of], len(classes.demand_of)
    period = classes.period if classes.period else hours
    inner = np.arange(1, hours - 1) % period
    kinds, first, count = np.unique(inner, return_index=True, return_counts=True)
    hour = np.concatenate(([0], first + 1, [hours - 1] if hours > 1 else [])).astype(np.int64)
    here = np.concatenate(([-1], kinds, [(hours - 1) % period] if hours > 1 else [])).astype(np.int64)
    after = np.concatenate(
        ([1 % period if hours > 1 else -1], (kinds + 1) % period, [-1] if hours > 1 else [])
    )
    counts = np.concatenate(([1.0], count, [1.0] if hours > 1 else []))
    return Slots(
        demand[hour], counts.astype(np.float64), classes.length[hour], here, after.astype(np.int64), period
    )


@dataclass(slots=True, eq=False)
class StartDuals:
    """θ [T, O] of each pool in each hour of the period, and what it proves.

    ``usd`` and ``start_usd`` [L, R] are the least that an hour and a start of each level cost; ``first`` [O]
    is the first row of each owner. ``weights`` [T] say what part of a commitment each slot is charged.
    """

    table: PoolTable
    slots: Slots
    first: Ints
    covers: HourCovers
    theta: Floats
    start_usd: Floats
    weights: Floats

    @classmethod
    def begin(cls, table: PoolTable, classes: HourClasses, first: Ints, covers: HourCovers) -> StartDuals:
        """θ that is 1 while demand rises and 0 while it falls."""
        slots = slots_of(classes)
        demand = classes.levels[classes.demand_of][: slots.period]
        rising = np.zeros(slots.period)
        for hour in (*range(len(demand)), *range(len(demand))):
            step = demand[hour] - demand[hour - 1]
            rising[hour] = rising[hour - 1] if abs(step) <= 1e-12 else float(step > 0)
        theta = np.repeat(rising[:, None], len(first), axis=1)
        return cls(table, slots, first, covers, theta, _worth_starting(table), np.ones(len(slots.demand)))

    def charged(self, power: float) -> StartDuals:
        """With what is owed in full charged by weights that grow with the ``power`` of the demand."""
        slots = self.slots
        weights = np.maximum(slots.demand, 1e-12) ** power
        weights *= (slots.count @ slots.length) / float((weights * slots.count) @ slots.length)
        return replace(self, weights=weights)

    def prices(self, slot: int) -> tuple[PoolPrices, Floats]:
        """What each level of a pool costs at least in a slot, whatever it is committed to, and its S
        [O, R]."""
        table, here, after = self.table, int(self.slots.here[slot]), int(self.slots.next[slot])
        nothing = np.zeros(len(self.first))
        change = (self.theta[here] if here >= 0 else nothing) - (self.theta[after] if after >= 0 else nothing)
        usd = table.least_usd + (self.weights[slot] - 1.0) * table.least_usd[:, :1]
        return self._least(usd * self.slots.length[slot], change)

    def without_starts(self) -> PoolPrices:
        """What each level of a pool costs at least in an hour, with the even part of what is owed."""
        return self._least(self.table.least_usd, np.zeros(len(self.first)))[0]

    def _least(self, usd: Floats, change: Floats) -> tuple[PoolPrices, Floats]:
        """The least of ``usd`` [L, R] and ``change`` [O] times S over what each owner may be committed to."""
        table = self.table
        owner = np.searchsorted(self.first, np.arange(len(table)), side="right") - 1
        usd = usd + change[owner][:, None] * self.start_usd
        if len(self.first) == len(table):
            least, starts = usd, self.start_usd
        else:
            least = np.minimum.reduceat(usd, self.first, axis=0)
            cheapest = np.where(usd <= least[owner], self.start_usd, np.inf)
            starts = np.minimum.reduceat(cheapest, self.first, axis=0)
        least = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]
        least[:, 0] = 0.0
        most = np.maximum.reduceat(table.most, self.first)
        prices = PoolPrices(
            np.ascontiguousarray(least), table.rate[self.first], most, table.place[self.first],
            np.arange(len(most)),
        )  # fmt: skip
        return prices, starts

    def climb(
        self, target_usd: float, out_of_time: Callable[[], bool] = never
    ) -> tuple[StartDuals, list[Ints]]:
        """θ with a higher bound, and the covers [O] that were cheapest on the way there."""
        found = list[Ints]()
        if len(self.slots.demand) > MOST_HOURS or not np.isfinite(target_usd):
            return self, found
        now, best, best_usd, share, waited = self, self, -np.inf, 1.0, 0
        way, levels = np.zeros_like(self.theta), list[Ints | None]([None] * len(self.slots.demand))
        for _ in range(STEPS_UP_IN_PLACES if self.covers.rules.places > 1 else STEPS_UP):
            usd, levels = now.hours_usd(levels)
            found += [one for one in levels if one is not None]
            waited = 0 if usd > best_usd + SMALL_GAP * (target_usd - best_usd) else waited + 1
            if usd > best_usd:
                best, best_usd, best_levels = now, usd, levels
            if waited >= PATIENCE:
                share, waited, now, usd, levels = share / 2, 0, best, best_usd, best_levels
                way = np.zeros_like(way)
            way = now.slope(levels) + DEFLECTION * way
            norm = float((way**2).sum())
            if norm <= 0 or share < SMALL_STEP or target_usd - best_usd < SMALL_GAP * target_usd:
                break
            if out_of_time():
                break
            step = share * (target_usd - usd) / norm
            now = replace(now, theta=np.clip(now.theta + step * way, 0.0, 1.0))
        return best, found

    def hours_usd(self, known: list[Ints | None]) -> tuple[float, list[Ints | None]]:
        """The bound, and levels [T] of [O] that cost so much; ``known`` ones were that at a θ nearby."""
        slots, usd, found, owners = self.slots, 0.0, list[Ints | None](), np.arange(len(self.first))
        for slot in range(len(slots.demand)):
            prices, _ = self.prices(slot)
            near, enough = known[slot], np.inf
            if near is not None:
                enough = float(prices.usd[owners, near].sum()) * (1 + NEARBY) + NEARBY
            least, levels = self.covers.bound(prices, float(slots.demand[slot]), enough)
            usd += slots.count[slot] * least
            found.append(near if levels is None else levels)
        return usd, found

    def slope(self, levels: list[Ints | None]) -> Floats:
        """The subgradient of the bound in θ."""
        slots, found, owners = self.slots, np.zeros_like(self.theta), np.arange(len(self.first))
        for slot, level in enumerate(levels):
            if level is None:
                continue
            _, starts = self.prices(slot)
            begun = slots.count[slot] * starts[owners, level]
            if slots.here[slot] >= 0:
                found[slots.here[slot]] += begun
            if slots.next[slot] >= 0:
                found[slots.next[slot]] -= begun
        return found

    def bounds_usd(self, within: Bools | None, known: Floats, enough: float) -> Floats:
        """What each slot [T] costs at least on some owners [O], if that may be below ``enough`` in all."""
        found, slots = known.copy(), self.slots
        at = np.arange(len(self.first)) if within is None else np.flatnonzero(within)
        for slot in np.argsort(-slots.demand * slots.count, kind="stable"):
            room = enough - (found.sum() - found[slot])
            if room <= found[slot]:
                break
            prices = self.prices(int(slot))[0].take(at)
            least = self.covers.bound_usd(prices, float(slots.demand[slot]), room / float(slots.count[slot]))
            found[slot] = max(found[slot], least * slots.count[slot])
            if np.isinf(found[slot]):
                break
        return found


def _worth_starting(table: PoolTable) -> Floats:
    """A lower bound on what starting each level [L, R] costs, never more than an hour of it."""
    found = np.where(np.isfinite(table.least_start_usd), table.least_start_usd, 0.0)
    for pool in range(len(table)):
        levels = np.arange(table.most[pool] + 1)
        usd, start = table.least_usd[pool, levels], found[pool, levels]
        beyond = start > 0
        if beyond.any():
            base = usd[~beyond].max(initial=0.0)
            found[pool] *= min(1.0, max(0.0, float(((usd[beyond] - base) / start[beyond]).min())))
    return found
