"""The bound over shared stock: every workload at its least at prices of scarcity, less the stock's worth.

A Lagrangian relaxation of the stock. Runs take the cheapest of *all* their candidates at the prices, begun
at once or just after a priced instant; services the least that any fleet costs at them (``fleet_bound``).
What a service costs never falls when a price rises, so a service that is not asked again still counts
with what is known of it at prices no higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.workload import Serving, Training
from optimizer.placement.candidates import MOST_PLACEMENTS, Candidates, unplaced_cents
from optimizer.placement.fleet_bound import bound_fleet
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.holding import due_s
from optimizer.placement.prices import StockPrices, horizon_hours, is_owed_in_full, middle_s
from optimizer.placement.problem import Bools, Floats, Ints
from optimizer.placement.run_pool import RunPool
from optimizer.placement.runs import RunCandidates, deadline_s, last_second
from optimizer.placement.units import surcharged

ROUNDING_USD = 0.005


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


class Dual:
    """Evaluates prices; remembers what it was told of each service."""

    def __init__(self, candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
        self.candidates = candidates
        self.pools = pools
        self.asked = 0
        self._offers = {
            name: frozenset(int(o) for o in np.unique(case.units.offer))
            for name, case in candidates.fleets.items()
        }
        nothing: frozenset[tuple[int, float]] = frozenset()
        self._known = {
            service.name: {nothing: _placed_usd(candidates, service)}
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
        is higher; services that could gain at least ``worth_usd`` are asked, largest gain first, while
        all gains together could still prove more than ``beat_usd``."""
        least = {name: self._run_usd(name, prices) for name in self.pools}
        least.update((name, min(self.known_usd(name, prices), self._left_usd(name))) for name in self._known)
        total = sum(least.values()) - prices.stock_usd(self.candidates.problem)
        gains = {
            name: min(most_usd.get(name, np.inf), self._left_usd(name)) - least[name] for name in self._known
        }
        hoped = total + sum(gain for gain in gains.values() if gain > 0)
        for name in sorted(gains, key=lambda n: (-gains[n], n)):
            if gains[name] < worth_usd or hoped <= beat_usd or out_of_time():
                break
            usd = min(max(least[name], self.service_usd(name, prices)), self._left_usd(name))
            total += usd - least[name]
            hoped += usd - least[name] - gains[name]
            least[name] = usd
        return DualPoint(prices, least, total)

    def service_usd(self, name: str, prices: StockPrices) -> float:
        """Least cost of a service at the prices, placed; asked once for equal prices."""
        key = self.key(name, prices)
        if key not in self._known[name]:
            self.asked += 1
            self._known[name][key] = self._asked_usd(name, key)
        return self._known[name][key]

    def known_usd(self, name: str, prices: StockPrices) -> float:
        """The most that is known without asking: at these prices or at lower ones."""
        mine = dict(self.key(name, prices))
        return max(
            usd
            for key, usd in self._known[name].items()
            if all(price <= mine.get(offer, 0.0) for offer, price in key)
        )

    def key(self, name: str, prices: StockPrices) -> frozenset[tuple[int, float]]:
        """What a service pays at the prices, by offer: equal for equal questions."""
        problem = self.candidates.problem
        case = self.candidates.fleets[name]
        late = time_of(problem, case, None).start_s >= middle_s(problem)
        mine = prices.on(self._offers[name])
        # A service that begins after the middle holds nothing then.
        return frozenset((o, p) for o, p in mine if not (late and is_owed_in_full(problem, o)))

    def _asked_usd(self, name: str, key: frozenset[tuple[int, float]]) -> float:
        problem, case = self.candidates.problem, self.candidates.fleets[name]
        bound = bound_fleet(problem, surcharged(case, dict(key)))
        usd = bound.from_due(due_s(problem, time_of(problem, case, None), False, bound.longest_cold_s))
        return usd - ROUNDING_USD * min(MOST_PLACEMENTS, len(self._offers[name])) if np.isfinite(usd) else usd

    def _left_usd(self, name: str) -> float:
        cents = unplaced_cents(self.candidates.problem, name)
        return np.inf if cents is None else cents / 100

    def _run_usd(self, name: str, prices: StockPrices) -> float:
        followers = len(self.candidates.problem.followers(name))
        found = self.cheapest_run(name, prices)
        placed = self.pools[name].beyond_usd if found is None else min(found.usd, self.pools[name].beyond_usd)
        least = min(placed - ROUNDING_USD * (1 + MOST_PLACEMENTS * followers), self._left_usd(name))
        return float(least) if np.isfinite(least) else 0.0

    def cheapest_run(self, name: str, prices: StockPrices) -> PricedRun | None:
        """The cheapest way of a run over all candidates and starts, with the least of what follows it."""
        pool = self.pools[name]
        if not len(pool.found):
            return None
        usd, start = priced_runs(self.candidates, pool, prices)
        index = int(np.argmin(usd))
        return PricedRun(index, int(start[index]), float(usd[index]))


