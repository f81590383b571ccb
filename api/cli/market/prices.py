"""``broker prices``: prices over time, of a GPU across sellers or of one offer, and forecasts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from api.bootstrap import Product
from api.cli.companions import require_companions
from api.cli.market.offers import print_market
from api.cli.market_source import ask_stored
from api.cli.output import Json, print_json, stdout
from api.cli.tables import print_section
from api.cli.times import read_time
from api.schemas.market.market import Market, market_to_document
from api.schemas.market.prices import DAY, FORECAST, NO_HISTORY, SKU_DAY
from api.sections import Section, section_of
from broker.catalogue import resolve_gpu
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import from_micro_usd, price_figure, price_words
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.market.price_days import PriceDay, SkuDay
from broker.services.market.prices import OfferForecast

app = typer.Typer(add_completion=False)

ANSWERS = {
    "": frozenset({"gpu", "tier", "since", "until", "by_provider", "forecast"}),
    "offer": frozenset({"since", "until", "forecast"}),
    "at": frozenset({"gpu", "tier", "limit"}),
}
HISTORY = timedelta(days=30)


@app.command()
def prices(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option(help="Canonical GPU name, such as H100-SXM-80GB.")] = None,
    tier: Annotated[
        Tier | None, typer.Option(help="How it is sold: on_demand, and with --at every tier, unless told.")
    ] = None,
    offer: Annotated[str | None, typer.Option(help="One offer, by its id, instead of a GPU.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="First instant or UTC day; default: 30 days ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="First instant after the last; default: now.")
    ] = None,
    by_provider: Annotated[bool, typer.Option("--by-provider", help="A row for each seller.")] = False,
    at: Annotated[
        str | None, typer.Option(help="The market as it was known then; --json: for `plan --market`.")
    ] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="What the price of --offer may become.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows of a market's table.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the lowest, median and highest price by UTC day, the market at a past instant, or a forecast.

    Example: broker prices --gpu H100-SXM-80GB --tier spot --from 2026-11-01
    """
    require_companions(context, ANSWERS)
    if at is not None:
        _show_market(read_time("--at", at), gpu, tier, limit, as_json)
    elif offer is not None and forecast:
        _show_forecast(offer, as_json)
    elif offer is not None:
        _show_days(offer, since, until, as_json)
    elif gpu is not None and not forecast:
        _show_sku(
            resolve_gpu(gpu, "--gpu", "options"), tier or Tier.ON_DEMAND, (since, until), by_provider, as_json
        )
    else:
        expected = "--offer ID" if forecast else "--gpu NAME, --offer ID or --at TIME"
        raise InputError("options", (FieldProblem("", "neither", expected),))


def _show_market(at: datetime, gpu: str | None, tier: Tier | None, limit: int, as_json: bool) -> None:
    known = resolve_gpu(gpu, "--gpu", "options") if gpu is not None else None

    async def ask(product: Product) -> Market:
        return Market(at, await product.prices.find_known_at(at, gpu=known, tier=tier))

    market = ask_stored(ask)
    if as_json:
        print_json(market_to_document(market.as_of, market.offers))
    else:
        print_market(stdout(), market, limit)


def _show_forecast(offer_id: str, as_json: bool) -> None:
    async def ask(product: Product) -> OfferForecast:
        return await product.prices.forecast(offer_id)

    found = ask_stored(ask)
    if as_json:
        print_json(FORECAST.write(found))
    else:
        print_forecast(stdout(), found)


def _show_days(offer_id: str, since: str | None, until: str | None, as_json: bool) -> None:
    async def ask(product: Product) -> tuple[PriceDay, ...]:
        return await product.prices.find_days(offer_id, _window(product, since, until))

    days = ask_stored(ask)
    if as_json:
        print_json({"offer_id": offer_id, "items": [DAY.write(day) for day in days]})
        return
    columns: dict[str, Callable[[PriceDay], str]] = {
        "=day": lambda day: f"{day.day}",
        ">min $/h": lambda day: _price(day.least),
        ">median": lambda day: _price(day.median),
        ">max": lambda day: _price(day.most),
        ">last": lambda day: _price(day.last),
        ">hours on sale": lambda day: f"{day.seconds / 3600:.1f}",
        ">changes": lambda day: str(day.changes),
    }
    print_section(section_of(days, columns, empty="on no day of that time was it known to be on sale"))


def _price(micro_usd: int) -> str:
    return price_figure(from_micro_usd(micro_usd))


def _show_sku(
    gpu: str, tier: Tier, times: tuple[str | None, str | None], by_provider: bool, as_json: bool
) -> None:
    async def ask(product: Product) -> tuple[SkuDay, ...]:
        window = _window(product, *times)
        return await product.prices.find_sku_days(gpu, tier.value, window, by_provider=by_provider)

    days = ask_stored(ask)
    if as_json:
        items = [SKU_DAY.write(day) for day in days]
        print_json({"gpu": gpu, "tier": tier.value, "items": items})
        return
    columns: dict[str, Callable[[SkuDay], str]] = {
        "=day": lambda day: f"{day.day}",
        "=seller": lambda day: day.provider or "all",
        ">min $/GPU-h": lambda day: _price(day.least),
        ">median": lambda day: _price(day.median),
        ">max": lambda day: _price(day.most),
        ">offers": lambda day: f"{day.offers:,}",
        ">sellers": lambda day: str(day.providers),
    }
    print_section(section_of(days, columns, empty="nobody was known to sell it in that time"))


def print_forecast(console: Console, forecast: OfferForecast) -> None:
    """One row for each horizon, or a line that says that there is no history."""
    now = forecast.offer.price_usd_per_node_hour
    if forecast.grounds is None:
        console.print(
            f"{forecast.offer.offer_id}: {price_words(now)} per node-hour now; {NO_HISTORY}, no forecast"
        )
        return
    shares = [f">{quantile.share:.0%}" for quantile in forecast.horizons[0].quantiles]
    rows = [
        (f"{horizon.hours:g} h", *(_price(quantile.micro_usd) for quantile in horizon.quantiles))
        for horizon in forecast.horizons
    ]
    print_section(Section(("=after", *shares), rows), console)
    grounds = forecast.grounds
    words = (
        f"USD per node-hour, now {price_words(now)}; mostly from the {grounds.basis}'s past "
        f"({grounds.own_days} days of its own, {grounds.family_offers} offers alike, "
        f"{grounds.market_offers} of all)"
    )
    console.print(Text(words, "dim"))


def _window(product: Product, since: str | None, until: str | None) -> Window:
    end = product.clock.now() if until is None else read_time("--to", until)
    start = end - HISTORY if since is None else read_time("--from", since)
    if end <= start:
        problem = FieldProblem("--from", start.isoformat(), f"a time before {end.isoformat()}")
        raise InputError("options", (problem,))
    return Window(start, end)
