"""Reads the price history on which forecasts are based."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from broker.domain.basics.window import Window
from broker.domain.market.forecast import DailyPrices, Family, Forecaster, ForecastRules
from broker.domain.market.offer import Offer, Tier
from broker.domain.market.price_days import Closes, days_in, start_of
from broker.ports.unit_of_work import UnitOfWork

OTHER_CLASS = "cloud"


@dataclass(frozen=True, slots=True)
class ForecastSources:
    """Extent of the history: ``days`` back, at most ``kin`` offers per GPU and tier, and ``others`` of all.

    ``provider_classes`` by provider key; other providers are of OTHER_CLASS.
    """

    provider_classes: Mapping[str, str] = field(default_factory=dict)
    rules: ForecastRules = field(default_factory=ForecastRules)
    days: int = 90
    kin: int = 100
    others: int = 150

    def family(self, provider: str, gpu: str, tier: Tier) -> Family:
        """The family of offers whose prices are expected to move alike."""
        return Family(gpu, tier, self.provider_classes.get(provider, OTHER_CLASS))

    def family_of(self, offer: Offer) -> Family:
        """The family of an offer."""
        return self.family(offer.provider, offer.sku.gpu, offer.tier)


async def find_last_day(uow: UnitOfWork, now: datetime) -> date | None:
    """The last day of the history that ``load_forecaster`` reads; the history changes only with it."""
    until = await uow.prices.find_summarised_until()
    return None if until is None else min(now.date(), until)


async def load_forecaster(
    uow: UnitOfWork, offers: Collection[Offer], now: datetime, sources: ForecastSources
) -> Forecaster:
    """A forecaster for ``offers`` from their own history, that of their families, and a sample of all."""
    until = await uow.prices.find_summarised_until()
    if until is None:
        return Forecaster((), sources.rules)
    end = min(now, start_of(until))
    days = days_in(Window(end - timedelta(days=sources.days), end))
    found = list(await uow.prices.find_closes(days, offer_ids={offer.offer_id for offer in offers}))
    for gpu, tier in sorted({(offer.sku.gpu, offer.tier.value) for offer in offers}):
        found.extend(await uow.prices.find_closes(days, gpu=gpu, tier=tier, limit=sources.kin))
    found.extend(await uow.prices.find_closes(days, limit=sources.others))
    return Forecaster(_once(found, sources), sources.rules)


def _once(found: Collection[Closes], sources: ForecastSources) -> list[DailyPrices]:
    """Each offer once, without offers from an older database whose tier is unknown."""
    by_id = {one.offer_id: one for one in found if one.tier}
    return [
        DailyPrices(one.offer_id, sources.family(one.provider, one.gpu, Tier(one.tier)), one.micro_usd)
        for one in by_id.values()
    ]
