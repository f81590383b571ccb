"""``broker quarantine``: offers with implausible prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_items
from api.cli.tables import print_section
from api.client import connect
from api.schemas.market.provider import QUARANTINED
from api.sections import Section, section_of
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
        print_items(map(QUARANTINED.write, entries))
    else:
        print_section(quarantine_section(entries))


def quarantine_section(entries: Sequence[Quarantined]) -> Section:
    """The entries with their doubts."""
    return section_of(
        entries,
        {
            "offer": lambda entry: entry.offer.offer_id,
            ">$/node-h": lambda entry: price_figure(entry.price),
            "doubt": lambda entry: entry.reason,
            "=since": lambda entry: entry.since,
            "=state": lambda entry: "held" if entry.released_at is None else "released",
        },
        empty="No price is in doubt.",
    )
