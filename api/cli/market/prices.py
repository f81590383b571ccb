"""``broker prices``: prices over time, of a GPU across sellers or of one offer, and forecasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from api.bootstrap import Product
from api.cli.companions import require_companions
from api.cli.market.offers import print_market
from api.cli.market_source import ask_stored, named_server
from api.cli.output import Json, print_json, stdout
from api.cli.tables import print_section
from api.cli.times import read_time
from api.client import BrokerClient
from api.schemas.base.times import format_time
from api.schemas.market.market import Market, market_to_document
from api.schemas.market.prices import DAY, FORECAST, NO_HISTORY, SKU_DAY
from api.sections import Section, section_of
from broker.catalogue import resolve_gpu
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import price_figure, price_words
from broker.domain.basics.window import Window, instant_words
from broker.domain.market.offer import Tier

app = typer.Typer(add_completion=False)

T = TypeVar("T")
Document = dict[str, Any]

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

    It asks the server that BROKER_URL names, else it reads the database of this machine.

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

    market = _asked(lambda server: server.find_market(format_time(at), gpu=known, tier=tier), ask)
    if as_json:
        print_json(market_to_document(market.as_of, market.offers))
    else:
        print_market(stdout(), market, limit)


def _asked(of_server: Callable[[BrokerClient], T], of_database: Callable[[Product], Awaitable[T]]) -> T:
    """What the server says that BROKER_URL names, else what the database of this machine does."""
    server = named_server()
    if server is None:
        return ask_stored(of_database)
    with server:
        return of_server(server)


def _show_forecast(offer_id: str, as_json: bool) -> None:
    async def ask(product: Product) -> Document:
        return FORECAST.write(await product.prices.forecast(offer_id))

    found = _asked(lambda server: server.forecast_offer(offer_id), ask)
    if as_json:
        print_json(found)
    else:
        print_forecast(stdout(), found)


def _show_days(offer_id: str, since: str | None, until: str | None, as_json: bool) -> None:
    async def ask(product: Product) -> list[Document]:
        window = _window(product.clock.now(), since, until)
        return [DAY.write(day) for day in await product.prices.find_days(offer_id, window)]

    days = _asked(lambda server: list(server.list_offer_days(offer_id, *_times(since, until))), ask)
    if as_json:
        print_json({"offer_id": offer_id, "items": days})
        return
    columns: dict[str, Callable[[Document], str]] = {
        "=day": lambda day: day["day"],
        ">min $/h": lambda day: _price(day["min_usd"]),
        ">median": lambda day: _price(day["median_usd"]),
        ">max": lambda day: _price(day["max_usd"]),
        ">last": lambda day: _price(day["last_usd"]),
        ">hours on sale": lambda day: f"{day['hours_on_sale']:.1f}",
        ">changes": lambda day: str(day["changes"]),
    }
    print_section(section_of(days, columns, empty="on no day of that time was it known to be on sale"))


def _price(usd: str) -> str:
    return price_figure(Decimal(usd))


def _show_sku(
    gpu: str, tier: Tier, times: tuple[str | None, str | None], by_provider: bool, as_json: bool
) -> None:
    async def ask(product: Product) -> list[Document]:
        window = _window(product.clock.now(), *times)
        found = await product.prices.find_sku_days(gpu, tier.value, window, by_provider=by_provider)
        return [SKU_DAY.write(day) for day in found]

    days = _asked(
        lambda server: list(server.list_gpu_days(gpu, tier, *_times(*times), by_provider=by_provider)), ask
    )
    if as_json:
        print_json({"gpu": gpu, "tier": tier.value, "items": days})
        return
    columns: dict[str, Callable[[Document], str]] = {
        "=day": lambda day: day["day"],
        "=seller": lambda day: day["provider"] or "all",
        ">min $/GPU-h": lambda day: _price(day["min_usd_per_gpu_hour"]),
        ">median": lambda day: _price(day["median_usd_per_gpu_hour"]),
        ">max": lambda day: _price(day["max_usd_per_gpu_hour"]),
        ">offers": lambda day: f"{day['offers']:,}",
        ">sellers": lambda day: str(day["providers"]),
    }
    print_section(section_of(days, columns, empty="nobody was known to sell it in that time"))


def print_forecast(console: Console, forecast: Document) -> None:
    """One row for each horizon, or a line that says that there is no history."""
    now, grounds = price_words(Decimal(forecast["price_usd_per_node_hour"])), forecast["grounds"]
    if grounds is None:
        console.print(f"{forecast['offer_id']}: {now} per node-hour now; {NO_HISTORY}, no forecast")
        return
    shares = [f">{quantile['share']:.0%}" for quantile in forecast["horizons"][0]["quantiles"]]
    rows = [
        (
            f"{horizon['hours']:g} h",
            *(_price(quantile["price_usd_per_node_hour"]) for quantile in horizon["quantiles"]),
        )
        for horizon in forecast["horizons"]
    ]
    print_section(Section(("=after", *shares), rows), console)
    words = (
        f"USD per node-hour, now {now}; mostly from the {forecast['basis']}'s past "
        f"({grounds['own_days']:g} days of its own, {grounds['family_offers']} offers alike, "
        f"{grounds['market_offers']} of all)"
    )
    console.print(Text(words, "dim"))


def _times(since: str | None, until: str | None) -> tuple[str | None, str | None]:
    """Both times as a server takes them, or neither: it then answers the last days."""
    if since is None and until is None:
        return None, None
    window = _window(datetime.now(UTC), since, until)
    return format_time(window.start), format_time(window.end)


def _window(now: datetime, since: str | None, until: str | None) -> Window:
    end = now if until is None else read_time("--to", until)
    start = end - HISTORY if since is None else read_time("--from", since)
    if end <= start:
        problem = FieldProblem("--from", instant_words(start), f"a time before {instant_words(end)}")
        raise InputError("options", (problem,))
    return Window(start, end)
