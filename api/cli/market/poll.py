"""``broker poll``: polls providers now, and the table of rounds that it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from api.bootstrap import Product, build_product
from api.cli.configuration import load_settings
from api.cli.errors import ExitCode
from api.cli.output import Json, print_json, stderr
from api.cli.tables import print_section
from api.figures import plural
from api.given_settings import load_environment
from api.schemas.market.provider import ROUND
from api.sections import Cell, Section, section_of
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

    A command of operators: it uses the credentials and the database of this machine, whatever BROKER_URL
    says.

    Exit code 8 when one of them failed; its last known offers are kept.

    Example: BROKER_SANDBOX_URL=http://127.0.0.1:8090 broker poll lambda runpod
    """
    with stderr().status("asking providers"):
        rounds = asyncio.run(_poll(providers))
    if as_json:
        print_json({"rounds": [ROUND.write(round_) for round_ in rounds]})
    else:
        print_section(rounds_section(rounds))
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


def rounds_section(rounds: Sequence[PollRound]) -> Section:
    """One line for each provider: offers, changes, rejected rows, seconds, error."""
    return section_of(
        rounds,
        {
            "=provider": lambda one: one.provider,
            ">offers": lambda one: f"{one.offers:,}",
            ">changes": lambda one: f"{len(one.changes):,}",
            ">rejected": lambda one: str(len(one.rejected)),
            ">seconds": lambda one: f"{one.seconds:.1f}",
            "error": lambda one: Cell(one.error or "", tone="bad"),
        },
    )


def print_totals(console: Console, rounds: Sequence[PollRound]) -> None:
    """One line for all providers, and one for each that failed."""
    failed = [round_ for round_ in rounds if round_.error]
    offers = sum(round_.offers for round_ in rounds)
    rejected = sum(len(round_.rejected) for round_ in rounds)
    seconds = max((round_.seconds for round_ in rounds), default=0.0)
    asked = plural(len(rounds), "provider")
    console.print(f"{asked}: {offers:,} offers, {rejected:,} rows rejected, {seconds:.1f} s")
    for round_ in failed:
        console.print(f"{round_.provider} failed: {round_.error}", style="red")
