"""``broker done``: the work on a reservation is over."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.holding.reservation_view import print_reservations
from api.cli.output import Json, print_json, say, stdout
from api.client import connect
from broker.domain.holding.reservation import ReservationState

app = typer.Typer(add_completion=False)

ENDING = frozenset({ReservationState.RELEASING, ReservationState.RELEASED, ReservationState.FAILED})


@app.command()
def done(
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    as_json: Json = False,
) -> None:
    """Say that the work on a reservation is over: the rest is released where that saves money.

    The last line of a training script may call it. Where a release gives nothing back, as in a paid window,
    the reservation stays until its end. Doing so twice is no error.

    Exit codes: 3 the key may not, 4 no such reservation, 5 it was changed meanwhile, 8 a provider failed.

    Example: broker done rsv-01jd…
    """
    with connect(load_settings()) as client:
        row = client.finish(reservation_id)
    if as_json:
        print_json(row.model_dump(mode="json"))
        return
    print_reservations(stdout(), [row])
    if row.state not in ENDING:
        say("it stays until its end: a release would give nothing back")
