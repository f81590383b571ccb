"""``broker done``: the work on a reservation is over."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.holding.reservation_view import print_reservations
from api.cli.output import Json, print_json, say, stdout
from api.client import BrokerClient, connect
from api.figures import day_and_time
from api.release_words import estimate_words, released_words
from broker.domain.basics.errors import NotPermitted
from broker.domain.basics.money import ZERO
from broker.domain.holding.reservation import ReservationState
from broker.domain.spend.release_estimate import ReleaseEstimate

app = typer.Typer(add_completion=False)

ENDING = frozenset({ReservationState.RELEASING, ReservationState.RELEASED, ReservationState.FAILED})


@app.command()
def done(
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    as_json: Json = False,
) -> None:
    """Say that the work on a reservation is over: the rest is released where that saves money.

    The last line of a training script may call it. Where a release gives nothing back, as in a paid window,
    the reservation stays until its end. It says what comes back, what stays owed, and what that saves. Doing
    so twice is no error.

    Exit codes: 3 the key may not, 4 no such reservation, 5 it was changed meanwhile, 8 a provider failed.

    Example: broker done rsv-01jd…
    """
    with connect(load_settings()) as client:
        estimate = _estimate(client, reservation_id)
        row = client.finish(reservation_id)
    if estimate is not None:
        say(estimate_words(estimate))
    if as_json:
        print_json(row.model_dump(mode="json"))
        return
    print_reservations(stdout(), [row])
    if row.state not in ENDING:
        until = "its end" if row.end is None else f"{day_and_time(row.end)} UTC"
        say(f"It stays until {until}, as a release would save nothing.")
    elif row.owed_usd is not None:
        say(released_words(row.credit_usd or ZERO, row.owed_usd))


def _estimate(client: BrokerClient, reservation_id: str) -> ReleaseEstimate | None:
    """What a release would give back; None for a key that may release and not read."""
    try:
        return client.estimate_release(reservation_id)
    except NotPermitted:
        return None
