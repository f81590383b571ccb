"""The bound over shared stock: every workload at its least at prices of scarcity, less the stock's worth.

A Lagrangian relaxation of the stock. Runs take the cheapest of *all* their candidates at the prices, begun
at once or just after a priced instant; services the least that any fleet costs at them (``fleet_bound``).
What a service costs never falls when a price rises, so a service that is not asked again still counts
with what is known of it at prices no higher.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.workload import Serving
from optimizer.placement.candidates import (
    MOST_AMOUNTS,
    MOST_PLACEMENTS,
    Candidates,
    unplaced_cents,
)
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_days import MOST_PASSES, passes_for
from optimizer.placement.oracle_asks import DAYS, DUAL, LAYERS, LONG_DAYS, PricedAnswer, PricedAsk
from optimizer.placement.oracle_crew import Task
from optimizer.placement.priced_runs import priced_runs
from optimizer.placement.prices import StockPrices, counted_midway, middle_s
from optimizer.placement.problem import Ints
from optimizer.placement.run_pool import RunPool
from optimizer.placement.stopwatch import never
from optimizer.placement.units import Counts, FleetCase, no_covers, surcharged

ROUNDING_USD = 0.005
KEPT_PRICES = 4
SMALL_SHARE = 0.15

Paid = frozenset[tuple[int, float]]
"""(offer, USD per node-hour) of every priced offer that a service could want."""


NO_PRICES: Paid = frozenset()


@dataclass(frozen=True, slots=True)
class PricedRun:
    """The cheapest candidate of a run at some prices: its index, its start, and what it costs with them."""

    index: int
    start_s: int
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class DualPoint:
    """Prices and what they prove. ``least_usd`` by workload, what leaving it out costs included."""

    prices: StockPrices
    least_usd: Mapping[str, float]
    total_usd: float

    @property
    def cents(self) -> int:
        """The bound in whole cents."""
        return int(np.ceil(max(0.0, self.total_usd) * 100 * (1 - 1e-10) - 1e-6))


@dataclass(slots=True, eq=False)
class _Tally:
    """A point in the making. ``gains_usd``: what asking so deep (``depth``) could add, ``open_usd`` in all
    at first; ``hoped_usd``: the total with all that."""

    prices: StockPrices
    least_usd: dict[str, float]
    gains_usd: dict[str, float]
    total_usd: float
    open_usd: float
    hoped_usd: float
    depth: int

    @property
    def small_usd(self) -> float:
        """A gain that is small beside the others."""
        mean_usd = self.open_usd / max(1, len(self.gains_usd))
        return SMALL_SHARE * mean_usd if mean_usd < np.inf else 0.0

    def passes_of(self, name: str, depth: int) -> int:
        """Over its days: by its share of all that asking could add at first, or the most."""
        if depth < DAYS:
            return 0
        share = self.gains_usd[name] / self.open_usd if 0 < self.open_usd < np.inf else 1.0
        return passes_for(share) if depth == DAYS else MOST_PASSES

    def take(self, name: str, usd: float, *, last: bool) -> None:
        """An answer; ``last``: nothing more will be asked of this service."""
        more = max(0.0, usd - self.least_usd[name])
        self.least_usd[name] += more
        self.total_usd += more
        if name in self.gains_usd:
            self.gains_usd[name] -= more
            self.hoped_usd -= max(0.0, self.gains_usd[name]) if last else 0.0


class Dual:
    """Evaluates prices; remembers what it was told of each service."""

    def __init__(self, candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
        self.candidates = candidates
        self.pools = pools
        self.asked = 0
        self._keys: defaultdict[str, deque[tuple[StockPrices, Paid]]] = defaultdict(_few)
        self._depths: dict[tuple[str, Paid], int] = {}
        self._covers: dict[tuple[str, Paid], tuple[Ints, Counts]] = {}
        self._run_costs: deque[tuple[StockPrices, Mapping[str, float]]] = deque(maxlen=KEPT_PRICES)
        self._known = {
            service.name: {NO_PRICES: _placed_usd(candidates, service)}
            for service in candidates.problem.services()
            if service.starts_after is None
        }

    def evaluate(
        self,
        prices: StockPrices,
        most_usd: Mapping[str, float],
        worth_usd: float,
        out_of_time: Callable[[], bool],
        beat_usd: float = -np.inf,
        depth: int = LONG_DAYS,
    ) -> DualPoint:
        """What the prices prove. ``most_usd``: what a known way of a service costs at them, so no bound
        is higher; services that could gain at least ``worth_usd`` are asked, largest gain first, for
        their layers, then for their dual, then for their days (``depth``: how far of these), while all gains
        could still prove more than ``beat_usd``."""
        tally = self._tally(prices, most_usd, depth)

        def enough() -> bool:
            return tally.hoped_usd <= beat_usd or out_of_time()

        self.candidates.crew.work(self._tasks(tally, worth_usd, enough), out_of_time)
        return DualPoint(prices, tally.least_usd, tally.total_usd)

    def most_usd(self, prices: StockPrices, known_usd: Mapping[str, float]) -> float:
        """What the prices prove at most, however deep is asked, where known ways of services cost so much."""
        ways = (min(known_usd.get(name, np.inf), self._left_usd(name)) for name in self._known)
        return sum(self._runs_usd(prices).values()) + sum(ways) - prices.stock_usd(self.candidates.problem)

    def ahead(
        self, prices: StockPrices, most_usd: Mapping[str, float], worth_usd: float, depth: int = LONG_DAYS
    ) -> bool:
        """Has idle processes ask from now on what an evaluation would ask; whether there is anything."""
        tally = self._tally(prices, most_usd, depth)
        tasks = list(self._tasks(tally, worth_usd, never, first=DUAL))
        self.candidates.crew.later(tasks)
        return bool(tasks)

    def _tally(self, prices: StockPrices, most_usd: Mapping[str, float], depth: int) -> _Tally:
        """What is known at the prices, and what asking so deep could add."""
        for name, known in self._known.items():
            if known[NO_PRICES] <= 0:
                # Its layers were under way when the search began.
                known[NO_PRICES] = _placed_usd(self.candidates, self.candidates.fleets[name].service)
        least = dict(self._runs_usd(prices))
        least.update((name, min(self.known_usd(name, prices), self._left_usd(name))) for name in self._known)
        gains = {
            name: min(most_usd.get(name, np.inf), self._left_usd(name)) - least[name]
            for name in self._known
            if np.isfinite(least[name]) and self._depth_at(name, self.key(name, prices)) < depth
        }
        total = sum(least.values()) - prices.stock_usd(self.candidates.problem)
        hoped = sum(gain for gain in gains.values() if gain > 0)
        return _Tally(prices, least, gains, total, hoped, total + hoped, depth)

    def _tasks(
        self, tally: _Tally, worth_usd: float, enough: Callable[[], bool], first: int = LAYERS
    ) -> Iterator[Task]:
        """Asks for the largest gains first, for layers, then for duals, then for days, until ``enough``.

        Days of small gains come after the longer search of large ones: of these a third can be had,
        of those next to nothing.
        """
        depths = range(first, tally.depth + 1)
        legs = [(depth, worth_usd if depth < DAYS else max(worth_usd, tally.small_usd)) for depth in depths]
        legs += [(depth, worth_usd) for depth in depths if depth >= DAYS]
        for depth, least_usd in legs:
            for name in sorted(tally.gains_usd, key=lambda n: (-tally.gains_usd[n], n)):
                if tally.gains_usd[name] < least_usd or enough():
                    break
                task = self._task(tally, name, depth)
                if task is not None:
                    yield task

    def _task(self, tally: _Tally, name: str, depth: int) -> Task | None:
        """Asks for the least cost of a service at the prices; None where that is known as deep."""
        key = self.key(name, tally.prices)
        if self._depth_at(name, key) >= depth:
            return None
        if key:
            # What knows its layers at no prices knows more than layers at some.
            return None if depth == LAYERS else self._priced_task(tally, name, key, depth)
        return self._own_task(tally, name, depth)

    def _priced_task(self, tally: _Tally, name: str, key: Paid, depth: int) -> Task:
        case = replace(self.candidates.fleets[name], covers=no_covers())
        most_usd = tally.least_usd[name] + tally.gains_usd[name]
        passes = tally.passes_of(name, depth)

        def take(answer: PricedAnswer) -> None:
            if len(answer.used):
                self._covers[name, key] = _both(self._covers.get((name, key)), answer)
            rounding = ROUNDING_USD * min(MOST_PLACEMENTS, answer.offers)
            usd = answer.usd - rounding if np.isfinite(answer.usd) else answer.usd
            self._known[name][key] = max(usd, self._known[name].get(key, -np.inf))
            self._depths[name, key] = LONG_DAYS if passes >= MOST_PASSES or answer.is_exact else depth
            self._note(tally, name, depth)

        known = replace(self.candidates.bounds[name], covers=no_covers())
        ask = PricedAsk(case, known, tuple(sorted(key)), depth, most_usd, passes)
        return Task(("priced", name, key, depth), ask, take)

    def _own_task(self, tally: _Tally, name: str, depth: int) -> Task | None:
        """Asks at no prices, which counts at all."""
        candidates = self.candidates

        def note() -> None:
            self._known[name][NO_PRICES] = _placed_usd(candidates, candidates.fleets[name].service)
            self._note(tally, name, depth)

        if depth == LAYERS:
            return candidates.layers_task(name, note)
        if depth == DUAL:
            return candidates.dual_task(name, note)
        if name not in candidates.bounded:
            return None
        most_usd = tally.least_usd[name] + tally.gains_usd[name]
        return candidates.days_task(name, most_usd, tally.passes_of(name, depth), note)

    def _note(self, tally: _Tally, name: str, depth: int) -> None:
        self.asked += 1
        usd = min(self.known_usd(name, tally.prices), self._left_usd(name))
        tally.take(name, usd, last=depth >= tally.depth)

    def _depth_at(self, name: str, key: Paid) -> int:
        """How deep a service was asked, 0 for not at all."""
        return self._depths.get((name, key), 0) if key else self.candidates.depth_of(name)

    def depth_at(self, name: str, prices: StockPrices) -> int:
        """How deep a service was asked at the prices, if they are the last that it was asked of."""
        return next((self._depth_at(name, paid) for known, paid in self._keys[name] if known is prices), 0)

    def learn(self, name: str, key: Paid, usd: float, depth: int) -> None:
        """Takes what is known from elsewhere of a service at some prices, asked so deep."""
        self._known[name][key] = max(usd, self._known[name].get(key, -np.inf))
        if key:
            self._depths[name, key] = max(depth, self._depths.get((name, key), 0))

    def case_at(self, name: str, key: Paid) -> FleetCase:
        """The service at some prices, with the covers of its dual where it was asked so."""
        case = self.candidates.fleets[name]
        if not key:
            return case
        case = surcharged(case, dict(key))
        used, counts = self._covers.get((name, key), (None, None))
        if used is None or counts is None:
            return case
        covers = np.zeros((len(counts), len(case.units)), dtype=np.int16)
        covers[:, used] = counts
        return replace(case, covers=covers)

    def known_usd(self, name: str, prices: StockPrices) -> float:
        """The most that is known without asking: at these prices or at lower ones."""
        mine = dict(self.key(name, prices))
        return max(
            usd
            for key, usd in self._known[name].items()
            if all(price <= mine.get(offer, 0.0) for offer, price in key)
        )

    def key(self, name: str, prices: StockPrices) -> Paid:
        """What a service pays at the prices, by offer, of all that it could then want."""
        for known, paid in self._keys[name]:
            if known is prices:
                return paid
        found = self._paid(name, prices)
        self._keys[name].append((prices, found))
        return found

    def _paid(self, name: str, prices: StockPrices) -> Paid:
        problem, case = self.candidates.problem, self.candidates.fleets[name]
        usd = prices.charged(problem)
        if time_of(problem, case, None).start_s >= middle_s(problem):
            # A service that begins after the middle holds nothing then.
            usd = {offer: price for offer, price in usd.items() if not counted_midway(problem, offer)}
        wanted = np.unique(surcharged(case, usd).units.offer) if usd else ()
        return frozenset((int(offer), usd[int(offer)]) for offer in wanted if int(offer) in usd)

    def _left_usd(self, name: str) -> float:
        cents = unplaced_cents(self.candidates.problem, name)
        return np.inf if cents is None else cents / 100

    def _runs_usd(self, prices: StockPrices) -> Mapping[str, float]:
        """The least of every run at the prices, kept for the last few."""
        for known, usd in self._run_costs:
            if known is prices:
                return usd
        found = {name: self._run_usd(name, prices) for name in self.pools}
        self._run_costs.append((prices, found))
        return found

    def _run_usd(self, name: str, prices: StockPrices) -> float:
        followers = len(self.candidates.problem.followers(name))
        found = self.cheapest_run(name, prices)
        placed = self.pools[name].beyond_usd if found is None else min(found.usd, self.pools[name].beyond_usd)
        least = min(placed - ROUNDING_USD * (1 + MOST_AMOUNTS * followers), self._left_usd(name))
        return float(least) if np.isfinite(least) else 0.0

    def cheapest_run(self, name: str, prices: StockPrices) -> PricedRun | None:
        """The cheapest way of a run over all candidates and starts, with the least of what follows it."""
        pool = self.pools[name]
        if not len(pool.found):
            return None
        usd, start = priced_runs(self.candidates, pool, prices)
        index = int(np.argmin(usd))
        return PricedRun(index, int(start[index]), float(usd[index]))


def _both(known: tuple[Ints, Counts] | None, answer: PricedAnswer) -> tuple[Ints, Counts]:
    """The covers of two answers at the same prices: units [V], counts [M, V]."""
    if known is None:
        return answer.used, answer.counts
    used = np.union1d(known[0], answer.used)
    counts = np.zeros((len(known[1]) + len(answer.counts), len(used)), dtype=np.int16)
    counts[: len(known[1]), np.searchsorted(used, known[0])] = known[1]
    counts[len(known[1]) :, np.searchsorted(used, answer.used)] = answer.counts
    return used, np.unique(counts, axis=0)


def _few() -> deque[tuple[StockPrices, Paid]]:
    return deque(maxlen=KEPT_PRICES)


def _placed_usd(candidates: Candidates, service: Serving) -> float:
    cents = candidates.least_service_cents(service, None)
    return np.inf if cents is None else cents / 100
