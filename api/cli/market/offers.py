"""``broker offers``: the market as last polled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from api.cli.market_source import narrowed_market
from api.cli.output import Json, print_json, stdout
from api.cli.tables import print_section
from api.figures import day_and_time
from api.money_words import sellers_words
from api.schemas.market.market import Market, market_to_document
from api.sections import section_of
from broker.domain.basics.money import price_figure
from broker.domain.market.conversions import conversions
from broker.domain.market.offer import HostKind, Offer, Tier
from broker.domain.market.sku import Form
from broker.domain.market.stock_pools import shared

app = typer.Typer(add_completion=False)

WIDE = 110
WIDE_ENOUGH_FOR_IDS = 150


@app.command()
def offers(
    gpu: Annotated[
        str | None, typer.Option(help="GPUs: H100-SXM-80GB, the family H100, H100*, several by comma.")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="Provider keys, by comma.")] = None,
    region: Annotated[str | None, typer.Option(help="Regions, or a pattern such as us-*.")] = None,
    tier: Annotated[str | None, typer.Option(help=f"How it is sold: {', '.join(Tier)}.")] = None,
    country: Annotated[str | None, typer.Option(help="Countries by ISO code, such as US,DE.")] = None,
    form: Annotated[str | None, typer.Option(help=f"How a node is delivered: {', '.join(Form)}.")] = None,
    gpus_per_node: Annotated[str | None, typer.Option(help="GPUs a node, such as 8 or 4,8.")] = None,
    only_orderable: Annotated[
        bool,
        typer.Option(
            "--orderable",
            help="Not what cannot be ordered: price lists, sellers that lack a setting, sold-out offers.",
        ),
    ] = False,
    with_ids: Annotated[bool, typer.Option("--ids", help="With the ids of the offers.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows of the table; --json has all.")] = 50,
    as_json: Json = False,
) -> None:
    """Show offers of the last poll, cheapest GPU-hour first: of the server that BROKER_URL names, else of the
    database of this machine.

    Example: broker offers --gpu H100-SXM-80GB --tier on_demand
    """
    words = {
        "gpu": gpu, "provider": provider, "region": region, "tier": tier, "country": country, "form": form,
        "gpus_per_node": gpus_per_node,
    }  # fmt: skip
    market = narrowed_market(words, only_orderable)
    if only_orderable and all(word is None for name, word in words.items() if name != "gpu"):
        market = replace(market, offers=shared(market.offers))
    if as_json:
        print_json(market_to_document(market.as_of, market.offers))
    else:
        print_market(stdout(), market, limit, with_ids=with_ids)


def print_market(console: Console, market: Market, limit: int, *, with_ids: bool = False) -> None:
    """The first ``limit`` offers; with their ids if asked, on a narrow screen with little else."""
    when = f"as of {day_and_time(market.as_of)} UTC"
    if not market.offers:
        console.print(f"no offer matches, {when}")
        return
    shown: Sequence[Offer] = market.offers[:limit]
    if with_ids and console.width < WIDE_ENOUGH_FOR_IDS:
        rows = [(*_price_and_node(offer), offer.offer_id) for offer in shown]
        price, node = (max(len(row[place]) for row in rows) for place in (0, 1))
        for row in rows:
            console.print(Text(f"{row[0]:>{price}}  {row[1]:<{node}}  {row[2]}"), soft_wrap=True)
        _print_rest(console, shown, market)
        return
    wide = console.width >= WIDE
    columns: dict[str, Callable[[Offer], str]] = {
        ">$/GPU-h": lambda offer: _price_and_node(offer)[0],
        "=node": lambda offer: _price_and_node(offer)[1],
        "=provider": lambda offer: offer.provider,
        "where": lambda offer: _where(offer, wide=wide),
        "=tier": lambda offer: str(offer.tier),
        ">stock": lambda offer: str(offer.stock.level if offer.stock.nodes is None else offer.stock.nodes),
    }
    if wide:
        columns["links"] = _links
        if any(offer.learned is not None for offer in shown):
            columns["our launches"] = lambda offer: str(offer.learned or "–")
    if with_ids or console.width >= WIDE_ENOUGH_FOR_IDS:
        columns["offer"] = lambda offer: offer.offer_id
    print_section(section_of(shown, columns), console)
    _print_rest(console, shown, market)


def _price_and_node(offer: Offer) -> tuple[str, str]:
    usd_per_gpu_hour = offer.price_usd_per_node_hour / offer.sku.gpus_per_node
    return price_figure(usd_per_gpu_hour), f"{offer.sku.gpus_per_node} × {offer.sku.gpu}"


def _print_rest(console: Console, shown: Sequence[Offer], market: Market) -> None:
    """How much of the market is shown, and at which rates of exchange."""
    of_all = f"{len(shown)} of {len(market.offers)} offers, " if len(shown) < len(market.offers) else ""
    console.print(Text(f"{of_all}as of {day_and_time(market.as_of)} UTC", "dim"))
    if words := sellers_words({(offer.provider, offer.mode) for offer in shown}):
        console.print(Text(words, "dim"))
    for words in conversions(shown, market.as_of.date()):
        console.print(Text(words, "dim"))


def _where(offer: Offer, *, wide: bool) -> str:
    """The place of an offer, shortened to its zone or region where needed, and whether a community host has
    it."""
    name = offer.place if wide else offer.zone or offer.region
    return f"{name}, community" if offer.host is HostKind.COMMUNITY else name


def _links(offer: Offer) -> str:
    intra, fabric = offer.sku.intra_node, offer.sku.fabric
    words = [f"{intra.kind} {intra.gbyte_s:g} GB/s"] if intra is not None else []
    if fabric is not None:
        got = fabric.measured_gbit_s_per_node
        measured = f" ({got:g} measured)" if got is not None else ""
        words.append(f"{fabric.kind} {fabric.gbit_s_per_node:g} Gbit/s{measured} × {fabric.max_nodes}")
    return ", ".join(words)
