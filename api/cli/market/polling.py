"""Polling from the command line, and the table that it prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from api.bootstrap import Product
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.market.market import PollRound
from providers.market_clock import MarketClock


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
