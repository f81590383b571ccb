"""The bound over shared stock: every workload at its least at prices of scarcity, less the stock's worth.

A Lagrangian relaxation of the stock. Runs take the cheapest of *all* their candidates at the prices, begun
at once or just after a priced instant; services the least that any fleet costs at them (``fleets``).
What a service costs never falls when a price rises, so a service that is not asked again still counts
with what is known of it at prices no higher.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.columns.candidates import (
    MOST_AMOUNTS,
    MOST_PLACEMENTS,
    Candidates,
    unplaced_cents,
)
from optimizer.placement.columns.priced_runs import priced_runs
from optimizer.placement.columns.prices import StockPrices, counted_midway, middle_s
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.crew.asks import PricedAnswer, PricedAsk
from optimizer.placement.crew.crew import Task
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.problem.units import FleetCase, surcharged
from optimizer.placement.runtime.stopwatch import never

ROUNDING_USD = 0.005
KEPT_PRICES = 4

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
    """A point in the making. ``gains_usd``: what asking could add; ``hoped_usd``: the total with all that."""

    prices: StockPrices
    least_usd: dict[str, float]
    gains_usd: dict[str, float]
    total_usd: float
    hoped_usd: float

    def take(self, name: str, usd: float) -> None:
        """An answer, after which nothing more is asked of this service."""
        more = max(0.0, usd - self.least_usd[name])
        self.least_usd[name] += more
        self.total_usd += more
        self.hoped_usd -= max(0.0, self.gains_usd.pop(name, more) - more)


class Dual:
    """Evaluates prices; remembers what it was told of each service."""

    def __init__(self, candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
        self.candidates = candidates
        self.pools = pools
        self.asked = 0
        self._keys: defaultdict[str, deque[tuple[StockPrices, Paid]]] = defaultdict(_few)
        self._answered: set[tuple[str, Paid]] = set()
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
    ) -> DualPoint:
        """What the prices prove. ``most_usd``: what a known way of a service costs at them, so no bound
        is higher; services that could gain at least ``worth_usd`` are asked, largest gain first, while all
        gains could still prove more than ``beat_usd``."""
        tally = self._tally(prices, most_usd)

        def enough() -> bool:
            return tally.hoped_usd <= beat_usd or out_of_time()

        self.candidates.crew.work(self._tasks(tally, worth_usd, enough), out_of_time)
        return DualPoint(prices, tally.least_usd, tally.total_usd)

    def most_usd(self, prices: StockPrices, known_usd: Mapping[str, float]) -> float:
        """What the prices prove at most, where known ways of services cost so much."""
        ways = (min(known_usd.get(name, np.inf), self._left_usd(name)) for name in self._known)
        return sum(self._runs_usd(prices).values()) + sum(ways) - prices.stock_usd(self.candidates.problem)

    def ahead(self, prices: StockPrices, most_usd: Mapping[str, float], worth_usd: float) -> bool:
        """Has idle processes ask from now on what an evaluation would ask; whether there is anything."""
        tasks = list(self._tasks(self._tally(prices, most_usd), worth_usd, never))
        self.candidates.crew.later(tasks)
        return bool(tasks)

    def _tally(self, prices: StockPrices, most_usd: Mapping[str, float]) -> _Tally:
        """What is known at the prices, and what asking could add."""
        for name, known in self._known.items():
            # Its bound may have been under way when the search began.
            usd = _placed_usd(self.candidates, self.candidates.fleets[name].service)
            known[NO_PRICES] = max(known[NO_PRICES], usd)
        least = dict(self._runs_usd(prices))
        least.update((name, min(self.known_usd(name, prices), self._left_usd(name))) for name in self._known)
        gains = {
            name: min(most_usd.get(name, np.inf), self._left_usd(name)) - least[name]
            for name in self._known
            if np.isfinite(least[name]) and not self.is_answered(name, prices)
        }
        total = sum(least.values()) - prices.stock_usd(self.candidates.problem)
        hoped = sum(gain for gain in gains.values() if gain > 0)
        return _Tally(prices, least, gains, total, total + hoped)

    def _tasks(self, tally: _Tally, worth_usd: float, enough: Callable[[], bool]) -> Iterator[Task]:
        """Asks for the largest gains first, until ``enough``."""
        for name in sorted(tally.gains_usd, key=lambda n: (-tally.gains_usd[n], n)):
            if tally.gains_usd[name] < worth_usd or enough():
                break
            key = self.key(name, tally.prices)
            yield self._priced_task(tally, name, key) if key else self._own_task(tally, name)

    def _priced_task(self, tally: _Tally, name: str, key: Paid) -> Task:
        def take(answer: PricedAnswer) -> None:
            rounding = ROUNDING_USD * min(MOST_PLACEMENTS, answer.offers)
            usd = answer.usd - rounding if np.isfinite(answer.usd) else answer.usd
            self.learn(name, key, usd, answered=True)
            self._note(tally, name)

        return Task(("priced", name, key), PricedAsk(self.candidates.fleets[name], tuple(sorted(key))), take)

    def _own_task(self, tally: _Tally, name: str) -> Task:
        """Asks at no prices, which counts at all."""

        def note() -> None:
            self._known[name][NO_PRICES] = _placed_usd(self.candidates, self.candidates.fleets[name].service)
            self._note(tally, name)

        return self.candidates.bound_task(name, note)

    def _note(self, tally: _Tally, name: str) -> None:
        self.asked += 1
        tally.take(name, min(self.known_usd(name, tally.prices), self._left_usd(name)))

    def is_answered(self, name: str, prices: StockPrices) -> bool:
        """Whether a service was asked at the prices."""
        key = self.key(name, prices)
        return (name, key) in self._answered if key else name in self.candidates.bounded

    def learn(self, name: str, key: Paid, usd: float, *, answered: bool) -> None:
        """Takes what is known of a service at some prices; ``answered``: there is no more to be asked."""
        self._known[name][key] = max(usd, self._known[name].get(key, -np.inf))
        if key and answered:
            self._answered.add((name, key))

    def case_at(self, name: str, key: Paid) -> FleetCase:
        """The service at some prices."""
        case = self.candidates.fleets[name]
        return surcharged(case, dict(key)) if key else case

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


def _few() -> deque[tuple[StockPrices, Paid]]:
    return deque(maxlen=KEPT_PRICES)


def _placed_usd(candidates: Candidates, service: Serving) -> float:
    cents = candidates.least_service_cents(service, None)
    return np.inf if cents is None else cents / 100
