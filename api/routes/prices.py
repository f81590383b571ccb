"""Prices over time: changes, daily summaries, past markets and forecasts."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from api.http.cursors import by_day, by_instant, page_of
from api.http.dependencies import (
    AnyCaller,
    AnyLimit,
    Cursor,
    Moment,
    Since,
    Until,
    listing,
    product_of,
    window_between,
)
from api.offer_filters import known_names, require_offer_words, require_one_gpu
from api.routes.parameters import GpuWords, OfferId, ProviderWords, Seed, TierWords
from api.schemas.base.forms import PageForm
from api.schemas.market.market import MarketForm, market_to_document
from api.schemas.market.prices import (
    DAY,
    FORECAST,
    POINT,
    SKU_DAY,
    DayForm,
    ForecastForm,
    PointForm,
    SkuDayForm,
)
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.market.offer_pages import admits
from broker.services.market.prices import HORIZONS_HOURS

router = APIRouter(prefix="/v1", tags=["prices"])
HISTORY = timedelta(days=30)
LONGEST_HOURS = 366 * 24
Hours = Annotated[float, Query(gt=0, le=LONGEST_HOURS)]


class Detail(StrEnum):
    """The resolution of an offer's history."""

    POINT = "point"
    DAY = "day"


class SkuInterval(StrEnum):
    """The resolution of a history across sellers."""

    DAY = "day"


class By(StrEnum):
    """The grouping of rows."""

    ALL = "all"
    PROVIDER = "provider"


def _window(request: Request, since: Since, until: Until) -> Window:
    now = product_of(request).clock.now()
    return window_between(since, until) or Window(now - HISTORY, now)


@router.get(
    "/offers/{offer_id:path}/prices",
    responses={200: {"model": PageForm[PointForm] | PageForm[DayForm]}},
)
async def list_offer_prices(
    request: Request,
    caller: AnyCaller,
    offer_id: OfferId,
    since: Since = None,
    until: Until = None,
    interval: Annotated[
        Detail, Query(description="Every change (`point`), or one row per UTC day")
    ] = Detail.POINT,
    limit: AnyLimit = None,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists price changes of one offer, beginning with the price in force at the start; by default 30 days.

    By day: the least, median (over time), greatest and last price while it was on sale.
    """
    product, window = product_of(request), _window(request, since, until)
    if interval is Detail.DAY:
        days = await product.prices.find_days(offer_id, window)
        page, next_cursor = page_of(days, lambda day: by_day(day.day), limit, cursor)
        return listing([DAY.write(day) for day in page], next_cursor)
    points = await product.offers.find_prices(offer_id, window)
    part, next_cursor = page_of(points, lambda point: by_instant(point.at), limit, cursor)
    return listing([POINT.write(point) for point in part], next_cursor)


@router.get("/offers/{offer_id:path}/forecast", responses={200: {"model": ForecastForm}})
async def forecast_offer(
    request: Request,
    caller: AnyCaller,
    offer_id: OfferId,
    hours: Annotated[
        list[Hours] | None,
        Query(max_length=20, description="Forecast horizon in hours; may be repeated"),
    ] = None,
    seed: Seed = 1,
) -> JSONResponse:
    """Forecasts the price of a current offer after each of ``hours``, from history; it says so if there is no
    history.
    """
    forecast = await product_of(request).prices.forecast(offer_id, hours or HORIZONS_HOURS, seed)
    return JSONResponse(FORECAST.write(forecast))


@router.get("/prices", responses={200: {"model": PageForm[SkuDayForm]}})
async def list_gpu_prices(
    request: Request,
    caller: AnyCaller,
    gpu: Annotated[str, Query(description="A canonical name, such as `H100-SXM-80GB`")],
    tier: Annotated[Tier, Query(description="The tier of the offers")],
    since: Since = None,
    until: Until = None,
    interval: Annotated[SkuInterval, Query(description="One row per UTC day")] = SkuInterval.DAY,
    by: Annotated[
        By, Query(description="One row for all sellers together, or one for each provider")
    ] = By.ALL,
    limit: AnyLimit = None,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the daily prices of a GPU in one tier, per GPU-hour, for all sellers together or
    each; by default 30 days.
    """
    window = _window(request, since, until)
    known = known_names(await product_of(request).offers.find_counts())
    gpu, prices = require_one_gpu(gpu, known), product_of(request).prices
    days = await prices.find_sku_days(gpu, tier.value, window, by_provider=by is By.PROVIDER)
    page, next_cursor = page_of(days, lambda day: by_day(day.day, day.provider or ""), limit, cursor)
    return listing([SKU_DAY.write(day) for day in page], next_cursor)


@router.get("/market", responses={200: {"model": MarketForm}})
async def show_market(
    request: Request,
    caller: AnyCaller,
    at: Annotated[Moment, Query(description="The instant of the market: a time with its zone")],
    gpu: GpuWords = None,
    tier: TierWords = None,
    provider: ProviderWords = None,
) -> JSONResponse:
    """Shows the market as the broker knew it at an instant, as a document for ``broker plan --market``.

    Filters are written as those of ``GET /v1/offers``.
    """
    product = product_of(request)
    known = known_names(await product.offers.find_counts())
    names = require_offer_words({"gpu": gpu, "tier": tier, "provider": provider}, known).names
    single = {name: word for name, word in names.words if isinstance(word, str)}
    found = await product.prices.find_known_at(at, **single)
    offers = tuple(offer for offer in found if admits(names, offer))
    return JSONResponse(market_to_document(at, offers))