def _placed_usd(candidates: Candidates, service: Serving) -> float:
    cents = candidates.least_service_cents(service, None)
    return np.inf if cents is None else cents / 100


def priced_runs(candidates: Candidates, pool: RunPool, prices: StockPrices) -> tuple[Floats, Ints]:
    """USD of each candidate [X] at the prices, at the cheapest of its starts, and that start.

    Costs do not fall with time, so a later start only helps just after a priced instant.
    """
    problem, found = candidates.problem, pool.found
    usd, start = pool.total_usd.copy(), found.start_s.copy()
    priced = np.zeros(len(problem.table), dtype=np.bool_)
    throughout, instants = prices.throughout(), prices.at_instants()
    priced[[*throughout, *instants]] = True
    touched = np.flatnonzero(priced[found.offer])
    led = bool(problem.followers(found.run.name))
    for offer in np.unique(found.offer[touched]):
        here = touched[found.offer[touched] == offer]
        rows = instants.get(int(offer), [])
        fixed = led or bool(problem.table.is_window[offer])
        starts = [found.start_s[here]]
        if not fixed:
            starts += [np.maximum(found.start_s[here], second + 1) for second, _ in rows]
        options = [
            _begun_usd(candidates, pool, here, begin, throughout.get(int(offer), 0.0), rows)
            for begin in starts
        ]
        best = np.argmin(options, axis=0)
        usd[here] = np.array(options)[best, np.arange(len(here))]
        start[here] = np.array(starts)[best, np.arange(len(here))]
    return usd, start


def _begun_usd(
    candidates: Candidates,
    pool: RunPool,
    here: Ints,
    begin: Ints,
    usd_per_node_hour: float,
    rows: list[tuple[int, float]],
) -> Floats:
    """USD of candidates of one offer begun at ``begin``, with prices; inf where that is too late."""
    problem, found = candidates.problem, pool.found
    shift = begin - found.start_s[here]
    until = found.until_s[here] + shift
    usd = pool.total_usd[here] + _later_usd(candidates, found, here, shift)
    nodes = found.nodes[here]
    offer = int(found.offer[here[0]])
    if is_owed_in_full(problem, offer):
        middle = middle_s(problem)
        usd = usd + nodes * _holds(begin, until, middle) * usd_per_node_hour * horizon_hours(problem)
    else:
        usd = usd + nodes * (until - begin) / 3600 * usd_per_node_hour
    for second, price in rows:
        usd = usd + nodes * _holds(begin, until, second) * price
    return np.asarray(usd, dtype=np.float64)


def _holds(begin: Ints, until: Ints, second: int) -> Bools:
    held: Bools = (begin <= second) & (second < until)
    return held


def _later_usd(candidates: Candidates, found: RunCandidates, here: Ints, shift: Ints) -> Floats:
    """What beginning ``shift`` seconds later costs in lateness; inf where that is not allowed."""
    problem, run = candidates.problem, found.run
    end = found.end_s[here] + shift
    late = np.zeros(len(here))
    if isinstance(run, Training) and run.late_usd_per_hour is not None:
        hours = np.maximum(0.0, end - deadline_s(problem, run)) / 3600
        late = hours * float(run.late_usd_per_hour) - found.late_usd[here]
    allowed = (shift == 0) | (end <= last_second(problem, run))
    usd: Floats = np.where(allowed, late, np.inf)
    return usd
