"""Rounds of the search over shared stock: price what is scarce, prove, make columns at the prices, place.

The oracles (bound and fleets of one service) are dear, so each is asked only where its answer could
count: the bound of a service whose known columns leave the most unproven, fleets of one whose known
columns are furthest above its bound or that stands furthest above its best.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from optimizer.placement.column_pool import ColumnPool
from optimizer.placement.columns import Column
from optimizer.placement.dual import Dual, DualPoint, Paid, priced_runs
from optimizer.placement.fleet_pool import free_beside
from optimizer.placement.improve import Improver
from optimizer.placement.ladders import free_nodes
from optimizer.placement.master import Limits
from optimizer.placement.moves import parties
from optimizer.placement.neighbours import chosen_anew, neighbourhoods
from optimizer.placement.oracle_asks import DUAL, LONG_DAYS, FleetsAsk
from optimizer.placement.oracle_crew import Task
from optimizer.placement.prices import StockPrices, mixed
from optimizer.placement.relaxation import Relaxed, relax
from optimizer.placement.ruin import Ruin
from optimizer.placement.run_columns import begun_later
from optimizer.placement.run_pool import RunPool, keep
from optimizer.placement.search import Search
from optimizer.placement.standing import NEVER_CENTS, Standing, free_names, left_cents

MAX_ROUNDS = 40
STALE_ROUNDS = 3
RUIN_STEPS = 8
GROUPS = 12
GROUP_WORK = 2.0
FIRST_STEP = 1.0
LEAST_STEP = 0.05
RUNS_AT_PRICES = 3
WORTH_SHARE = 0.1
RELAX_SHARE = 0.2
DEEPEN_SHARE = 0.3
DEEPEN_LATER_SHARE = 0.6
CONVERGE_SHARE = 0.6
CONVERGE_STEPS = 8
CONVERGED_SHARE = 2e-3
SHORTEST_WAY = 0.25
MAKE_SHARE = 0.3
RUIN_SHARE = 0.15
COMBINE_SHARE = 0.25


class Rounds:
    """The state of the search: columns, prices and the best choice (in ``search``)."""

    def __init__(
        self,
        search: Search,
        runs: Mapping[str, RunPool],
        columns: list[Column],
        prices: StockPrices | None = None,
        frozen: frozenset[str] = frozenset(),
    ) -> None:
        self.search = search
        self.candidates = search.candidates
        self.problem = search.candidates.problem
        self.runs = runs
        self.pool = ColumnPool(self.problem)
        self.pool.add(columns)
        self.dual = Dual(search.candidates, runs)
        self.prices = prices or StockPrices()
        self.centre = self.dual.evaluate(StockPrices(), {}, float("inf"), lambda: False)
        self.step = FIRST_STEP
        self.relaxed: Relaxed | None = None
        self.rng = random.Random(search.seed)  # noqa: S311  draws, not secrets
        self.names = sorted(free_names(search.candidates) - frozen)
        self.frozen = frozen
        self._asked: set[tuple[str, Paid, bool]] = set()
        self._asked_beside: set[tuple[str, bytes]] = set()
        self._asked_last: StockPrices | None = None
        self._way: tuple[tuple[StockPrices, StockPrices, float], StockPrices] | None = None

    def run(self, *, hasty: bool = False) -> None:
        """Until the gap is reached, the time is over, or nothing has changed for some rounds.

        ``hasty``: the plan so far is a first one, of which much can be had cheaper before anything is proven.
        """
        self._rounds(hasty=hasty)
        if self.candidates.crew.size:
            # What came since the last proof.
            self.candidates.crew.fold()
            self._take(self.dual.evaluate(self.centre.prices, {}, float("inf"), lambda: True))

    def _rounds(self, *, hasty: bool) -> None:
        stale = 0
        self._look_ahead()
        if hasty and not self.search.done:
            self.beside()
        if not self.search.done:
            # What a dual meets on its way makes the fleets of ``make``.
            self.prove(self.prices, self.search.watch.until(DEEPEN_SHARE))
        # The first prices are those of few columns: of many workloads they are not worth a proof.
        for step in (self.make, self.price) if hasty else ():
            if not self.search.done:
                step()
        for _ in range(MAX_ROUNDS):
            before = self._state()
            for step in (
                self.make,
                self.price,
                self.converge,
                self.place,
                self.combine,
                self.beside,
                self.tied,
                self.deepen,
            ):
                if self.search.done:
                    return
                step()
            stale = stale + 1 if self._state() == before else 0
            if stale >= STALE_ROUNDS:
                return

    def _state(self) -> tuple[int, int, int]:
        best = self.search.best
        objective = NEVER_CENTS if best is None else best.objective_cents
        return objective, self.search.bound_cents, sum(len(c) for c in self.pool.by_workload.values())

    def _leave_usd(self) -> dict[str, float]:
        return {name: left_cents(self.problem, name) / 100 for name in self.pool.by_workload}

    def _worth_usd(self) -> float:
        """What one workload's answer must change to be worth asking for: its part of the asked gap."""
        best = self.search.best
        total = self.search.bound_cents if best is None else best.objective_cents
        return WORTH_SHARE * self.search.asked_gap * total / 100 / max(1, len(self.names))

    def price(self) -> None:
        """New prices: the duals of the relaxation over all known columns."""
        rows = self.relaxed.rows if self.relaxed is not None else tuple(sorted(self.prices.usd))
        seconds = RELAX_SHARE * self.search.watch.left
        found = relax(self.pool, self._leave_usd(), rows, self.prices, seconds)
        if found is not None:
            self.relaxed, self.prices = found, found.prices

    def converge(self) -> None:
        """Prices, what they prove and columns at them in turn, until the bound hardly moves.

        Days are too dear to be asked on the way: they are asked at the prices that prove most.
        """
        out_of_time = self.search.watch.until(CONVERGE_SHARE)
        for _ in range(CONVERGE_STEPS):
            before = self.centre.total_usd
            while not self.prove(self._next_prices(), out_of_time) and self.step > SHORTEST_WAY:
                if self.search.done or out_of_time():
                    return
            if self.search.done or out_of_time():
                return
            if self.centre.total_usd - before < CONVERGED_SHARE * self.centre.total_usd:
                return
            self.make()
            self.price()

    def _look_ahead(self) -> None:
        """What idle processes ask while the search is at something else: duals at the next prices, then days
        at the best."""
        if not self.candidates.crew.size:
            return
        self.candidates.crew.fold()
        asks = ((StockPrices(), DUAL), (self._next_prices(), DUAL), (self.centre.prices, LONG_DAYS))
        for prices, depth in asks:
            most = self.pool.least_usd(prices, self.candidates.fleets)
            if self.dual.ahead(prices, most, self._worth_usd(), depth):
                return

    def deepen(self) -> None:
        """Asks at the best prices so far for the days of services: this only adds to the bound."""
        out_of_time = self.search.watch.until(DEEPEN_LATER_SHARE)
        self._take(self._point(self.centre.prices, out_of_time, LONG_DAYS))

    def prove_on(self) -> None:
        """Asks at the best prices so far until the time is over: with what the last look has left of its."""
        if not self.search.done:
            self._take(self._point(self.centre.prices, self.search.watch.over, LONG_DAYS))

    def prove(self, prices: StockPrices, out_of_time: Callable[[], bool]) -> bool:
        """The bound at prices, which become the centre if they prove more (whether they do); asked on where
        time was short."""
        more = self._take(self._point(prices, out_of_time, DUAL))
        self._asked_last = None if more or not out_of_time() else prices
        if self._asked_last is None:
            self.step = min(1.0, 2 * self.step) if more else max(LEAST_STEP, self.step / 2)
        return more

    def _next_prices(self) -> StockPrices:
        """Those that not all was asked at, or the way from the best towards the duals of the relaxation."""
        if self._asked_last is not None:
            return self._asked_last
        way = self.prices, self.centre.prices, self.step
        if self._way is None or self._way[0] != way:
            self._way = way, mixed(*way)
        return self._way[1]

    def _point(self, prices: StockPrices, out_of_time: Callable[[], bool], depth: int) -> DualPoint:
        most = self.pool.least_usd(prices, self.candidates.fleets)
        return self.dual.evaluate(prices, most, self._worth_usd(), out_of_time, self.centre.total_usd, depth)

    def _take(self, point: DualPoint) -> bool:
        """The point as the centre, if it proves more; where something cannot be served, nothing does."""
        if not self.centre.total_usd < point.total_usd < float("inf"):
            return False
        self.centre = point
        self.search.prove(point.cents, "bounded")
        return True

    def make(self) -> None:
        """Columns at the prices: for each run, and for services whose known ones are above their bound."""
        out_of_time = self.search.watch.until(MAKE_SHARE)
        for name in self.runs:
            if out_of_time():
                break
            self.pool.add(self._runs_at_prices(name))
        self.candidates.crew.work(self._fleets_tasks(out_of_time), out_of_time)
        self.search.tell()

    def _fleets_tasks(self, out_of_time: Callable[[], bool]) -> Iterator[Task]:
        """Asks of services whose known columns are furthest above their bound at the prices."""
        least = self.pool.least_usd(self.prices, self.candidates.fleets)
        above = {
            name: least.get(name, float("inf")) - self.dual.known_usd(name, self.prices)
            for name in self.candidates.fleets
            if name in self.names
        }
        for name in sorted(above, key=lambda n: (-above[n], n)):
            if above[name] < self._worth_usd() or out_of_time():
                break
            task = self._fleets_task(name)
            if task is not None:
                yield task

    def _fleets_task(self, name: str) -> Task | None:
        """Asks for fleets at the prices, once."""
        paid = self.dual.key(name, self.prices)
        case = self.dual.case_at(name, paid)
        key = (name, paid, bool(case.covers.size))
        if key in self._asked:
            return None
        self._asked.add(key)
        return Task(("fleets", *key), FleetsAsk(case, free_nodes(self.problem)), self._add)

    def _add(self, columns: list[Column]) -> None:
        self.pool.add(columns)

    def _runs_at_prices(self, name: str) -> list[Column]:
        """The cheapest few offers' columns of a run at the prices, begun when they are cheapest."""
        pool, made = self.runs[name], []
        if not len(pool.found) or not self.prices.usd:
            return []
        usd, start = priced_runs(self.candidates, pool, self.prices)
        seen: set[int] = set()
        for index in usd.argsort(kind="stable")[: 8 * RUNS_AT_PRICES]:
            offer = int(pool.found.offer[index])
            if offer in seen or len(seen) >= RUNS_AT_PRICES:
                continue
            seen.add(offer)
            keep(self.candidates, pool, int(index))
            column: Column | None = pool.kept.get(int(index))
            if column is not None and start[index] > pool.found.start_s[index]:
                column = begun_later(self.problem, pool.found.run, column, int(start[index]))
            if column is not None:
                made.append(column)
        return made

    def place(self) -> None:
        """Insertion of everything by regret at the prices, then ruin and recreate from the best."""
        if self.search.best is None or not self.names:
            return
        self._look_ahead()
        fixed = {n: c for n, c in self.search.best.columns.items() if n not in self.names}
        anew = self._ruin(Standing(self.candidates, dict(fixed)))
        anew.insert(self.names, 1.0, self.search.watch.over)
        self.search.offer_columns(anew.standing.chosen, "inserted")
        ruin = self._ruin(Standing(self.candidates, dict(self.search.best.columns)))
        ruin.run(RUIN_STEPS * len(self.names), self.search.watch.until(RUIN_SHARE))
        self.search.offer_columns(ruin.standing.chosen, "recreated")

    def _ruin(self, standing: Standing) -> Ruin:
        return Ruin(self.candidates, self.runs, self.pool, standing, self.names, self.prices, self.rng)

    def combine(self) -> None:
        """The solver on each group around a scarce offer, with everything else as it stands."""
        if self.search.best is None:
            return
        standing = Standing(self.candidates, dict(self.search.best.columns))
        out_of_time = self.search.watch.until(COMBINE_SHARE)
        for number, group in enumerate(neighbourhoods(self.pool, standing, self.names, self.prices)):
            if number >= GROUPS or out_of_time():
                break
            limits = Limits(self.search.watch.left, self.search.asked_gap / 10, self.search.seed, GROUP_WORK)
            found = chosen_anew(self.problem, standing, group, limits)
            if found is not None and self._gains(standing, group.names, found):
                for name in group.names:
                    standing.lift(name)
                for column in found.values():
                    standing.place(column)
                self.search.offer_columns(standing.chosen, "combined")

    def _gains(self, standing: Standing, names: frozenset[str], found: Mapping[str, Column]) -> bool:
        after = sum(
            found[name].total_cents if name in found else left_cents(self.problem, name) for name in names
        )
        return after < standing.cents(names)

    def beside(self) -> None:
        """Fleets from what all others leave, for services that stand furthest above their best."""
        if self.search.best is None:
            return
        standing = Standing(self.candidates, dict(self.search.best.columns))
        least = self.pool.least_usd(StockPrices(), self.candidates.fleets)
        above = {
            name: standing.cents([name]) / 100
            - min(least.get(name, 0.0), self.dual.known_usd(name, StockPrices()))
            for name in self.candidates.fleets
            if name in self.names
        }
        out_of_time = self.search.watch.until(MAKE_SHARE)
        self._look_ahead()

        def tasks() -> Iterator[Task]:
            for name in sorted(above, key=lambda n: (-above[n], n)):
                if above[name] < self._worth_usd() or out_of_time():
                    return
                task = self._beside_task(standing, name)
                if task is not None:
                    yield task

        self.candidates.crew.work(tasks(), out_of_time)
        self.search.offer_columns(standing.chosen, "beside")

    def _beside_task(self, standing: Standing, name: str) -> Task | None:
        """Asks for fleets from what all others leave, and places the best that fits by then."""
        case, now = self.candidates.fleets[name], standing.lift(name)
        free = free_beside(self.candidates, case.service, standing.ledger, None)
        if now is not None:
            standing.place(now)
        key = (name, free[case.units.offer].tobytes())

        def take(found: list[Column]) -> None:
            self.pool.add(found)
            self._place_best(standing, name)

        if key in self._asked_beside:
            self._place_best(standing, name)
            return None
        self._asked_beside.add(key)
        return Task(("beside", *key), FleetsAsk(case, free), take)

    def _place_best(self, standing: Standing, name: str) -> None:
        """The cheapest known fleet that fits, if it is cheaper than the one that stands."""
        now = standing.lift(name)
        most = left_cents(self.problem, name) if now is None else now.total_cents
        better = (c for c in self.pool.of(name) if c.total_cents < most and standing.allows(c))
        column = next(better, now)
        if column is not None:
            standing.place(column)

    def tied(self) -> None:
        """Runs that services wait for, with those services, each placed anew beside the others."""
        if self.search.best is None:
            return
        among = [
            party
            for party in parties(self.candidates)
            if party.followers and not self.frozen & set(party.names)
        ]
        if not among:
            return
        improver = Improver(
            self.candidates,
            self.runs,
            dict(self.search.best.columns),
            self.pool.all(),
            self.search.watch.until(MAKE_SHARE),
            lambda chosen: self.search.offer_columns(chosen, "improved"),
            among,
        )
        improver.run()
        self.pool.add(improver.chosen.values())
