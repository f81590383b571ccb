"""The bound over shared stock: every workload at its least at prices of scarcity, less the stock's worth.

A Lagrangian relaxation of the stock. Runs take the cheapest of *all* their candidates at the prices, begun
at once or just after a priced instant; services the least that any fleet costs at them (``fleet_bound``).
What a service costs never falls when a price rises, so a service that is not asked again still counts
with what is known of it at prices no higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.workload import Serving, Training
from optimizer.placement.candidates import MOST_PLACEMENTS, Candidates, unplaced_cents
from optimizer.placement.fleet_bound import layer_bound, with_dual
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.holding import due_s
from optimizer.placement.prices import StockPrices, counted_midway, middle_s
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.run_pool import RunPool
from optimizer.placement.runs import RunCandidates, deadline_s, last_second
from optimizer.placement.stopwatch import never
from optimizer.placement.units import FleetCase, surcharged

ROUNDING_USD = 0.005
DEPTHS = 2

Paid = frozenset[tuple[int, float]]
"""(offer, USD per node-hour) of every priced offer that a service could want."""


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
        self._keys: dict[str, tuple[StockPrices, Paid]] = {}
        self._depths: dict[tuple[str, Paid], int] = {}
        self._covers: dict[tuple[str, Paid], tuple[Ints, Ints]] = {}
        nothing: Paid = frozenset()
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
        is higher; services that could gain at least ``worth_usd`` are asked, largest gain first, for
        their layers and then for their dual, while all gains could still prove more than ``beat_usd``."""
        least = {name: self._run_usd(name, prices) for name in self.pools}
        least.update((name, min(self.known_usd(name, prices), self._left_usd(name))) for name in self._known)
        total = sum(least.values()) - prices.stock_usd(self.candidates.problem)
        gains = {
            name: min(most_usd.get(name, np.inf), self._left_usd(name)) - least[name]
            for name in self._known
            if np.isfinite(least[name]) and self._depth_at(name, self.key(name, prices)) < DEPTHS
        }
        hoped = total + sum(gain for gain in gains.values() if gain > 0)
        for depth in range(1, DEPTHS + 1):
            for name in sorted(gains, key=lambda n: (-gains[n], n)):
                if gains[name] < worth_usd or hoped <= beat_usd or out_of_time():
                    break
                usd = self.service_usd(name, prices, depth, out_of_time)
                usd = min(max(least[name], usd), self._left_usd(name))
                total += usd - least[name]
                gains[name] -= usd - least[name]
                hoped -= gains[name] if depth == DEPTHS else 0.0
                least[name] = usd
        return DualPoint(prices, least, total)

    def service_usd(
        self, name: str, prices: StockPrices, depth: int, out_of_time: Callable[[], bool] = never
    ) -> float:
        """Least cost of a service at the prices, placed; asked once for equal prices and each depth."""
        key = self.key(name, prices)
        if self._depth_at(name, key) < depth:
            self.asked += 1
            usd = self._asked_usd(name, key, depth, out_of_time)
            self._known[name][key] = max(usd, self._known[name].get(key, -np.inf))
            self._depths[name, key] = depth
        return self._known[name][key]

    def _depth_at(self, name: str, key: Paid) -> int:
        """How deep a service was asked: not at all, its layers, its dual as well."""
        if not key:
            return (name in self.candidates.bounded) + (name in self.candidates.sharpened)
        return self._depths.get((name, key), 0)

    def depth_at(self, name: str, prices: StockPrices) -> int:
        """How deep a service was asked at the prices, if they are the last that it was asked of."""
        last = self._keys.get(name)
        return self._depth_at(name, last[1]) if last is not None and last[0] is prices else 0

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
        covers = np.zeros((len(counts), len(case.units)), dtype=np.int64)
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
        known = self._keys.get(name)
        if known is None or known[0] is not prices:
            self._keys[name] = prices, self._paid(name, prices)
        return self._keys[name][1]

    def _paid(self, name: str, prices: StockPrices) -> Paid:
        problem, case = self.candidates.problem, self.candidates.fleets[name]
        usd = prices.throughout()
        if time_of(problem, case, None).start_s >= middle_s(problem):
            # A service that begins after the middle holds nothing then.
            usd = {offer: price for offer, price in usd.items() if not counted_midway(problem, offer)}
        wanted = np.unique(surcharged(case, usd).units.offer) if usd else ()
        return frozenset((int(offer), usd[int(offer)]) for offer in wanted if int(offer) in usd)

    def _asked_usd(self, name: str, key: Paid, depth: int, out_of_time: Callable[[], bool]) -> float:
        problem, candidates = self.candidates.problem, self.candidates
        if not key:
            if depth == DEPTHS:
                candidates.sharpen_service(name, out_of_time)
            else:
                candidates.bound_service(name)
            return _placed_usd(candidates, candidates.fleets[name].service)
        case = surcharged(candidates.fleets[name], dict(key))
        bound = layer_bound(problem, case)
        if depth == DEPTHS:
            bound = with_dual(problem, case, bound, out_of_time)
            used = np.flatnonzero(bound.covers.any(axis=0))
            if len(used):
                self._covers[name, key] = used, bound.covers[:, used]
        usd = bound.from_due(due_s(problem, time_of(problem, case, None), False, bound.longest_cold_s))
        placements = min(MOST_PLACEMENTS, len(np.unique(case.units.offer)))
        return usd - ROUNDING_USD * placements if np.isfinite(usd) else usd

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
    charge = np.zeros(len(problem.table))
    throughout, instants = prices.throughout(), prices.at_instants()
    charge[list(throughout)] = list(throughout.values())
    start = found.start_s.copy()
    usd = pool.total_usd + found.nodes * charge[found.offer] * _counted_hours(problem, found)
    priced = np.zeros(len(problem.table), dtype=np.bool_)
    priced[list(instants)] = True
    touched = np.flatnonzero(priced[found.offer])
    led = bool(problem.followers(found.run.name))
    for offer in np.unique(found.offer[touched]):
        here = touched[found.offer[touched] == offer]
        rows = instants[int(offer)]
        starts = [found.start_s[here]]
        if not led and not problem.table.is_window[offer]:
            starts += [np.maximum(found.start_s[here], second + 1) for second, _ in rows]
        options = [usd[here] + _begun_usd(candidates, found, here, begin, rows) for begin in starts]
        best = np.argmin(options, axis=0)
        usd[here] = np.array(options)[best, np.arange(len(here))]
        start[here] = np.array(starts)[best, np.arange(len(here))]
    return usd, start


def _counted_hours(problem: Problem, found: RunCandidates) -> Floats:
    """Hours [X] that a candidate is charged for on the row of its offer.

    What is owed in full counts when held at the middle; begun later it might be held then, so it counts
    only where it is held however late it begins: never.
    """
    hours = (found.until_s - found.start_s) / 3600
    counted: Floats = np.where(counted_midway(problem, found.offer), 0.0, hours)
    return counted


def _begun_usd(
    candidates: Candidates, found: RunCandidates, here: Ints, begin: Ints, rows: list[tuple[int, float]]
) -> Floats:
    """USD beyond those of the first start, of candidates of one offer begun at ``begin``; inf if too late."""
    shift = begin - found.start_s[here]
    until = found.until_s[here] + shift
    usd = _later_usd(candidates, found, here, shift)
    for second, price in rows:
        usd = usd + found.nodes[here] * _holds(begin, until, second) * price
    return usd


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
