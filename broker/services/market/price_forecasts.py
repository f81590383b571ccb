"""Price forecasts in plans: what an offer may cost when the plan buys it, as of planning."""

from __future__ import annotations

from datetime import datetime, timedelta

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.money import from_micro_usd
from broker.domain.planning.plan import OfferPriceForecast, Plan
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.market.forecasting import ForecastSources, load_forecaster

HOUR = timedelta(hours=1)
BOUGHT_NOW = HOUR
"""Capacity that begins within this time is bought at the price in the plan."""
LEVELS = (0.1, 0.5, 0.9)
NO_HISTORY = "no history"


class PlanPriceForecasts:
    """Forecasts prices of a plan's offers; equal histories and seeds give equal forecasts."""

    def __init__(self, units: UnitOfWorkFactory, sources: ForecastSources) -> None:
        self._units = units
        self._sources = sources

    async def of(self, plan: Plan) -> tuple[OfferPriceForecast, ...]:
        """A forecast for each offer whose first use in ``plan`` is later, at that time."""
        first: dict[str, datetime] = {}
        for placement in plan.placements:
            begins = min(segment.start for segment in placement.segments)
            first[placement.offer_id] = min(begins, first.get(placement.offer_id, begins))
        later = {key: at for key, at in first.items() if at - plan.as_of >= BOUGHT_NOW}
        if not later:
            return ()
        async with self._units(EVERY_TEAM) as unit:
            offers = await unit.offers.find_many(sorted(later))
            forecaster = await load_forecaster(unit, offers, plan.as_of, self._sources)
        found = []
        for offer in offers:
            hours, family = (later[offer.offer_id] - plan.as_of) / HOUR, self._sources.family_of(offer)
            micro_usd = round(offer.price_usd_per_node_hour * 1_000_000)
            grounds = forecaster.basis_of(offer.offer_id, family)
            forecasts = forecaster.forecasts(
                offer.offer_id, family, micro_usd, (hours,), levels=LEVELS, seed=plan.seed
            )
            prices = [from_micro_usd(forecast.at(level)) for forecast in forecasts for level in LEVELS]
            low, middle, high = prices or (None, None, None)
            basis = NO_HISTORY if grounds is None else str(grounds.basis)
            found.append(OfferPriceForecast(offer.offer_id, hours, basis, low, middle, high))
        return tuple(found)
