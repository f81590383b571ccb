"""Dual prices of starts for fleets on many pools, and the resulting lower bound, by a subgradient method.

Let n[h] be the replicas ready in hour h, S(n) the cost of starting n replicas, and usd(n) the cost of an
hour. For any multipliers 0 ≤ θ[h] ≤ 1 (θ = 0 outside the horizon),

  Σ_h (S(n[h]) − S(n[h−1]))⁺ ≥ Σ_h θ[h]·(S(n[h]) − S(n[h−1])).

So hour h costs usd(n) + (θ[h] − θ[h+1])·S(n), and the sum over hours of the cheapest cover is a lower bound
(a Lagrangian relaxation). θ starts at 1 while demand rises and at 0 while it falls. It follows the
subgradient with Polyak's step towards the cost of the best known fleet. If demand repeats, so does θ. O
owners, R levels, H hours, T slots.
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
"""With more hours that do not repeat, θ keeps its initial value."""
STEPS_UP, STEPS_UP_IN_PLACES = 120, 12
"""Subgradient steps; covers in several places take ten times as long."""
DEFLECTION = 0.7
PATIENCE = 4
"""Steps without a better bound before the step size is halved."""
NEARBY = 0.01
SMALL_STEP = 0.05
SMALL_GAP = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Equal hours [T]: ``hour`` of the demand, how many (``count``), and ``length`` of each in hours.

    ``here`` and ``next`` [T] index the θ of the hour and of the hour after it; -1 if that is 0.
    """

    demand: Floats
    count: Floats
    length: Floats
    here: Ints
    next: Ints
    period: int


def slots_of(classes: HourClasses) -> Slots:
    """The slots of the hours: those of a period, and the first and the last hour separately."""
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
    """Multipliers ``theta`` [T, O] of each pool in each hour of the period, and the bound that they prove.

    ``usd`` and ``start_usd`` [L, R] are lower bounds on an hour and on a start of each level; ``first`` [O]
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
        """The initial multipliers: 1 while demand rises and 0 while it falls."""
        slots = slots_of(classes)
        demand = classes.levels[classes.demand_of][: slots.period]
        rising = np.zeros(slots.period)
        for hour in (*range(len(demand)), *range(len(demand))):
            step = demand[hour] - demand[hour - 1]
            rising[hour] = rising[hour - 1] if abs(step) <= 1e-12 else float(step > 0)
        theta = np.repeat(rising[:, None], len(first), axis=1)
        return cls(table, slots, first, covers, theta, _worth_starting(table), np.ones(len(slots.demand)))

    def charged(self, power: float) -> StartDuals:
        """A copy that charges commitments in proportion to demand to the given ``power``."""
        slots = self.slots
        weights = np.maximum(slots.demand, 1e-12) ** power
        weights *= (slots.count @ slots.length) / float((weights * slots.count) @ slots.length)
        return replace(self, weights=weights)

    def prices(self, slot: int) -> tuple[PoolPrices, Floats]:
        """Lower bound on each level of a pool in a slot, whatever is committed of it, and its start costs S
        [O, R].
        """
        table, here, after = self.table, int(self.slots.here[slot]), int(self.slots.next[slot])
        nothing = np.zeros(len(self.first))
        change = (self.theta[here] if here >= 0 else nothing) - (self.theta[after] if after >= 0 else nothing)
        usd = table.least_usd + (self.weights[slot] - 1.0) * table.least_usd[:, :1]
        return self._least(usd * self.slots.length[slot], change)

    def without_starts(self) -> PoolPrices:
        """Lower bound on each level of a pool in an hour, with commitments charged evenly over the hours."""
        return self._least(self.table.least_usd, np.zeros(len(self.first)))[0]

    def _least(self, usd: Floats, change: Floats) -> tuple[PoolPrices, Floats]:
        """Minimum over an owner's committed amounts of ``usd`` [L, R] + ``change`` [O] × S."""
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

    def ascend(
        self, target_usd: float, out_of_time: Callable[[], bool] = never
    ) -> tuple[StartDuals, list[Ints]]:
        """Subgradient ascent: multipliers with a higher bound, and the cheapest covers [O] found on the
        way.
        """
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
            way = now.subgradient(levels) + DEFLECTION * way
            norm = float((way**2).sum())
            if norm <= 0 or share < SMALL_STEP or target_usd - best_usd < SMALL_GAP * target_usd:
                break
            if out_of_time():
                break
            step = share * (target_usd - usd) / norm
            now = replace(now, theta=np.clip(now.theta + step * way, 0.0, 1.0))
        return best, found

    def hours_usd(self, known: list[Ints | None]) -> tuple[float, list[Ints | None]]:
        """The bound, and levels [T] of [O] that attain it; ``known`` levels attained it at a nearby θ."""
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

    def subgradient(self, levels: list[Ints | None]) -> Floats:
        """A subgradient of the bound in θ."""
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
        """Lower bound of each slot [T] on some owners [O], computed only while the total may stay below
        ``enough``.
        """
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
    """A lower bound on the cost of starting each level [L, R] that never exceeds one hour of it."""
    found = np.where(np.isfinite(table.least_start_usd), table.least_start_usd, 0.0)
    for pool in range(len(table)):
        levels = np.arange(table.most[pool] + 1)
        usd, start = table.least_usd[pool, levels], found[pool, levels]
        beyond = start > 0
        if beyond.any():
            base = usd[~beyond].max(initial=0.0)
            found[pool] *= min(1.0, max(0.0, float(((usd[beyond] - base) / start[beyond]).min())))
    return found
