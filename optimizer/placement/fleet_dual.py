"""The least that a fleet costs: each unit's cost is shared among hours, and each hour takes its cheapest.

Whatever the sharing (``hour_prices``), the cheapest cover of each hour at those prices (``hour_covers``)
sums to a lower bound. The sharing is improved step by step: a unit is charged more in the hours whose
covers use it, less in the others, over a growing pool of covers, until the bound hardly rises.
N units, K classes of hours, M covers of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.placement.fleet_covers import cover_columns
from optimizer.placement.fleet_menu import EPSILON, STEPS, Menu, build_menu, step_rate
from optimizer.placement.hour_covers import ZoneStates, hour_covers, least_usd, zone_states
from optimizer.placement.hour_prices import (
    SPARED_PARTS,
    HourClasses,
    Sharing,
    hour_classes,
    sharing,
    valid_prices,
)
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.sharing_steps import climbed
from optimizer.placement.stopwatch import never
from optimizer.placement.units import Counts, FleetCase, in_stock

MAX_PASSES = 48
FEW_PASSES = 6
LEAST_PASSES = 12
MAX_WORK = 240_000
PATIENCE = 5
STEPS_A_PASS = 30
LOOKS = 4
FIRST_HOPE = 0.05
LEAST_HOPE = 0.02
HELPED_PART, BOLDER, MORE_CAREFUL = 0.3, 1.5, 0.7
GOOD_ENOUGH = 0.002
PROVEN = 0.0005
HOPELESS = 1.01
FIRST_PARTS = (0.4,)


@dataclass(frozen=True, slots=True, eq=False)
class FleetDual:
    """``least_usd``: no fleet costs less. ``covers`` [M, U]: counts of the case's units that are cheap."""

    least_usd: float
    covers: Counts


