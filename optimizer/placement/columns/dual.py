"""Lagrangian bound over shared stock: Σ least cost of each workload at the dual prices − Σ price × stock.

Runs take the cheapest of *all* their candidates at the prices, started at once or just after a priced
instant. Services count with the least cost of any fleet at the prices (``fleets``). That cost never falls
when a price rises, so a bound computed at lower prices stays valid and a service need not be evaluated again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.planning.workload import Batch, Serving
from optimizer.placement.columns.candidates import (
    MOST_AMOUNTS,
    MOST_PLACEMENTS,
    Candidates,
    unplaced_cents,
)
from optimizer.placement.columns.priced_runs import least_parts_at_prices, priced_runs
from optimizer.placement.columns.prices import StockPrices, counted_midway, middle_s
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.problem.units import FleetCase, surcharged
from optimizer.placement.runs.parts import is_divisible
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.workers.asks import PricedAnswer, PricedAsk
from optimizer.placement.workers.worker_pool import Task

ROUNDING_USD = 0.005

Paid = frozenset[tuple[int, float]]
"""(offer, USD per node-hour) for every priced offer that a service could use."""


NO_PRICES: Paid = frozenset()


@dataclass(frozen=True, slots=True)
class PricedRun:
    """The cheapest candidate of a run at given dual prices: its index, its start, and its cost at these
    prices.
    """

    index: int
    start_s: int
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class DualPoint:
    """Dual prices and the bound that they prove. ``least_usd`` by workload is at most the penalty for leaving
    it out.
    """

    prices: StockPrices
    least_usd: Mapping[str, float]
    total_usd: float

    @property
    def cents(self) -> int:
        """The bound in cents, rounded up, since every plan costs whole cents."""
        return int(np.ceil(max(0.0, self.total_usd) * 100 * (1 - 1e-10) - 1e-6))


@dataclass(slots=True, eq=False)
class _Tally:
    """An evaluation in progress. ``gains_usd``: the most that evaluating each service could add to the bound;
    ``optimistic_usd``: the bound if all of them did.
    """

    prices: StockPrices
    least_usd: dict[str, float]
    gains_usd: dict[str, float]
    total_usd: float
    optimistic_usd: float

    def take(self, name: str, usd: float) -> None:
        """Records the evaluation of a service."""
        more = max(0.0, usd - self.least_usd[name])
        self.least_usd[name] += more
        self.total_usd += more
        self.optimistic_usd -= max(0.0, self.gains_usd.pop(name, more) - more)


class Dual:
    """The dual function. It remembers the evaluations of each service."""

    def __init__(self, candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
        self.candidates = candidates
        self.pools = pools
        self.asked = 0
        self._keys: defaultdict[str, deque[tuple[StockPrices, Paid]]] = defaultdict(_few)
        self._answered: set[tuple[str, Paid]] = set()
        self._run_costs: deque[tuple[StockPrices, Mapping[str, float]]] = deque(
            maxlen=TUNING.columns.kept_prices
        )
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
        """The bound that ``prices`` prove.

        ``most_usd``: cost of each service's known column at the prices, an upper limit of its least cost.
        Services whose evaluation could add at least ``worth_usd`` are evaluated, largest possible gain first,
        as long as all remaining gains together could still lift the bound above ``beat_usd``.
        """
        tally = self._tally(prices, most_usd)

        def enough() -> bool:
            return tally.optimistic_usd <= beat_usd or out_of_time()

        self.candidates.workers.run(self._tasks(tally, worth_usd, enough), out_of_time)
        return DualPoint(prices, tally.least_usd, tally.total_usd)

    def most_usd(self, prices: StockPrices, known_usd: Mapping[str, float]) -> float:
        """The most that ``prices`` can prove, if each service's least cost is that of its known column."""
        ways = (min(known_usd.get(name, np.inf), self._left_usd(name)) for name in self._known)
        return sum(self._runs_usd(prices).values()) + sum(ways) - prices.stock_usd(self.candidates.problem)

    def prefetch(self, prices: StockPrices, most_usd: Mapping[str, float], worth_usd: float) -> bool:
        """Lets idle workers evaluate in advance what ``evaluate`` would ask for; returns whether there is
        anything.
        """
        tasks = list(self._tasks(self._tally(prices, most_usd), worth_usd, never))
        self.candidates.workers.prefetch(tasks)
        return bool(tasks)

    def _tally(self, prices: StockPrices, most_usd: Mapping[str, float]) -> _Tally:
        """What is known at the prices without evaluating a service, and what evaluations could add."""
        for name, known in self._known.items():
            # The service may have been bounded since the search began.
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
        possible = sum(gain for gain in gains.values() if gain > 0)
        return _Tally(prices, least, gains, total, total + possible)

    def _tasks(self, tally: _Tally, worth_usd: float, enough: Callable[[], bool]) -> Iterator[Task]:
        """Evaluations in the order of their largest possible gain, until ``enough``."""
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
        """The evaluation of a service for which no priced offer matters."""

        def note() -> None:
            self._known[name][NO_PRICES] = _placed_usd(self.candidates, self.candidates.fleets[name].service)
            self._note(tally, name)

        return self.candidates.bound_task(name, note)

    def _note(self, tally: _Tally, name: str) -> None:
        self.asked += 1
        tally.take(name, min(self.known_usd(name, tally.prices), self._left_usd(name)))

    def is_answered(self, name: str, prices: StockPrices) -> bool:
        """Whether the service was evaluated at the prices."""
        key = self.key(name, prices)
        return (name, key) in self._answered if key else name in self.candidates.bounded

    def learn(self, name: str, key: Paid, usd: float, *, answered: bool) -> None:
        """Records a lower bound of a service at some prices; ``answered``: evaluating it again cannot improve
        it.
        """
        self._known[name][key] = max(usd, self._known[name].get(key, -np.inf))
        if key and answered:
            self._answered.add((name, key))

    def case_at(self, name: str, key: Paid) -> FleetCase:
        """The fleet case of a service at some prices."""
        case = self.candidates.fleets[name]
        return surcharged(case, dict(key)) if key else case

    def known_usd(self, name: str, prices: StockPrices) -> float:
        """The best known lower bound of a service: evaluated at these prices or at lower ones."""
        mine = dict(self.key(name, prices))
        return max(
            usd
            for key, usd in self._known[name].items()
            if all(price <= mine.get(offer, 0.0) for offer, price in key)
        )

    def key(self, name: str, prices: StockPrices) -> Paid:
        """The prices that a service pays, by offer, for every offer that it could then use."""
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
            # A service that starts after the midpoint holds nothing there.
            usd = {offer: price for offer, price in usd.items() if not counted_midway(problem, offer)}
        wanted = np.unique(surcharged(case, usd).units.offer) if usd else ()
        return frozenset((int(offer), usd[int(offer)]) for offer in wanted if int(offer) in usd)

    def _left_usd(self, name: str) -> float:
        cents = unplaced_cents(self.candidates.problem, name)
        return np.inf if cents is None else cents / 100

    def _runs_usd(self, prices: StockPrices) -> Mapping[str, float]:
        """Least cost of every run at the prices; the last few results are cached."""
        for known, usd in self._run_costs:
            if known is prices:
                return usd
        found = {name: self._run_usd(name, prices) for name in self.pools}
        self._run_costs.append((prices, found))
        return found

    def _run_usd(self, name: str, prices: StockPrices) -> float:
        followers = len(self.candidates.problem.followers(name))
        found, run = self.cheapest_run(name, prices), self.pools[name].found.run
        placed = self.pools[name].beyond_usd if found is None else min(found.usd, self.pools[name].beyond_usd)
        if isinstance(run, Batch) and is_divisible(run) and len(self.pools) <= TUNING.runs.few_stretched:
            placed = max(self.pools[name].beyond_usd, least_parts_at_prices(self.candidates, run, prices))
        least = min(placed - ROUNDING_USD * (1 + MOST_AMOUNTS * followers), self._left_usd(name))
        return float(least) if np.isfinite(least) else 0.0

    def cheapest_run(self, name: str, prices: StockPrices) -> PricedRun | None:
        """The cheapest candidate and start of a run at the prices, with the lower bound of its followers."""
        pool = self.pools[name]
        if not len(pool.found):
            return None
        usd, start = priced_runs(self.candidates, pool, prices)
        index = int(np.argmin(usd))
        return PricedRun(index, int(start[index]), float(usd[index]))


def _few() -> deque[tuple[StockPrices, Paid]]:
    return deque(maxlen=TUNING.columns.kept_prices)


def _placed_usd(candidates: Candidates, service: Serving) -> float:
    cents = candidates.least_service_cents(service, None)
    return np.inf if cents is None else cents / 100
