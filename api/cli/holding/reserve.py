"""``broker reserve``: reserves the capacity that a plan placed, or nodes of one offer."""

from __future__ import annotations

import uuid
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.figures import plural
from api.cli.holding.reservation_view import UNSETTLED, exit_code_of_rows, print_reservations, wait_until
from api.cli.output import Json, print_json, stderr, stdout
from api.cli.times import TIME_HELP, read_time
from api.client import ServerTimedOut, connect
from api.schemas.holding.reservation import Fit
from broker.domain.basics.errors import ApprovalRequired, FieldProblem, InputError
from broker.domain.basics.money import ZERO
from broker.domain.holding.reservation import ReservationState

app = typer.Typer(add_completion=False)


OF_OFFER = frozenset(
    {"offer", "nodes", "start", "end", "workload", "fit", "max_price", "disk_gb", "memory_gb"}
)
EVER = frozenset({"timeout", "idempotency_key"})
ANSWERS = {"": EVER, "plan_id": EVER, "offer": EVER | OF_OFFER}


@app.command()
def reserve(
    context: typer.Context,
    plan_id: Annotated[str | None, typer.Argument(help="Id of a plan on the server.")] = None,
    offer: Annotated[
        str | None,
        typer.Option(help="Reserve this offer, by its id in `broker offers --ids`."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="Nodes of the offer.")] = 1,
    start: Annotated[str | None, typer.Option(help=f"{TIME_HELP}; without it: now.")] = None,
    end: Annotated[str | None, typer.Option(help=f"{TIME_HELP}; without it: until released.")] = None,
    workload: Annotated[str | None, typer.Option(help="What it is for, in spend and reservations.")] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Extend the times to the shortest window on sale that covers them.")
    ] = False,
    max_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Buy nothing above this price of a node-hour.")
    ] = None,
    disk_gb: Annotated[
        float | None, typer.Option(min=1, help="Disk of a node, where it is chosen; else the default.")
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(min=1, help="Memory of a node, where it is chosen; else the default.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for providers.")] = 120.0,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat an order whose answer was lost, without buying twice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reserve all of a plan on the running server, or nothing of it; or nodes of one offer.

    Exit codes: 3 the key may not, 4 no such plan or offer, 5 prices or stock changed, 7 approval or budget
    needed, 8 a provider failed, 9 the reservation is not done yet.

    Example: BROKER_KEY=… broker reserve plan-01jd…

    Example: broker reserve --offer OFFER_ID --nodes 2 --end 2026-12-02
    """
    require_companions(context, ANSWERS)
    if plan_id is None and offer is None:
        problem = FieldProblem("PLAN_ID", "nothing", "the id of a plan, or --offer with the id of an offer")
        raise InputError("command line", (problem,))
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    begin, until, most = read_time("--start", start), read_time("--end", end), _price(max_price)
    with connect(load_settings()) as client:
        try:
            if offer is None:
                rows = client.reserve_plan(str(plan_id), key)
            else:
                row = client.reserve_offer(
                    offer,
                    nodes,
                    start=begin,
                    end=until,
                    workload=workload,
                    fit=Fit.OUTWARD if fit else Fit.EXACT,
                    max_price_usd_per_node_hour=most,
                    disk_gb=disk_gb,
                    memory_gb=memory_gb,
                    idempotency_key=key,
                )
                rows = [row]
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


def _price(text: str | None) -> Decimal | None:
    try:
        price = None if text is None else Decimal(text.removeprefix("$"))
    except InvalidOperation:
        price = ZERO
    if price is None or (price.is_finite() and price > 0):
        return price
    raise InputError(
        "options", (FieldProblem("--max-price", repr(text), "USD per node-hour, such as 24.50"),)
    )
