"""The least that a fleet costs: each unit's cost is shared among hours, and each hour takes its cheapest.

Whatever the sharing (``hour_prices``), the cheapest cover of each hour at those prices (``hour_covers``)
sums to a lower bound. The sharing is improved step by step: a unit is charged more in the hours whose
covers use it, less in the others, over a growing pool of covers, until the bound hardly rises.
N units, K classes of hours, M covers of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleet_menu import EPSILON, STEPS, Menu, build_menu, step_rate
from optimizer.placement.hour_covers import ZoneStates, hour_covers, zone_states
from optimizer.placement.hour_prices import (
    HourClasses,
    Sharing,
    hour_classes,
    sharing,
    valid_prices,
)
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import FleetCase

MAX_PASSES = 16
FIRST_HOPE = 0.05
FIRST_PARTS = (0.2, 0.4, 0.7)
STEPS_A_PASS = 60
GOOD_ENOUGH = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class FleetDual:
    """``least_usd``: no fleet costs less. ``pool`` [M, N]: covers that came up, ``needs`` [K] in steps."""

    least_usd: float
    menu: Menu
    pool: Ints
    prices: Floats


@dataclass(slots=True, eq=False)
class _Ascent:
    """The state of the search for a sharing; ``reach`` [M]: highest class that each cover of the pool meets."""

    menu: Menu
    states: ZoneStates
    share: Sharing
    classes: HourClasses
    needs: Ints
    pool: Ints
    reach: Ints
    reached_usd: float
    prices: Floats
    value: Floats

    def price(self, tried: Sequence[Floats]) -> None:
        """The bound at valid prices near each of ``tried``, starts charged from the first hour on.

        The covers join the pool.
        """
        late = [valid_prices(self.menu, self.share, prices)[1] for prices in tried]
        usd = np.concatenate(late, axis=1) + self.menu.surcharge_usd[:, None]
        found = hour_covers(self.menu, self.states, usd, np.tile(self.needs, len(tried)))
        for prices, hourly in zip(tried, np.split(found.usd, len(tried)), strict=True):
            bound = float(hourly @ self.classes.hours)
            if bound > self.reached_usd:
                self.reached_usd, self.prices, self.value = bound, prices, hourly
        if np.isfinite(self.reached_usd):
            self._add(found.counts, np.tile(np.arange(len(self.needs)), len(tried)))

    def certified_usd(self) -> float:
        """The bound at the best prices, no start charged to what may be held since the first hour."""
        settled = np.arange(len(self.classes.of)) >= self.classes.settled
        count = len(self.needs)
        weights = np.concatenate(
            [
                np.bincount(self.classes.of, self.classes.lengths * chosen, minlength=count)
                for chosen in (~settled, settled)
            ]
        )
        used = np.flatnonzero(weights > 0)
        usd = np.concatenate(valid_prices(self.menu, self.share, self.prices), axis=1)[:, used]
        usd += self.menu.surcharge_usd[:, None]
        found = hour_covers(self.menu, self.states, usd, np.tile(self.needs, 2)[used])
        return float(found.usd @ weights[used])

    def spread(self, prices: Floats) -> Floats:
        """Units of no cover in the pool are charged where they would be worth most."""
        unused = self.pool.sum(axis=0) == 0
        part = np.minimum(self.menu.steps[:, None] / np.maximum(self.needs[None, :], 1), 1.0)
        return np.where(unused[:, None], self.share.near(part * self.value[None, :]), prices)

    def _add(self, counts: Ints, reach: Ints) -> None:
        pool = np.concatenate((self.pool, counts))
        reach = np.concatenate((self.reach, reach))
        unique, inverse = np.unique(pool, axis=0, return_inverse=True)
        highest = np.full(len(unique), -1, dtype=np.int64)
        np.maximum.at(highest, inverse, reach)
        self.pool, self.reach = unique, highest

    def climb(self, prices: Floats, aim: float) -> tuple[Floats, float]:
        """Steps of the pool's own bound from ``prices`` towards ``aim``; the best prices and their bound."""
        used = np.flatnonzero(self.pool.any(axis=0))
        share, scarce = self.share.take(used), self.menu.surcharge_usd[used, None]
        hours, covers = self.classes.hours, self.pool[:, used].astype(np.float64)
        column = np.arange(len(hours))
        missing = np.where(self.reach[:, None] >= column[None, :], 0.0, np.inf)
        now = share.near(prices[used])
        best, best_usd, stale, reach = now, -np.inf, 0, 1.0
        for _ in range(STEPS_A_PASS):
            usd = covers @ (now + scarce) + missing
            chosen = usd.argmin(axis=0)
            value = float(usd[chosen, column] @ hours)
            if value > best_usd:
                best, best_usd, stale = now, value, 0
            else:
                stale += 1
                if stale % 4 == 0:
                    reach *= 0.6
            taken = covers[chosen].T
            slope = taken - (taken @ hours / hours.sum())[:, None]
            length = float(((slope * slope) @ hours).sum())
            if length < 1e-12 or best_usd >= aim * (1 - 1e-4):
                break
            now = share.near(now + reach * max(aim - value, 1e-3 * aim) / length * slope)
        found = prices.copy()
        found[used] = best
        return found, best_usd


def build_dual(problem: Problem, case: FleetCase, first_hour: int, lengths: Floats) -> FleetDual:
    """The dual of a service due from ``first_hour``, with the ``lengths`` [H] that its hours are held."""
    menu = build_menu(problem, case, float(lengths.sum()))
    demand = case.demand[first_hour:]
    needs = np.minimum(np.floor(demand / step_rate(case) * (1 - EPSILON)), STEPS).astype(np.int64)
    classes = hour_classes(demand, lengths, needs)
    share = sharing(menu, classes)
    flat = share.flat()
    nothing = np.zeros((0, len(menu)), dtype=np.int64)
    ascent = _Ascent(
        menu,
        zone_states(menu, case.zones),
        share,
        classes,
        np.unique(needs),
        nothing,
        np.zeros(0, dtype=np.int64),
        -np.inf,
        flat,
        np.ones(len(np.unique(needs))),
    )
    ascent.price(_first_prices(share, flat, ascent.needs))
    hope = FIRST_HOPE
    for _ in range(MAX_PASSES):
        before = ascent.reached_usd
        if not np.isfinite(before) or hope < GOOD_ENOUGH:
            break
        prices, hoped = ascent.climb(ascent.prices, before * (1 + hope))
        if hoped < before * (1 + GOOD_ENOUGH):
            break
        ascent.price([prices, ascent.spread(prices)])
        gained = ascent.reached_usd - before
        hope = (hoped / before - 1) * (1.3 if gained > 0.5 * (hoped - before) else 0.5)
    return FleetDual(ascent.certified_usd(), menu, ascent.pool, ascent.prices)


def _first_prices(share: Sharing, flat: Floats, needs: Ints) -> list[Floats]:
    """Every hour alike, and the hours of higher needs alone."""
    tried = [flat]
    for part in FIRST_PARTS:
        high = needs >= needs[min(len(needs) - 1, int(part * len(needs)))]
        peaked = np.where(share.bound[:, None], high[None, :], share.usd[:, None] * (1 + high[None, :]))
        tried.append(share.near(peaked))
    return tried
