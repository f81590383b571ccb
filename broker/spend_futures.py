"""Futures of projected money: the store's past of prices, and a simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from broker.domain.charging import plan_charges
from broker.domain.intervals import IntervalRules, PriceRule, RiskLine, Simulated, risk_lines
from broker.domain.plan import Plan
from broker.finance_ports import SpendSimulator
from broker.forecasting import ForecastSources, load_forecaster
from broker.price_ports import PriceUnitOfWork

Futures = Mapping[str, Sequence[Sequence[float]]]
LONGEST_DAYS = 400
LONGEST_OVERRUN_DAYS = 60
SEED = 1


class SpendFutures:
    """Draws futures of projected money, the same for the same seed and past."""

    def __init__(
        self, simulator: SpendSimulator, sources: ForecastSources, rules: IntervalRules | None = None
    ) -> None:
        self._simulator = simulator
        self._sources = sources
        self._rules = rules or IntervalRules()

    async def find(
        self, uow: PriceUnitOfWork, lines: Sequence[RiskLine], now: datetime, days: int, seed: int
    ) -> Futures:
        """Prices of every offer on sale that may still move a line; none where no past is known."""
        wanted = {line.offer_id for line in lines if line.price is not PriceRule.FIXED}
        offers = await uow.offers.find_many(wanted) if wanted else ()
        if not offers:
            return {}
        forecaster = await load_forecaster(uow.prices, offers, now, self._sources)
        return {
            offer.offer_id: forecaster.factors(
                offer.offer_id, self._sources.family_of(offer), days, self._rules.paths, seed
            )
            for offer in offers
        }

    def simulate(
        self, lines: Sequence[RiskLine], futures: Futures, periods: Sequence[int], seed: int
    ) -> Simulated:
        """Quantiles by period and in all; see ``SpendSimulator``."""
        return self._simulator.simulate(lines, futures, periods, self._rules, seed)

    async def plan_p90_usd(
        self, uow: PriceUnitOfWork, plan: Plan, plan_id: str, now: datetime, seed: int = SEED
    ) -> Decimal:
        """What ``plan``, bought as it stands, costs at most nine times in ten."""
        lines = risk_lines(plan_charges(plan, plan.team, plan_id), {plan_id: plan}, now)
        days = min(LONGEST_DAYS, max((line.last_day for line in lines), default=0) + LONGEST_OVERRUN_DAYS)
        futures = await self.find(uow, lines, now, days, seed)
        return self.simulate(lines, futures, [0] * days, seed).total.p90_usd
