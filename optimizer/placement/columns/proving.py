"""What a search proves at dual prices of stock: at which it asked, and at which it asks next."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.dual import Dual, DualPoint
from optimizer.placement.columns.known_bounds import remember
from optimizer.placement.columns.prices import StockPrices, mixed
from optimizer.placement.columns.search import Search

FIRST_STEP = 1.0
LEAST_STEP = 0.05
SHORTEST_WAY = 0.25
WORTH_SHARE = 0.1


class Proving:
    """The proof of one search. ``aim``: the duals of its relaxation, towards which the next prices lie."""

    def __init__(
        self, search: Search, pool: ColumnPool, dual: Dual, aim: StockPrices, workloads: int
    ) -> None:
        self.search = search
        self.candidates = search.candidates
        self.pool = pool
        self.dual = dual
        self.aim = aim
        self.centre = dual.evaluate(StockPrices(), {}, float("inf"), lambda: False)
        self._workloads = max(1, workloads)
        self._step = FIRST_STEP
        self._asked_last: StockPrices | None = None
        self._way: tuple[tuple[StockPrices, StockPrices, float], StockPrices] | None = None

    def worth_usd(self) -> float:
        """What one workload's answer must change to be worth asking for: its part of the asked gap."""
        best = self.search.best
        total = self.search.bound_cents if best is None else best.objective_cents
        return WORTH_SHARE * self.search.asked_gap * total / 100 / self._workloads

    def open_usd(self, relaxed_usd: float) -> float:
        """How much more other prices could prove, were the known columns all that there are."""
        known_usd = self.pool.least_usd(self.centre.prices, self.candidates.fleets)
        return relaxed_usd - self.dual.most_usd(self.centre.prices, known_usd)

    def prove(self, prices: StockPrices, out_of_time: Callable[[], bool]) -> bool:
        """The bound at prices, which become the centre if they prove more (whether they do); asked on where
        time was short."""
        more = self._take(self._point(prices, out_of_time))
        self._asked_last = None if more or not out_of_time() else prices
        if self._asked_last is None:
            self._step = min(1.0, 2 * self._step) if more else max(LEAST_STEP, self._step / 2)
        return more

    def prove_next(self, out_of_time: Callable[[], bool]) -> bool:
        """The same at the next prices, on a shorter way where that proves nothing; whether there was time."""
        while not self.prove(self._next_prices(), out_of_time) and self._step > SHORTEST_WAY:
            if self.search.done or out_of_time():
                return False
        return not self.search.done and not out_of_time()

    def ask_on(self, out_of_time: Callable[[], bool]) -> None:
        """Asks at the best prices so far what was not asked there: this only adds to the bound."""
        self._take(self._point(self.centre.prices, out_of_time))

    def look_ahead(self) -> None:
        """What idle processes ask while the search is at something else: at no prices, at the next prices,
        then at the best."""
        if not self.candidates.crew.size:
            return
        self.candidates.crew.fold()
        for prices in (StockPrices(), self._next_prices(), self.centre.prices):
            most = self.pool.least_usd(prices, self.candidates.fleets)
            if self.dual.ahead(prices, most, self.worth_usd()):
                return

    def gather(self) -> None:
        """What other processes have proven since it was last looked."""
        if self.candidates.crew.size:
            self.candidates.crew.fold()
            self._take(self.dual.evaluate(self.centre.prices, {}, float("inf"), lambda: True))

    def prove_beside(self) -> None:
        """Has idle processes ask on, until ``prove_on`` takes up their answers."""
        self.search.prices = self.centre.prices
        if not self.search.done:
            self.look_ahead()

    def prove_on(self) -> None:
        """Asks on until the time is over, or the gap is reached."""
        self.gather()
        if self._asked_last is not None and not self.search.done:
            self.prove(self._asked_last, self.search.watch.over)
        if not self.search.done:
            self.ask_on(self.search.watch.over)
        self.search.prices = self.centre.prices

    def remember(self) -> None:
        """Keeps what is proven for the next search."""
        remember(self.candidates, self.dual, self.centre)

    def _next_prices(self) -> StockPrices:
        """Those that not all was asked at, or the way from the best towards the duals of the relaxation."""
        if self._asked_last is not None:
            return self._asked_last
        way = self.aim, self.centre.prices, self._step
        if self._way is None or self._way[0] != way:
            self._way = way, mixed(*way)
        return self._way[1]

    def _point(self, prices: StockPrices, out_of_time: Callable[[], bool]) -> DualPoint:
        most = self.pool.least_usd(prices, self.candidates.fleets)
        return self.dual.evaluate(prices, most, self.worth_usd(), out_of_time, self.centre.total_usd)

    def _take(self, point: DualPoint) -> bool:
        """The point as the centre, if it proves more; where something cannot be served, nothing does."""
        if not self.centre.total_usd < point.total_usd < float("inf"):
            return False
        self.centre = point
        self.search.prove(point.cents, "bounded")
        return True
