"""Pure functions from prices and forecasts to charts with their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from statistics import median

from api.figures import plural
from api.pages.parts.charts import Charts, both_widths
from api.pages.parts.curves import Band, Curve, Drawing, curves
from api.pages.parts.words import micro_price, price
from api.sections import Card
from broker.domain.basics.money import from_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.forecast import HistorySource, PriceForecast
from broker.domain.market.offer import Offer
from broker.domain.market.price_days import PriceDay, SkuDay, start_of
from broker.services.market.prices import OfferForecast

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
BASIS_WORDS: Mapping[HistorySource, str] = {
    HistorySource.OFFER: "mostly this offer's own past",
    HistorySource.FAMILY: "mostly the past of offers of the same GPU, tier and class of seller",
    HistorySource.MARKET: "mostly the past of the whole market",
}


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """The forecast for ``at``: the price is above ``low`` with a chance of 90 %, and below ``high`` with 90
    %."""

    at: datetime
    low_usd: Decimal
    middle_usd: Decimal
    high_usd: Decimal


def forecast_rows(forecast: OfferForecast) -> tuple[ForecastRow, ...]:
    """The forecast in USD per node-hour, nearest first."""
    return tuple(_forecast_row(forecast.as_of, horizon) for horizon in forecast.horizons)


def _forecast_row(as_of: datetime, horizon: PriceForecast) -> ForecastRow:
    low, middle, high = (from_micro_usd(horizon.at(share)) for share in (LOW, MIDDLE, HIGH))
    return ForecastRow(as_of + timedelta(hours=horizon.hours), low, middle, high)


def grounds_words(forecast: OfferForecast) -> str:
    """What the forecast is based on, in words."""
    grounds = forecast.grounds
    if grounds is None:
        return "No history is known yet, so nothing is forecast."
    return (
        f"It follows {BASIS_WORDS[grounds.basis]}: {plural(grounds.own_days, 'day')} of its own, "
        f"{plural(grounds.family_offers, 'offer')} like it, {plural(grounds.market_offers, 'offer')} "
        "in all."
    )


def offer_cards(offer: Offer, days: Sequence[PriceDay], ahead: Sequence[ForecastRow]) -> tuple[Card, ...]:
    """The price of an offer now, over the days that are shown, and in the forecast."""
    now = offer.price_usd_per_node_hour
    cards = [Card("A node-hour now", price(now), f"{price(now / offer.sku.gpus_per_node)} a GPU", lead=True)]
    if days:
        low, high = min(day.least for day in days), max(day.most for day in days)
        since = f"over {plural(len(days), 'day')} on sale"
        middle = int(median(day.median for day in days))
        cards.append(Card("Lowest to highest", f"{micro_price(low)} to {micro_price(high)}", since))
        cards.append(Card("Median of days", micro_price(middle), since))
    if ahead:
        last = ahead[-1]
        cards.append(
            Card(
                f"On {last.at:%Y-%m-%d}, P10 to P90",
                f"{price(last.low_usd)} to {price(last.high_usd)}",
                f"P50 {price(last.middle_usd)}",
            )
        )
    return tuple(cards)


def offer_charts(
    days: Sequence[PriceDay], ahead: Sequence[ForecastRow], offer: Offer, window: Window
) -> Charts | None:
    """The price of an offer by day, with the band of its forecast."""
    if not days:
        return None
    now = float(offer.price_usd_per_node_hour)
    history = _history(days, (window.end, now))
    start = (window.end, now, now)
    fan = (start, *((row.at, float(row.low_usd), float(row.high_usd)) for row in ahead))
    path = ((window.end, now), *((row.at, float(row.middle_usd)) for row in ahead))
    end = max((row.at for row in ahead), default=window.end)
    drawing = Drawing(
        max(window.start, start_of(days[0].day)),
        end,
        (
            Curve("median of the day", history[1], stepped=True),
            *((Curve("P50 of the forecast", path, "dashed"),) if ahead else ()),
        ),
        (
            Band("lowest to highest of the day", history[0], stepped=True),
            *((Band("P10 to P90 of the forecast", fan),) if ahead else ()),
        ),
        now=window.end,
    )
    title = "Price of a node-hour by day, and what it may become; the tables below have the same figures"
    return both_widths(lambda width: curves(drawing, title, width))


def sku_charts(days: Sequence[SkuDay], window: Window, gpu: str) -> Charts | None:
    """The price of a GPU-hour over all sellers by day: the median, from lowest to highest."""
    if not days:
        return None
    last = (window.end, float(from_micro_usd(days[-1].median)))
    band, middle = _history(days, last)
    drawing = Drawing(
        max(window.start, start_of(days[0].day)),
        window.end,
        (Curve(f"{gpu}, median of offers", middle, stepped=True),),
        (Band("lowest to highest offer", band, stepped=True),),
        now=window.end,
        decimals=3,
    )
    title = "Price of a GPU-hour over all sellers by day; the table below has the same figures"
    return both_widths(lambda width: curves(drawing, title, width))


History = tuple[tuple[tuple[datetime, float, float], ...], tuple[tuple[datetime, float], ...]]


def _history(days: Sequence[PriceDay] | Sequence[SkuDay], last: tuple[datetime, float]) -> History:
    """Lowest, highest and median price from the start of each day; the last values hold up to ``last``."""
    band = [
        (start_of(one.day), float(from_micro_usd(one.least)), float(from_micro_usd(one.most))) for one in days
    ]
    band.append((last[0], band[-1][1], band[-1][2]))
    middle = [(start_of(one.day), float(from_micro_usd(one.median))) for one in days]
    return tuple(band), (*middle, last)
