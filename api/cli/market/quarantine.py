"""``broker quarantine``: offers with implausible prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.configuration import load_settings
from api.cli.figures import day_and_time
from api.cli.output import Json, print_json, stdout
from api.client import connect
from api.schemas.market.provider import QUARANTINED
from broker.domain.basics.money import price_figure
from broker.domain.market.price_gate import Quarantined

app = typer.Typer(add_completion=False)


@app.command()
def quarantine(
    release: Annotated[
        str | None, typer.Option(metavar="OFFER_ID", help="Believe this offer at its price (administrator).")
    ] = None,
    as_json: Json = False,
) -> None:
    """List offers whose price is implausible, or release one. No plan uses an offer in quarantine.

    A released offer is on sale from the next poll on, until its price changes again.

    Example: broker quarantine --release vast/offer-123/on_demand
    """
    with connect(load_settings()) as client:
        entries = [client.believe_price(release)] if release is not None else list(client.list_quarantine())
    if as_json:
        items = [QUARANTINED.write(entry) for entry in entries]
        print_json({"items": items, "next_cursor": None})
    else:
        print_quarantine(stdout(), entries)


def print_quarantine(console: Console, entries: Sequence[Quarantined]) -> None:
    """The entries, or a line that says that there are none."""
    if not entries:
        console.print("No price is in doubt.")
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("offer", overflow="fold")
    table.add_column("$/node-h", justify="right", no_wrap=True)
    table.add_column("doubt", overflow="fold")
    table.add_column("since", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for entry in entries:
        state = "released" if entry.released_at is not None else "held"
        price = price_figure(entry.price)
        table.add_row(entry.offer.offer_id, price, entry.reason, day_and_time(entry.since), state)
    console.print(table)
