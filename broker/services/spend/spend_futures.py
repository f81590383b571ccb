"""Simulated futures of projected spend, from the stored price history.

Draws are cached while the price history and the simulated charges are unchanged. Days are drawn a few months
at a time, so that views of different lengths share them.
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
from broker.ports.spend import SpendSimulator
from broker.ports.unit_of_work import UnitOfWork
from broker.services.market.forecasting import ForecastSources, find_last_day, load_forecaster

LONGEST_DAYS = 400
LONGEST_OVERRUN_DAYS = 60
SEED = 1
DAYS_TOGETHER = 100
MOST_KEPT = 24
"""Size of each cache, in results of a few megabytes."""


@dataclass(frozen=True, slots=True)
class Futures:
    """Prices of offers after 0, 1, … ``days`` days as factors of today's price, one row per future.

    ``key`` identifies the inputs of the draw.
    """

    factors: Mapping[str, Sequence[Sequence[float]]]
    days: int
    key: Hashable


class SpendFutures:
    """Draws futures of projected spend; equal seeds and histories give equal draws."""

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
        self, uow: UnitOfWork, lines: Sequence[RiskLine], now: datetime, days: int, seed: int
    ) -> Futures:
        """Futures over at least ``days`` for the offers on sale whose price affects ``lines``."""
        wanted = {line.offer_id for line in lines if line.price is not PriceRule.FIXED}
        offers = await uow.offers.find_many(wanted) if wanted else ()
        days = -(-days // DAYS_TOGETHER) * DAYS_TOGETHER
        families = tuple(sorted((offer.offer_id, self._sources.family_of(offer)) for offer in offers))
        past = await find_last_day(uow, now) if offers else None
        key = (families, past, days, seed)
        kept = self._futures.find(key)
        if kept is not None:
            return kept
        if not offers:
            return self._futures.keep(key, Futures({}, days, key))
        forecaster = await load_forecaster(uow, offers, now, self._sources)
        factors = {
            offer_id: forecaster.factors(offer_id, family, days, self._rules.paths, seed)
            for offer_id, family in families
        }
        found = Futures(factors, days, key)
        same = past == await find_last_day(uow, now)
        return self._futures.keep(key, found) if same else found

    def simulate(
        self,
        known: tuple[RiskLine, ...],
        others: Sequence[RiskLine],
        futures: Futures,
        periods: Sequence[int],
        seed: int,
    ) -> Simulated:
        """Quantiles by period and of the total for all lines together, see ``SpendSimulator``.

        Draws of the lines ``known`` are cached.
        """
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
        self, uow: UnitOfWork, plan: Plan, plan_id: str, now: datetime, seed: int = SEED
    ) -> Decimal:
        """The 90th percentile of the cost of ``plan`` in USD."""
        lines = risk_lines(plan_charges(plan, plan.team, plan_id), {plan_id: plan}, now)
        days = min(LONGEST_DAYS, max((line.last_day for line in lines), default=0) + LONGEST_OVERRUN_DAYS)
        futures = await self.find(uow, lines, now, days, seed)
        return self._simulator.simulate(lines, futures.factors, [0] * days, self._rules, seed).total.p90_usd
