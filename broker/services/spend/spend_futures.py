"""Futures of projected money: the store's past of prices, and a simulator.

What was drawn is kept for as long as the past that prices are drawn from, and the lines, are the same; both
are told by the store. Days are drawn a few months at a time, so that views of several lengths share them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.domain.planning.plan import Plan
from broker.domain.spend.charging import plan_charges
from broker.domain.spend.intervals import IntervalRules, PriceRule, RiskLine, Simulated, risk_lines
from broker.lru_cache import LruCache
from broker.ports.prices import PriceUnitOfWork
from broker.ports.spend import SpendSimulator
from broker.services.market.forecasting import ForecastSources, find_last_day, load_forecaster

LONGEST_DAYS = 400
LONGEST_OVERRUN_DAYS = 60
SEED = 1
DAYS_TOGETHER = 100
MOST_KEPT = 24
"""Results of each kind that are kept: a few megabytes each."""


@dataclass(frozen=True, slots=True)
class Futures:
    """Prices of offers as factors of today's after 0, 1, … ``days`` days, one row a future; ``key`` names
    what they were drawn from."""

    factors: Mapping[str, Sequence[Sequence[float]]]
    days: int
    key: Hashable


class SpendFutures:
    """Draws futures of projected money, the same for the same seed and past."""

    def __init__(
        self, simulator: SpendSimulator[Any], sources: ForecastSources, rules: IntervalRules | None = None
    ) -> None:
        self._simulator = simulator
        self._sources = sources
        self._rules = rules or IntervalRules()
        self._futures = LruCache[Futures](MOST_KEPT)
        self._drawn = LruCache[Any](MOST_KEPT)
        self._simulated = LruCache[Simulated](MOST_KEPT)

    async def find(
        self, uow: PriceUnitOfWork, lines: Sequence[RiskLine], now: datetime, days: int, seed: int
    ) -> Futures:
        """Prices over at least ``days`` of every offer on sale that may still move a line; none where no past
        is known."""
        wanted = {line.offer_id for line in lines if line.price is not PriceRule.FIXED}
        offers = await uow.offers.find_many(wanted) if wanted else ()
        days = -(-days // DAYS_TOGETHER) * DAYS_TOGETHER
        families = tuple(sorted((offer.offer_id, self._sources.family_of(offer)) for offer in offers))
        past = await find_last_day(uow.prices, now) if offers else None
        key = (families, past, days, seed)
        kept = self._futures.find(key)
        if kept is not None:
            return kept
        if not offers:
            return self._futures.keep(key, Futures({}, days, key))
        forecaster = await load_forecaster(uow.prices, offers, now, self._sources)
        factors = {
            offer_id: forecaster.factors(offer_id, family, days, self._rules.paths, seed)
            for offer_id, family in families
        }
        found = Futures(factors, days, key)
        same = past == await find_last_day(uow.prices, now)
        return self._futures.keep(key, found) if same else found

    def simulate(
        self,
        known: tuple[RiskLine, ...],
        others: Sequence[RiskLine],
        futures: Futures,
        periods: Sequence[int],
        seed: int,
    ) -> Simulated:
        """Quantiles by period and in all of all lines together, see ``SpendSimulator``; ``known``: lines that
        come again."""
        what = (known, futures.key, seed)
        if not others:
            return self._simulated.once(
                (what, *periods), lambda: self._sums(known, (), futures, periods, seed)
            )
        return self._sums(known, others, futures, periods, seed)

    def _sums(
        self,
        known: tuple[RiskLine, ...],
        others: Sequence[RiskLine],
        futures: Futures,
        periods: Sequence[int],
        seed: int,
    ) -> Simulated:
        def draw(lines: Sequence[RiskLine]) -> Any:
            return self._simulator.draw(lines, futures.factors, futures.days, self._rules, seed)

        drawn = [self._drawn.once((known, futures.key, seed), lambda: draw(known))]
        if others:
            drawn.append(draw(others))
        return self._simulator.summarise(drawn, periods)

    async def plan_p90_usd(
        self, uow: PriceUnitOfWork, plan: Plan, plan_id: str, now: datetime, seed: int = SEED
    ) -> Decimal:
        """What ``plan``, bought as it stands, costs at most nine times in ten."""
        lines = risk_lines(plan_charges(plan, plan.team, plan_id), {plan_id: plan}, now)
        days = min(LONGEST_DAYS, max((line.last_day for line in lines), default=0) + LONGEST_OVERRUN_DAYS)
        futures = await self.find(uow, lines, now, days, seed)
        return self._simulator.simulate(lines, futures.factors, [0] * days, self._rules, seed).total.p90_usd
