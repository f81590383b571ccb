"""Price history and forecasts as JSON."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import BaseModel

from api.schemas.base.parts import Money
from api.schemas.base.times import Instant, format_time
from broker.domain.basics.money import format_usd, from_micro_usd
from broker.domain.market.market import PricePoint
from broker.domain.market.price_days import PriceDay, SkuDay
from broker.services.market.prices import OfferForecast

NO_HISTORY = "no history"


class PointForm(BaseModel):
    """The price of an offer from an instant on."""

    at: Instant
    price_usd_per_node_hour: Money
    stock_nodes: int | None
    available: bool


class DayForm(BaseModel):
    """An offer on one UTC day, USD per node-hour."""

    day: date
    min_usd: Money
    median_usd: Money
    max_usd: Money
    last_usd: Money
    hours_on_sale: float
    changes: int


class SkuDayForm(BaseModel):
    """A GPU in one tier on one UTC day, USD per GPU-hour. ``provider`` null: over all."""

    day: date
    provider: str | None
    min_usd_per_gpu_hour: Money
    median_usd_per_gpu_hour: Money
    max_usd_per_gpu_hour: Money
    offers: int
    providers: int


class QuantileForm(BaseModel):
    """A price that is not exceeded with probability ``share``."""

    share: float
    price_usd_per_node_hour: Money


class HorizonForm(BaseModel):
    """What a price may be after some hours."""

    hours: float
    quantiles: list[QuantileForm]


class GroundsForm(BaseModel):
    """What a forecast rests on: shares by basis, and how much there was of each."""

    shares: dict[str, float]
    own_days: float
    family_offers: int
    market_offers: int


class ForecastForm(BaseModel):
    """What an offer's price may be; without history ``basis`` says so and ``horizons`` is empty."""

    offer_id: str
    as_of: Instant
    price_usd_per_node_hour: Money
    basis: str
    grounds: GroundsForm | None
    horizons: list[HorizonForm]


def point_to_document(point: PricePoint) -> dict[str, Any]:
    """The price of an offer from an instant on."""
    return {
        "at": format_time(point.at),
        "price_usd_per_node_hour": format_usd(point.price_usd_per_node_hour),
        "stock_nodes": point.stock_nodes,
        "available": point.available,
    }


def day_to_document(day: PriceDay) -> dict[str, Any]:
    """An offer on one UTC day, USD per node-hour."""
    return {
        "day": day.day.isoformat(),
        "min_usd": _usd(day.least),
        "median_usd": _usd(day.median),
        "max_usd": _usd(day.most),
        "last_usd": _usd(day.last),
        "hours_on_sale": round(day.seconds / 3600, 3),
        "changes": day.changes,
    }


def sku_day_to_document(day: SkuDay) -> dict[str, Any]:
    """A GPU in one tier on one UTC day, USD per GPU-hour. ``provider`` null: over all."""
    return {
        "day": day.day.isoformat(),
        "provider": day.provider,
        "min_usd_per_gpu_hour": _usd(day.least),
        "median_usd_per_gpu_hour": _usd(day.median),
        "max_usd_per_gpu_hour": _usd(day.most),
        "offers": day.offers,
        "providers": day.providers,
    }


def forecast_to_document(forecast: OfferForecast) -> dict[str, Any]:
    """What an offer's price may be, and what that rests on; without history it says so, and nothing else."""
    grounds = forecast.grounds
    return {
        "offer_id": forecast.offer.offer_id,
        "as_of": format_time(forecast.as_of),
        "price_usd_per_node_hour": format_usd(forecast.offer.price_usd_per_node_hour),
        "basis": NO_HISTORY if grounds is None else str(grounds.basis),
        "grounds": None
        if grounds is None
        else {
            "shares": {str(basis): round(share, 4) for basis, share in grounds.shares.items()},
            "own_days": grounds.own_days,
            "family_offers": grounds.family_offers,
            "market_offers": grounds.market_offers,
        },
        "horizons": [
            {
                "hours": outlook.hours,
                "quantiles": [
                    {"share": quantile.share, "price_usd_per_node_hour": _usd(quantile.micro_usd)}
                    for quantile in outlook.quantiles
                ],
            }
            for outlook in forecast.outlooks
        ],
    }


def _usd(micro_usd: int) -> str:
    return format_usd(from_micro_usd(micro_usd))
