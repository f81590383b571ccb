"""``broker release``: gives a reservation back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.holding.reservation_view import exit_code_of_waiting, print_reservations, wait_until
from api.cli.output import Json, print_json, stderr, stdout
from api.client import BrokerClient, ServerTimedOut, connect
from api.release_words import estimate_words, released_words
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.errors import FieldProblem, InputError, NotPermitted
from broker.domain.basics.money import ZERO
from broker.domain.holding.reservation import ReservationState

app = typer.Typer(add_completion=False)

OVER = frozenset({ReservationState.RELEASED, ReservationState.FAILED})


@app.command()
def release(
    reservation_id: Annotated[str | None, typer.Argument(help="Id of a reservation on the server.")] = None,
    plan: Annotated[str | None, typer.Option(metavar="PLAN_ID", help="All that this plan holds.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it is gone; 0: none.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Release a reservation, or everything that a plan holds. Doing so twice is no error.

    It says before what comes back and what stays owed, and afterwards what really came back.

    Exit codes: 3 the key may not, 4 no such reservation, 8 a provider failed, 9 the release is not done yet.

    Example: BROKER_KEY=… broker release rsv-01jd…
    """
    if (reservation_id is None) == (plan is None):
        found = "neither" if plan is None else "both"
        problem = FieldProblem("RESERVATION_ID", found, "a reservation's id, or --plan PLAN_ID")
        raise InputError("command line", (problem,))
    with connect(load_settings()) as client:
        try:
            _say_before(client, reservation_id, plan)
            wanted = [reservation_id] if reservation_id is not None else _held(client, plan)
            begun = [client.release(one) for one in wanted]
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again: releasing twice is no error") from error
        rows, in_time = wait_until(client, begun, lambda latest: latest.state in OVER, timeout)
    if as_json and plan is None:
        print_json(rows[0].model_dump(mode="json"))
    elif as_json:
        print_json({"reservations": [row.model_dump(mode="json") for row in rows]})
    else:
        print_reservations(stdout(), rows)
    _say_after(rows)
    raise typer.Exit(exit_code_of_waiting(in_time))


def _say_before(client: BrokerClient, reservation_id: str | None, plan_id: str | None) -> None:
    try:
        if reservation_id is not None:
            found = client.estimate_release(reservation_id)
        else:
            found = client.estimate_plan_release(plan_id or "")
    except NotPermitted:
        return  # A key that may release and not read does so without the figures.
    stderr().print(estimate_words(found), markup=False, soft_wrap=True)


def _say_after(rows: Sequence[ReservationForm]) -> None:
    over = [row for row in rows if row.state in OVER]
    if over:
        credit_usd = sum((row.credit_usd or ZERO for row in over), ZERO)
        owed_usd = sum((row.owed_usd or ZERO for row in over), ZERO)
        stderr().print(released_words(credit_usd, owed_usd), markup=False, soft_wrap=True)


def _held(client: BrokerClient, plan_id: str | None) -> list[str]:
    """The open reservations of a plan."""
    rows = client.list_reservations(plan_id)
    return [row.reservation_id for row in rows if row.state not in OVER]
