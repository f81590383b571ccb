"""Price history: the past market, daily statistics, forecasts, and maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import to_micro_usd
from broker.domain.basics.window import Window, instant_words
from broker.domain.market.forecast import ForecastBasis, PriceForecast
from broker.domain.market.offer import Offer
from broker.domain.market.price_days import PriceDay, SkuDay, days_in, start_of
from broker.lru_cache import LruCache
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.market.forecasting import ForecastSources, load_forecaster

DAY = timedelta(days=1)
HORIZONS_HOURS = (24.0, 168.0, 720.0)
MOST_DAYS = 3660
DAYS_A_PASS = 14
RECENT_S = 300
KEPT_DAYS = 20_000


@dataclass(frozen=True, slots=True)
class HistoryRules:
    """Retention of prices in days.

    All points are kept for ``full_days``, then the last point and the statistics of each day for
    ``kept_days``.
    """

    full_days: int = 90
    kept_days: int = 1100


@dataclass(frozen=True, slots=True)
class OfferForecast:
    """A forecast of an offer's price. ``grounds`` None: there is no history, and so no forecast."""

    offer: Offer
    as_of: datetime
    grounds: ForecastBasis | None
    horizons: tuple[PriceForecast, ...]


class PricesService:
    """Use cases of price history."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        *,
        rules: HistoryRules | None = None,
        sources: ForecastSources | None = None,
    ) -> None:
        self._units = units
        self._clock = clock
        self._rules = rules or HistoryRules()
        self._sources = sources or ForecastSources()
        self._recent: LruCache[tuple[SkuDay, ...]] = LruCache(KEPT_DAYS, len)

    async def find_known_at(
        self, at: datetime, *, gpu: str | None = None, tier: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """The market as it was known at ``at``. Raises InputError for a time in the future."""
        now = self._clock.now()
        if at > now:
            problem = FieldProblem("/at", instant_words(at), f"a time not after {instant_words(now)}")
            raise InputError("request", (problem,))
        async with self._units(EVERY_TEAM) as unit:
            return await unit.prices.find_known_at(at, gpu=gpu, tier=tier, provider=provider)

    async def find_days(self, offer_id: str, window: Window) -> tuple[PriceDay, ...]:
        """Daily statistics of an offer, for the days in ``window`` on which it was on sale."""
        async with self._units(EVERY_TEAM) as unit:
            return await unit.prices.find_days(offer_id, _days(window), self._clock.now())

    async def find_sku_days(
        self, gpu: str, tier: str, window: Window, *, by_provider: bool = False
    ) -> tuple[SkuDay, ...]:
        """Daily statistics of a GPU in one tier, over all providers or by provider."""
        async with self._units(EVERY_TEAM) as unit:
            days, now = _days(window), self._clock.now()
            return await unit.prices.find_sku_days(gpu, tier, days, now, by_provider=by_provider)

    async def find_recent_sku_days(self, gpu: str, tier: str, window: Window) -> tuple[SkuDay, ...]:
        """Daily statistics over all providers, of today up to the last full five minutes.

        They are cached for five minutes, because today's statistics need all prices of today.
        """
        now = self._clock.now()
        until = now - timedelta(seconds=now.timestamp() % RECENT_S)
        days = _days(window)
        key = (gpu, tier, days, until)
        found = self._recent.find(key)
        if found is None:
            async with self._units(EVERY_TEAM) as unit:
                found = await unit.prices.find_sku_days(gpu, tier, days, until, by_provider=False)
            if not found or found[-1].day < days[-1]:  # today's first price is newer
                return await self.find_sku_days(gpu, tier, window)
            self._recent.keep(key, found)
        return found

    async def forecast(
        self, offer_id: str, hours: Sequence[float] = HORIZONS_HOURS, seed: int = 1
    ) -> OfferForecast:
        """Forecasts of the price of a current offer after each of ``hours``. Raises NotFound."""
        now = self._clock.now()
        async with self._units(EVERY_TEAM) as unit:
            offer = await unit.offers.find_offer(offer_id)
            forecaster = await load_forecaster(unit, (offer,), now, self._sources)
        family, price = self._sources.family_of(offer), to_micro_usd(offer.price_usd_per_node_hour)
        horizons = forecaster.forecasts(offer_id, family, price, tuple(hours), seed=seed)
        return OfferForecast(offer, now, forecaster.basis_of(offer_id, family), horizons)

    async def keep_up(self) -> None:
        """Summarises a few past days per pass, and deletes points that are older than the rules allow."""
        days, now = 0, self._clock.now()
        for _ in range(DAYS_A_PASS):
            async with self._units(EVERY_TEAM) as unit:
                day = await unit.prices.find_next_day()
                if day is None or start_of(day) + DAY > now:
                    break
                await unit.prices.summarise(day)
                await unit.commit()
            days += 1
        if days:
            async with self._units(EVERY_TEAM) as unit:
                await unit.prices.thin((now - timedelta(days=self._rules.full_days)).date())
                oldest = (now - timedelta(days=self._rules.kept_days)).date()
                await unit.prices.forget(oldest)
                await unit.commit()


def _days(window: Window) -> tuple[date, ...]:
    if window.duration > MOST_DAYS * DAY:
        problem = FieldProblem("/from", f"{window.duration.days} days", f"at most {MOST_DAYS} days")
        raise InputError("request", (problem,))
    return days_in(window)
