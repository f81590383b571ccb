"""``broker poll``: polls providers now, and the table of rounds that it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from api.bootstrap import Product, build_product
from api.cli.configuration import load_environment, load_settings
from api.cli.errors import ExitCode
from api.cli.output import Json, print_json, stderr, stdout
from api.schemas.market.provider import ROUND
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.market.market import PollRound
from providers.market_clock import MarketClock

app = typer.Typer(add_completion=False)


@app.command()
def poll(
    providers: Annotated[list[str] | None, typer.Argument(help="Provider keys; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Poll providers and store their offers. Prints one line for each provider.

    Exit code 8 when one of them failed; its last known offers are kept.

    Example: BROKER_SANDBOX_URL=http://127.0.0.1:8090 broker poll lambda runpod
    """
    with stderr().status("asking providers"):
        rounds = asyncio.run(_poll(providers))
    if as_json:
        print_json({"rounds": [ROUND.write(round_) for round_ in rounds]})
    else:
        print_rounds(stdout(), rounds)
    if any(round_.error is not None for round_ in rounds):
        raise typer.Exit(ExitCode.PROVIDER)


async def _poll(providers: list[str] | None) -> tuple[PollRound, ...]:
    product = build_product(load_settings(), load_environment())
    try:
        await product.store.migrate()
        return await poll_now(product, providers)
    finally:
        await product.close()


async def poll_now(product: Product, providers: Sequence[str] | None) -> tuple[PollRound, ...]:
    """Polls ``providers`` (None: all that are configured) once. Raises InputError when there is none."""
    if not product.adapters:
        expected = "BROKER_SANDBOX_URL, or the credentials of a provider (`broker providers list`)"
        raise InputError("environment", (FieldProblem("", "no configured provider", expected),))
    if isinstance(product.clock, MarketClock):
        await product.clock.refresh()
    return await product.offers.refresh(providers or None)


def print_rounds(console: Console, rounds: Sequence[PollRound]) -> None:
    """One line for each provider: offers, changes, rejected rows, seconds, error."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("provider", no_wrap=True)
    for name in ("offers", "changes", "rejected", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("error", style="red", overflow="fold")
    for round_ in rounds:
        table.add_row(
            round_.provider,
            f"{round_.offers:,}",
            f"{len(round_.changes):,}",
            str(len(round_.rejected)),
            f"{round_.seconds:.1f}",
            round_.error or "",
        )
    console.print(table)


def print_totals(console: Console, rounds: Sequence[PollRound]) -> None:
    """One line for all providers, and one for each that failed."""
    failed = [round_ for round_ in rounds if round_.error]
    offers = sum(round_.offers for round_ in rounds)
    rejected = sum(len(round_.rejected) for round_ in rounds)
    seconds = max((round_.seconds for round_ in rounds), default=0.0)
    asked = f"{len(rounds)} provider{'' if len(rounds) == 1 else 's'}"
    console.print(f"{asked}: {offers:,} offers, {rejected:,} rows rejected, {seconds:.1f} s")
    for round_ in failed:
        console.print(f"{round_.provider} failed: {round_.error}", style="red")
