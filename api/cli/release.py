"""``broker release``: gives a reservation back."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.output import Json, print_json, stdout
from api.cli.reservation_view import exit_code_of_waiting, print_reservations, wait_until
from api.client import ServerTimedOut, connect
from broker.domain.reservation import ReservationState

app = typer.Typer(add_completion=False)

OVER = frozenset({ReservationState.RELEASED, ReservationState.FAILED})


@app.command()
def release(
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it is gone; 0: none.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Release a reservation; a second time is no error.

    Exit codes: 3 key, 4 no such reservation, 8 a provider failed, 9 still ending.

    Example: BROKER_KEY=… broker release rsv_01JD
    """
    with connect(load_settings()) as client:
        try:
            row = client.release(reservation_id)
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again: releasing twice is no error") from error
        rows, in_time = wait_until(client, [row], lambda latest: latest.state in OVER, timeout)
    if as_json:
        print_json(rows[0].model_dump(mode="json"))
    else:
        print_reservations(stdout(), rows)
    raise typer.Exit(exit_code_of_waiting(in_time))
