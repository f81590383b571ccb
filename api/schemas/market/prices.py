"""Price history and forecasts as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer

from api.schemas.base.forms import Form, From
from api.schemas.base.parts import Money
from broker.domain.basics.money import format_usd, from_micro_usd
from broker.domain.market.forecast import ForecastBasis, HistorySource, PriceForecast, Quantile
from broker.domain.market.market import PricePoint
from broker.domain.market.price_days import PriceDay, SkuDay
from broker.services.market.prices import OfferForecast

NO_HISTORY = "no history"
MicroUsd = Annotated[Money, PlainSerializer(lambda micro: format_usd(from_micro_usd(micro)), return_type=str)]

POINT = Form(
    PricePoint,
    name="PointForm",
    about="The price of an offer from an instant on.",
    leave_out=("offer_id",),  # given by the whole history
)
PointForm = Annotated[PricePoint, POINT]
DAY = Form(
    PriceDay,
    name="DayForm",
    about="An offer on one UTC day, USD per node-hour.",
    leave_out=("on_sale",),  # the price at the begin of the next day
    rename={
        "least": "min_usd",
        "median": "median_usd",
        "most": "max_usd",
        "last": "last_usd",
        "seconds": "hours_on_sale",
    },
    types={
        **dict.fromkeys(("least", "median", "most", "last"), MicroUsd),
        "seconds": Annotated[float, PlainSerializer(lambda seconds: round(seconds / 3600, 3))],
    },
)
DayForm = Annotated[PriceDay, DAY]
SKU_DAY = Form(
    SkuDay,
    about="A GPU in one tier on one UTC day, USD per GPU-hour. ``provider`` null: over all.",
    leave_out=("gpu", "tier"),  # given by the request
    rename={
        "least": "min_usd_per_gpu_hour",
        "median": "median_usd_per_gpu_hour",
        "most": "max_usd_per_gpu_hour",
    },
    types=dict.fromkeys(("least", "median", "most"), MicroUsd),
)
SkuDayForm = Annotated[SkuDay, SKU_DAY]
Form(
    Quantile,
    about="A price that is not exceeded with probability ``share``.",
    rename={"micro_usd": "price_usd_per_node_hour"},
    types={"micro_usd": MicroUsd},
)
Form(PriceForecast, name="HorizonForm", about="The distribution of a price after some hours.")
Form(
    ForecastBasis,
    name="GroundsForm",
    about="The data of a forecast: the share of each basis, and its amount.",
    types={
        "own_days": float,
        "shares": Annotated[
            dict[str, float],
            PlainSerializer(lambda shares: {str(basis): round(share, 4) for basis, share in shares.items()}),
        ],
    },
)


def _basis(forecast: OfferForecast) -> HistorySource | str:
    return NO_HISTORY if forecast.grounds is None else forecast.grounds.basis


FORECAST = Form(
    OfferForecast,
    name="ForecastForm",
    about="The price forecast of an offer; without history, ``basis`` says so and ``horizons`` is empty.",
    leave_out=("offer",),  # only its id is written
    adds={
        "offer_id": Annotated[str, From("offer.offer_id")],
        "price_usd_per_node_hour": Annotated[Money, From("offer.price_usd_per_node_hour")],
        "basis": Annotated[str, From(lambda forecast: str(_basis(forecast)))],
    },
    order=("offer_id as_of price_usd_per_node_hour basis grounds horizons",),
)
ForecastForm = Annotated[OfferForecast, FORECAST]