@dataclass(slots=True, eq=False)
class _Ascent:
    """The search for a sharing. ``reach`` [M]: the highest class that each cover of the pool meets;
    ``reached_usd``: what the covers cost at the best ``prices`` [N, K], ``value`` [K] an hour.

    Most looks are at the units of the pool alone, so that what they reach is too high where another unit
    is cheaper; ``sure_usd`` and ``sure_prices`` are the best of the looks at all units.
    """

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
    places: dict[bytes, int] = field(default_factory=dict)
    sure_usd: float = -np.inf
    sure_prices: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    sure_value: Floats = field(default_factory=lambda: np.zeros(0))

    def look(self, prices: Floats) -> None:
        """What the covers of known units cost at the prices."""
        usd, value = self._covered(prices, self._known())
        if usd > self.reached_usd:
            self.reached_usd, self.prices, self.value = usd, prices, value

    def look_at_all(self, prices: Floats) -> None:
        """What the covers of all units cost at the prices, from which the search then goes on."""
        self.reached_usd, self.value = self._covered(prices, np.arange(len(self.menu)))
        self.prices = prices
        if self.reached_usd > self.sure_usd:
            self.sure_usd, self.sure_prices = self.reached_usd, prices
            self.sure_value = self.value

    def restart(self) -> None:
        """Goes on from the best of the looks at all units."""
        self.reached_usd, self.prices, self.value = self.sure_usd, self.sure_prices, self.sure_value

    def _covered(self, prices: Floats, at: Ints) -> tuple[float, Floats]:
        """Cost of the covers by some units, as if every day were usual; [K] an hour. They join the pool."""
        usd = prices[at] + self.menu.surcharge_usd[at, None]
        found = hour_covers(self.menu.take(at), self.states, usd, self.needs)
        whole = float(found.usd @ self.classes.hours)
        if np.isfinite(whole):
            counts = np.zeros((len(found.counts), len(self.menu)), dtype=np.int64)
            counts[:, at] = found.counts
            self._add(counts, np.arange(len(self.needs)))
        return whole, found.usd

    def certified_usd(self) -> float:
        """The bound: what the covers cost at valid prices near the best."""
        weights = self.classes.spread().reshape(-1)
        used = np.flatnonzero(weights > 0)
        needs, known = np.tile(self.needs, len(weights) // len(self.needs))[used], self._known()

        def least(valid: Floats, at: Ints) -> float:
            usd = np.concatenate(list(valid[:, at]), axis=1)[:, used] + self.menu.surcharge_usd[at, None]
            return float(least_usd(self.menu.take(at), self.states, usd, needs) @ weights[used])

        each = [
            valid_prices(self.menu, self.share, self.sure_prices, spared) for spared in ((1.0,), SPARED_PARTS)
        ]
        return least(max(each, key=lambda valid: least(valid, known)), np.arange(len(self.menu)))

    def _known(self) -> Ints:
        """Units of the pool."""
        return np.flatnonzero(self.pool.any(axis=0))

    def spread(self, prices: Floats) -> Floats:
        """Units of no cover in the pool are charged where they would be worth most."""
        unused = self.pool.sum(axis=0) == 0
        part = np.minimum(self.menu.steps[:, None] / np.maximum(self.needs[None, :], 1), 1.0)
        return np.where(unused[:, None], self.share.near(part * self.value[None, :]), prices)

    def _add(self, counts: Ints, reach: Ints) -> None:
        """Covers join the pool; one that is in it may now be known to reach higher."""
        fresh, highest = list[Ints](), list[int]()
        for row, top in zip(counts, reach, strict=True):
            place = self.places.setdefault(row.tobytes(), len(self.places))
            if place < len(self.pool):
                self.reach[place] = max(self.reach[place], top)
            elif place - len(self.pool) < len(fresh):
                highest[place - len(self.pool)] = max(highest[place - len(self.pool)], int(top))
            else:
                fresh.append(row)
                highest.append(int(top))
        if fresh:
            self.pool = np.concatenate((self.pool, np.array(fresh)))
            self.reach = np.concatenate((self.reach, np.array(highest)))

    def climb(self, prices: Floats, aim: float) -> tuple[Floats, float]:
        """Steps of the pool's own bound from ``prices`` towards ``aim``; the best prices and their bound."""
        used = self._known()
        share = self.share.take(used)
        best, best_usd = climbed(
            prices[used],
            self.menu.surcharge_usd[used],
            share.terms(),
            np.ascontiguousarray(self.pool[:, used]),
            self.reach,
            self.classes.hours,
            share.day(),
            aim,
            STEPS_A_PASS,
        )
        found = prices.copy()
        found[used] = best
        return found, best_usd


def build_dual(
    problem: Problem,
    case: FleetCase,
    first_hour: int,
    lengths: Floats,
    known_usd: float = 0.0,
    out_of_time: Callable[[], bool] = never,
) -> FleetDual:
    """The dual of a service due from ``first_hour``, with the ``lengths`` [H] that its hours are held.

    Where a fleet on the first covers costs hardly more than another bound, ``known_usd``, that one is kept.
    When ``out_of_time``, the sharing stays as it is by then.
    """
    ascent = _begun(problem, case, first_hour, lengths)
    first = _covers(problem, case, ascent)
    if known_usd > 0 and _is_reached(problem, case, first, known_usd * (1 + PROVEN)):
        return FleetDual(known_usd, first)
    _ascend(ascent, MAX_PASSES, out_of_time)
    return FleetDual(ascent.certified_usd(), _covers(problem, case, ascent))


def _is_reached(problem: Problem, case: FleetCase, covers: Counts, usd: float) -> bool:
    """Whether a fleet on some covers costs no more; nothing is known of it at prices of scarcity.

    The fleets come with the most promising first: where one is far above, the next are no better.
    """
    if case.units.surcharge_usd_per_hour.any():
        return False
    for column in cover_columns(problem, replace(case, covers=covers), problem.table.stock_nodes, [None]):
        if column.total_cents / 100 <= usd:
            return True
        if column.total_cents / 100 > usd * HOPELESS:
            return False
    return False


def cheap_covers(problem: Problem, case: FleetCase, first_hour: int) -> Counts:
    """Covers [M, U] that are cheap from ``first_hour`` on, found in a few passes and without a bound."""
    ascent = _begun(problem, case, first_hour, np.ones(len(case.demand) - first_hour))
    _ascend(ascent, FEW_PASSES)
    return _covers(problem, case, ascent)


def prices_by_hour(problem: Problem, case: FleetCase, first_hour: int, lengths: Floats) -> Floats:
    """USD an hour [N, H] of the menu's units near the best of the dual, prices of scarcity not in them."""
    ascent = _begun(problem, case, first_hour, lengths)
    _ascend(ascent, LEAST_PASSES)
    prices = ascent.sure_prices if np.isfinite(ascent.sure_usd) else ascent.share.flat()
    found: Floats = prices[:, ascent.classes.of]
    return found


def _covers(problem: Problem, case: FleetCase, ascent: _Ascent) -> Counts:
    covers = np.zeros((len(ascent.pool), len(case.units)), dtype=np.int16)
    for place, unit in enumerate(ascent.menu.unit):
        covers[:, unit] += ascent.pool[:, place].astype(np.int16)
    # Two configurations of one offer may together ask for more nodes than it has.
    return covers[in_stock(case, covers, problem.table.stock_nodes)]


def _begun(problem: Problem, case: FleetCase, first_hour: int, lengths: Floats) -> _Ascent:
    menu = build_menu(problem, case, float(lengths.sum()))
    demand = case.demand[first_hour:]
    needs = np.minimum(np.floor(demand / step_rate(case) * (1 - EPSILON)), STEPS).astype(np.int64)
    shortest = float(menu.term_h[menu.term_h > 0].min(initial=lengths.sum()))
    classes = hour_classes(demand, lengths, needs, shortest)
    share = sharing(menu, classes)
    ascent = _Ascent(
        menu=menu,
        states=zone_states(menu, case.zones),
        share=share,
        classes=classes,
        needs=np.unique(needs),
        pool=np.zeros((0, len(menu)), dtype=np.int64),
        reach=np.zeros(0, dtype=np.int64),
        reached_usd=-np.inf,
        prices=share.flat(),
        value=np.ones(len(classes.hours)),
    )
    first = _first_prices(share, ascent.needs)
    for prices in first:
        ascent.look_at_all(prices)
    ascent.restart()
    return ascent


def _ascend(ascent: _Ascent, most: int, out_of_time: Callable[[], bool] = never) -> None:
    """Passes of small steps on the pool and one look at all units, until they hardly help."""
    hope, sure = FIRST_HOPE, [ascent.sure_usd]
    passes = MAX_WORK // (len(ascent.menu) * ascent.states.count * len(ascent.needs))
    for number in range(1, min(most, max(LEAST_PASSES, passes)) + 1):
        before = ascent.reached_usd
        if not np.isfinite(before) or out_of_time():
            break
        prices, hoped = ascent.climb(ascent.prices, before * (1 + hope))
        settled = hoped < before * (1 + GOOD_ENOUGH)
        if settled or number % LOOKS == 0:
            ascent.look_at_all(ascent.spread(prices))
            sure.append(ascent.sure_usd)
            if len(sure) > PATIENCE and sure[-1] < sure[-1 - PATIENCE] * (1 + GOOD_ENOUGH):
                break
        else:
            ascent.look(prices)
        helped = ascent.reached_usd - before > HELPED_PART * (hoped - before)
        hope = max(LEAST_HOPE, (hoped / before - 1) * (BOLDER if helped else MORE_CAREFUL))
    if ascent.prices is not ascent.sure_prices:
        ascent.look_at_all(ascent.spread(ascent.prices))


def _first_prices(share: Sharing, needs: Ints) -> list[Floats]:
    """Every hour alike, and the hours of higher needs alone."""
    tried = [share.flat()]
    for part in FIRST_PARTS:
        high = needs >= needs[min(len(needs) - 1, int(part * len(needs)))]
        peaked = np.where(share.bound[:, None], high[None, :], share.usd[:, None] * (1 + high[None, :]))
        tried.append(share.near(peaked))
    return tried
