"""``broker reservations``: what is reserved."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.holding.reservation_view import print_history, print_reservations, print_shortfalls
from api.cli.output import Json, print_items, stdout
from api.client import connect
from api.schemas.accounts.audit import AUDIT
from broker.domain.holding.reservation import OPEN_STATES

app = typer.Typer(add_completion=False)

ANSWERS = {"": frozenset({"plan", "open_only", "each"}), "history": frozenset[str]()}


@app.command()
def reservations(
    context: typer.Context,
    plan: Annotated[str | None, typer.Option(help="Only those of this plan.")] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    history: Annotated[
        str | None, typer.Option(metavar="ID", help="Every step of this reservation: who, what and why.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="A row for every step of a fleet, with its id.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List reservations on the running server, newest first, or the history of one, oldest first.

    Exit codes: 3 the key may not, 4 no such reservation.

    Example: BROKER_KEY=… broker reservations --open
    """
    require_companions(context, ANSWERS)
    if history is not None:
        _show_history(history, as_json=as_json)
        return
    with connect(load_settings()) as client:
        rows = [row for row in client.list_reservations(plan) if not open_only or row.state in OPEN_STATES]
        short = [] if as_json else client.list_shortfalls(plan)
        money = [] if as_json or each or not rows else list(client.list_fleets(plan))
    if as_json:
        print_items(row.model_dump(mode="json") for row in rows)
    else:
        print_reservations(stdout(), rows, each=each, money=money)
        print_shortfalls(stdout(), short)


def _show_history(reservation_id: str, *, as_json: bool) -> None:
    with connect(load_settings()) as client:
        client.find_reservation(reservation_id)
        entries = list(client.list_audit(reservation_id))[::-1]
    if as_json:
        print_items(map(AUDIT.write, entries))
    else:
        print_history(stdout(), entries)
