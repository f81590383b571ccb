"""The bound that a search proves: which dual prices were evaluated, and which are evaluated next."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.dual import Dual, DualPoint
from optimizer.placement.columns.known_bounds import remember
from optimizer.placement.columns.prices import StockPrices, mixed
from optimizer.placement.columns.search import Search
from optimizer.placement.runtime.tuning import TUNING


class Proving:
    """The proof of one search. ``aim``: duals of the LP relaxation; the next prices lie between the best ones
    and these.
    """

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
        self._step = TUNING.columns.first_step_share
        self._asked_last: StockPrices | None = None
        self._way: tuple[tuple[StockPrices, StockPrices, float], StockPrices] | None = None

    def worth_usd(self) -> float:
        """The least gain in USD for which a service is evaluated: its share of the allowed gap."""
        best = self.search.best
        total = self.search.bound_cents if best is None else best.objective_cents
        return TUNING.columns.worth_share * self.search.asked_gap * total / 100 / self._workloads

    def open_usd(self, relaxed_usd: float) -> float:
        """How much other prices could still add to the bound, if the known columns were all that exist."""
        known_usd = self.pool.least_usd(self.centre.prices, self.candidates.fleets)
        return relaxed_usd - self.dual.most_usd(self.centre.prices, known_usd)

    def prove(self, prices: StockPrices, out_of_time: Callable[[], bool]) -> bool:
        """Evaluates ``prices``, which become the centre if they prove more; returns whether they do.

        If time ran out before every service was evaluated, the next call resumes the same prices.
        """
        more = self._take(self._point(prices, out_of_time))
        self._asked_last = None if more or not out_of_time() else prices
        if self._asked_last is None:
            self._step = (
                min(1.0, 2 * self._step) if more else max(TUNING.columns.least_step_share, self._step / 2)
            )
        return more

    def prove_next(self, out_of_time: Callable[[], bool]) -> bool:
        """Evaluates the next prices, with shorter steps while they prove nothing; returns whether time is
        left.
        """
        while (
            not self.prove(self._next_prices(), out_of_time)
            and self._step > TUNING.columns.shortest_way_share
        ):
            if self.search.done or out_of_time():
                return False
        return not self.search.done and not out_of_time()

    def ask_on(self, out_of_time: Callable[[], bool]) -> None:
        """Evaluates at the best prices the services that were not evaluated there, which can only raise the
        bound.
        """
        self._take(self._point(self.centre.prices, out_of_time))

    def prefetch(self) -> None:
        """Gives idle workers evaluations for later: without prices, at the next prices, or at the best
        prices.
        """
        if not self.candidates.workers.size:
            return
        self.candidates.workers.collect()
        for prices in (StockPrices(), self._next_prices(), self.centre.prices):
            most = self.pool.least_usd(prices, self.candidates.fleets)
            if self.dual.prefetch(prices, most, self.worth_usd()):
                return

    def gather(self) -> None:
        """Collects what other processes have evaluated and raises the bound accordingly."""
        if self.candidates.workers.size:
            self.candidates.workers.collect()
            self._take(self.dual.evaluate(self.centre.prices, {}, float("inf"), lambda: True))

    def prove_in_background(self) -> None:
        """Lets idle workers evaluate in the background until ``prove_on`` collects their answers."""
        self.search.prices = self.centre.prices
        if not self.search.done:
            self.prefetch()

    def prove_on(self) -> None:
        """Continues to evaluate until the time is over or the gap is reached."""
        self.gather()
        if self._asked_last is not None and not self.search.done:
            self.prove(self._asked_last, self.search.watch.over)
        if not self.search.done:
            self.ask_on(self.search.watch.over)
        self.search.prices = self.centre.prices

    def remember(self) -> None:
        """Stores what is proven for the next search."""
        remember(self.candidates, self.dual, self.centre)

    def _next_prices(self) -> StockPrices:
        """The prices whose evaluation was cut short, if any; else a convex combination of the best prices and
        the LP duals.
        """
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
        """Makes the point the centre if it proves more. An infinite bound (a service that cannot be served)
        is ignored.
        """
        if not self.centre.total_usd < point.total_usd < float("inf"):
            return False
        self.centre = point
        self.search.prove(point.cents, "bounded")
        return True
