"""``broker hold``: buys a reservation now that is ordered at its start."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.holding.answers import ask, tell
from api.cli.holding.reservation_view import UNSETTLED, exit_code_of_rows, print_reservations, wait_until
from api.cli.output import Json, print_json, stdout
from api.client import ServerTimedOut, connect
from api.figures import day_and_time
from api.promise_words import hold_now_words
from broker.domain.basics.money import usd_words

app = typer.Typer(add_completion=False)


@app.command()
def hold(
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Order without asking.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the provider.")] = 120.0,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat an order whose answer was lost, without buying twice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Buy a reservation now that is ordered at its start, so that nobody else takes its capacity.

    It is charged from now on. It says first what that adds, and asks in a terminal. If the seller refuses,
    the reservation is ordered at its start as before. Holding it twice is no error.

    Exit codes: 3 the key may not, 4 no such reservation, 5 it cannot be held early or stock is short, 7 a
    budget would be exceeded, 8 a provider failed, 9 it is not done yet.

    Example: BROKER_KEY=… broker hold rsv-01jd…
    """
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    with connect(load_settings()) as client:
        try:
            if idempotency_key is None:
                quote = client.quote_hold(reservation_id)
                hourly = f"{usd_words(quote.usd_per_hour)} an hour until {day_and_time(quote.start)} UTC"
                tell(f"{hold_now_words(quote.hold_usd)} That is {hourly}.", quote.market)
                ask(needed=not yes)
            rows = [client.hold(reservation_id, key)]
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again: holding twice is no error") from error
        rows, in_time = wait_until(client, rows, lambda row: row.state not in UNSETTLED, timeout)
    if as_json:
        print_json(rows[0].model_dump(mode="json"))
    else:
        print_reservations(stdout(), rows)
    raise typer.Exit(exit_code_of_rows(rows, in_time))
