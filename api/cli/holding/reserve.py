"""``broker reserve``: reserves the capacity that a plan placed."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.figures import plural
from api.cli.holding.reservation_view import UNSETTLED, exit_code_of_rows, print_reservations, wait_until
from api.cli.output import Json, print_json, stderr, stdout
from api.client import ServerTimedOut, connect
from broker.domain.basics.errors import ApprovalRequired
from broker.domain.holding.reservation import ReservationState

app = typer.Typer(add_completion=False)


@app.command()
def reserve(
    plan_id: Annotated[str, typer.Argument(help="Id of a plan on the server.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for providers.")] = 120.0,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat an order whose answer was lost, without buying twice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reserve all of a plan on the running server, or nothing of it.

    Exit codes: 3 the key may not, 4 no such plan, 5 prices or stock changed, 7 approval or budget needed,
    8 a provider failed, 9 the reservation is not done yet.

    Example: BROKER_KEY=… broker reserve plan-01jd…
    """
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    with connect(load_settings()) as client:
        try:
            rows = client.reserve_plan(plan_id, key)
        except ApprovalRequired as error:
            yes = f"broker approvals --approve {plan_id}"
            raise ApprovalRequired(f"{error}; finance decides with `{yes}`") from error
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again with --idempotency-key {key}") from error
        later = sum(row.state is ReservationState.SCHEDULED and not row.provider_references for row in rows)
        due = f"; {later} more are bought when their time comes" if later else ""
        ordered = plural(len(rows) - later, "reservation")
        stderr().print(f"{ordered} ordered, waiting for the providers{due}", markup=False)
        rows, in_time = wait_until(client, rows, lambda row: row.state not in UNSETTLED, timeout)
    if as_json:
        print_json({"reservations": [row.model_dump(mode="json") for row in rows]})
    else:
        print_reservations(stdout(), rows)
    raise typer.Exit(exit_code_of_rows(rows, in_time))
