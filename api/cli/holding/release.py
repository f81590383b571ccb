"""``broker release``: gives a reservation back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.holding.reservation_view import exit_code_of_waiting, print_reservations, wait_until
from api.cli.output import Json, print_json, say, stdout
from api.client import BrokerClient, ServerTimedOut, connect
from api.figures import plural
from api.release_words import estimate_words, released_words
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.errors import (
    BrokerError,
    Conflict,
    FieldProblem,
    InputError,
    NotPermitted,
    ProviderError,
)
from broker.domain.basics.money import ZERO
from broker.domain.holding.reservation import ReservationState

app = typer.Typer(add_completion=False)

OVER = frozenset({ReservationState.RELEASED, ReservationState.FAILED})


@app.command()
def release(
    reservation_id: Annotated[str | None, typer.Argument(help="Id of a reservation on the server.")] = None,
    plan: Annotated[str | None, typer.Option(metavar="PLAN_ID", help="All that this plan holds.")] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what the plan holds for this workload.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it is gone; 0: none.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Release a reservation, everything that a plan holds, or what it holds for one workload.

    It says before what comes back and what stays owed, and afterwards what really came back. Doing so twice
    is no error. One reservation that cannot be released does not keep the others.

    Exit codes: 3 the key may not, 4 no such reservation, 5 it was changed meanwhile, 8 a provider failed, 9
    the release is not done yet.

    Example: BROKER_KEY=… broker release rsv-01jd…

    Example: broker release --plan plan-01jd… --workload chat-70b
    """
    if (reservation_id is None) == (plan is None):
        found = "neither" if plan is None else "both"
        problem = FieldProblem("RESERVATION_ID", found, "a reservation's id, or --plan PLAN_ID")
        raise InputError("command line", (problem,))
    if workload is not None and plan is None:
        problem = FieldProblem("--workload", "it beside a reservation's id", "it beside --plan PLAN_ID")
        raise InputError("command line", (problem,))
    with connect(load_settings()) as client:
        try:
            _say_before(client, reservation_id, plan, workload)
            wanted = [reservation_id] if reservation_id is not None else _held(client, plan, workload)
            begun, failed = _release_each(client, wanted)
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
    if failed:
        _say_failed(len(begun), failed)
        raise failed[0][1]
    raise typer.Exit(exit_code_of_waiting(in_time))


def _release_each(
    client: BrokerClient, wanted: Sequence[str]
) -> tuple[list[ReservationForm], list[tuple[str, BrokerError]]]:
    """The releases that began, and those that failed. A single one raises its error."""
    begun: list[ReservationForm] = []
    failed: list[tuple[str, BrokerError]] = []
    for one in wanted:
        try:
            begun.append(client.release(one))
        except (Conflict, ProviderError) as error:
            if len(wanted) == 1:
                raise
            failed.append((one, error))
    return begun, failed


def _say_failed(released: int, failed: Sequence[tuple[str, BrokerError]]) -> None:
    whole = plural(released + len(failed), "reservation")
    say(f"release asked for {released} of {whole}; not for:")
    for one, error in failed:
        say(f"  {one}: {error}")


def _say_before(
    client: BrokerClient, reservation_id: str | None, plan_id: str | None, workload: str | None
) -> None:
    try:
        if reservation_id is not None:
            found = client.estimate_release(reservation_id)
        else:
            found = client.estimate_plan_release(plan_id or "", workload)
    except NotPermitted:
        return  # A key that may release and not read does so without the figures.
    say(estimate_words(found))


def _say_after(rows: Sequence[ReservationForm]) -> None:
    over = [row for row in rows if row.state in OVER]
    if over:
        credit_usd = sum((row.credit_usd or ZERO for row in over), ZERO)
        owed_usd = sum((row.owed_usd or ZERO for row in over), ZERO)
        say(released_words(credit_usd, owed_usd))


def _held(client: BrokerClient, plan_id: str | None, workload: str | None) -> list[str]:
    """The open reservations of a plan, of all its workloads or of one."""
    rows = client.list_reservations(plan_id)
    return [row.reservation_id for row in rows if row.state not in OVER and workload in (None, row.workload)]
