"""``broker offers``: the market as last polled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.figures import day_and_time
from api.cli.market_source import orderable, stored_market
from api.cli.output import Json, print_json, stdout
from api.schemas.market.market import Market, market_to_document
from broker.catalogue import load_provider_names, resolve_gpu
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import price_figure
from broker.domain.market.offer import HostKind, Offer, Tier
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.stock_pools import shared

app = typer.Typer(add_completion=False)

WIDE = 110


@app.command()
def offers(
    gpu: Annotated[str | None, typer.Option(help="Canonical GPU name, such as H100-SXM-80GB.")] = None,
    provider: Annotated[str | None, typer.Option(help="Provider key.")] = None,
    region: Annotated[str | None, typer.Option(help="Region, or a pattern such as us-*.")] = None,
    tier: Annotated[Tier | None, typer.Option(help="How it is sold.")] = None,
    only_orderable: Annotated[
        bool,
        typer.Option(
            "--orderable", help="Without what cannot be ordered: price lists, sellers that lack a setting."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows of the table; --json has all.")] = 50,
    as_json: Json = False,
) -> None:
    """Show offers of the last poll, cheapest GPU-hour first.

    Example: broker offers --gpu H100-SXM-80GB --tier on_demand
    """
    if provider is not None and provider not in (known := load_provider_names()):
        expected = f"one of {', '.join(sorted(known))}"
        raise InputError("options", (FieldProblem("--provider", repr(provider), expected),))
    market = stored_market(OfferFilter(provider, gpu, region, str(tier) if tier is not None else None))
    if gpu is not None and not market.offers:
        market = _under_its_right_name(gpu, OfferFilter(provider, None, region, tier), market)
    if only_orderable:
        market = orderable(market)
        if provider is region is tier is None:
            market = replace(market, offers=shared(market.offers))
    if as_json:
        print_json(market_to_document(market.as_of, market.offers))
    else:
        print_market(stdout(), market, limit)


def _under_its_right_name(gpu: str, rest: OfferFilter, empty: Market) -> Market:
    """Raises InputError with the nearest name for a GPU that no offer has."""
    right = resolve_gpu(gpu, "--gpu", "options")
    if right == gpu:
        return empty
    return stored_market(OfferFilter(rest.provider, right, rest.region, rest.tier))


def print_market(console: Console, market: Market, limit: int) -> None:
    """The first ``limit`` offers."""
    when = f"as of {day_and_time(market.as_of)} UTC"
    if not market.offers:
        console.print(f"no offer matches, {when}")
        return
    shown: Sequence[Offer] = market.offers[:limit]
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("$/GPU-h", justify="right", no_wrap=True)
    table.add_column("node", no_wrap=True)
    table.add_column("provider", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("tier", no_wrap=True)
    table.add_column("stock", justify="right", no_wrap=True)
    wide = console.width >= WIDE
    if wide:
        table.add_column("links", overflow="fold")
    tried = wide and any(offer.learned is not None for offer in shown)
    if tried:
        table.add_column("our launches", overflow="fold")
    for offer in shown:
        cells = (
            price_figure(offer.price_usd_per_node_hour / offer.sku.gpus_per_node),
            f"{offer.sku.gpus_per_node} × {offer.sku.gpu}",
            offer.provider,
            _where(offer, wide=wide),
            str(offer.tier),
            str(offer.stock.nodes) if offer.stock.nodes is not None else str(offer.stock.level),
            _links(offer),
            str(offer.learned or "–"),
        )
        table.add_row(*cells[: 8 if tried else 7 if wide else 6])
    console.print(table)
    of_all = f"{len(shown)} of {len(market.offers)} offers, " if len(shown) < len(market.offers) else ""
    console.print(Text(f"{of_all}{when}", "dim"))


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
