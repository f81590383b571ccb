"""``broker reservations``: what is reserved."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_json, stdout
from api.cli.reservation_view import print_reservations
from api.client import connect
from broker.domain.reservation import OPEN_STATES

app = typer.Typer(add_completion=False)


@app.command()
def reservations(
    plan: Annotated[str | None, typer.Option(help="Only those of this plan.")] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    as_json: Json = False,
) -> None:
    """List reservations on the running server, newest first.

    Example: BROKER_KEY=… broker reservations --open
    """
    with connect(load_settings()) as client:
        rows = [row for row in client.list_reservations(plan) if not open_only or row.state in OPEN_STATES]
    if as_json:
        print_json({"items": [row.model_dump(mode="json") for row in rows], "next_cursor": None})
    else:
        print_reservations(stdout(), rows)
