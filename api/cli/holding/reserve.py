"""``broker reserve``: reserves the capacity that a plan placed, or nodes of one offer."""

from __future__ import annotations

import uuid
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.holding.answers import ask, require_answer, tell
from api.cli.holding.reservation_view import (
    UNSETTLED,
    exit_code_of_rows,
    left_out_words,
    print_reservations,
    wait_until,
)
from api.cli.output import Json, print_json, say, stdout
from api.cli.times import TIME_HELP, read_time
from api.client import ServerTimedOut, connect
from api.figures import day_and_time, plural
from api.promise_words import at_start_words, hold_now_words, many_words, order_promise_words
from api.release_words import estimate_words
from api.schemas.holding.reservation import Fit, OrderQuoteForm, PlanQuoteForm, ReservationForm
from broker.domain.basics.errors import ApprovalRequired, FieldProblem, InputError
from broker.domain.basics.money import ZERO, price_words, to_cents, usd_words
from broker.domain.holding.capacity_promise import CapacityPromise
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.reservation import OPEN_STATES

app = typer.Typer(add_completion=False)


OF_PLAN = frozenset({"hold"})
OF_OFFER = frozenset(
    {"offer", "nodes", "start", "end", "workload", "fit", "max_price", "disk_gb", "memory_gb"}
)
EVER = frozenset({"timeout", "idempotency_key", "yes"})
ANSWERS = {"": EVER, "plan_id": EVER | OF_PLAN, "offer": EVER | OF_OFFER}


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
        str | None,
        typer.Option(
            metavar="USD",
            help="Buy nothing above this price of a node-hour; without it: its price and the tolerance.",
        ),
    ] = None,
    hold: Annotated[
        Hold,
        typer.Option(
            help="When capacity by the hour that starts later is ordered; now: charged from now on."
        ),
    ] = Hold.AT_START,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Order without asking.")] = False,
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

    It says first what the order costs, and whether the seller is real or the sandbox's, and asks in a
    terminal. Where nobody can be asked, an order of one offer needs --yes; a plan does not, as it was
    priced before. One that repeats another (--idempotency-key) neither says nor asks.

    Exit codes: 2 --yes is missing, 3 the key may not, 4 no such plan or offer, 5 prices or stock changed, 7
    approval or budget needed, 8 a provider failed, 9 the reservation is not done yet.

    Example: BROKER_KEY=… broker reserve plan-01jd…

    Example: broker reserve plan-01jd… --hold now

    Example: broker reserve --offer OFFER_ID --nodes 2 --end 2026-12-02 --yes
    """
    require_companions(context, ANSWERS)
    if plan_id is None and offer is None:
        problem = FieldProblem("PLAN_ID", "nothing", "the id of a plan, or --offer with the id of an offer")
        raise InputError("command line", (problem,))
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    order: dict[str, Any] = {
        "start": read_time("--start", start),
        "end": read_time("--end", end),
        "fit": Fit.OUTWARD if fit else Fit.EXACT,
        "max_price_usd_per_node_hour": _price(max_price),
        "disk_gb": disk_gb,
        "memory_gb": memory_gb,
    }
    quote: OrderQuoteForm | None = None
    with connect(load_settings()) as client:
        try:
            if offer is None:
                if idempotency_key is None:
                    told = client.quote_plan(str(plan_id))
                    tell(_plan_words(told, hold), told.market)
                    ask(needed=not yes)
                rows = client.reserve_plan(str(plan_id), key, hold)
            else:
                if idempotency_key is None:
                    quote = client.quote_offer(offer, nodes, **order)
                    tell(_cost_words(quote), quote.market)
                    require_answer(yes=yes)
                    ask(needed=not yes)
                rows = [client.reserve_offer(offer, nodes, **order, workload=workload, idempotency_key=key)]
        except ApprovalRequired as error:
            way = f"broker approvals --approve {plan_id}"
            raise ApprovalRequired(f"{error}; finance decides with `{way}`") from error
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again with --idempotency-key {key}") from error
        later = sum(row.promise is CapacityPromise.AT_START for row in rows)
        due = f"; {later} {many_words(CapacityPromise.AT_START.words, later)}"
        ordered = plural(len(rows) - later, "reservation")
        say(f"{ordered} ordered, waiting for the providers{due if later else ''}")
        rows, in_time = wait_until(client, rows, lambda row: row.state not in UNSETTLED, timeout)
    if as_json:
        print_json({"reservations": [row.model_dump(mode="json") for row in rows]})
    else:
        print_reservations(stdout(), rows)
        for words in dict.fromkeys(left_out_words(row) for row in rows if row.ssh_keys_left_out):
            say(f"warning: {words}")
        if quote is not None and rows[0].state in OPEN_STATES:
            stdout().print(_ordered_words(quote, rows[0]))
    raise typer.Exit(exit_code_of_rows(rows, in_time))


def _plan_words(quote: PlanQuoteForm, hold: Hold) -> str:
    at_once = f", {usd_words(quote.at_once_usd)} of it paid at once" if quote.at_once_usd else ""
    early = quote.hold_usd if hold is Hold.NOW else None
    placed = (
        f"{one.workload} at {one.offer_id}: "
        f"{'bought now' if early and one.hold_usd is not None else order_promise_words(one)}."
        for one in quote.placements
    )
    if early is None:
        cost = f"{usd_words(quote.cost_usd)}{at_once}. {_back(quote)}"
    else:
        cost = f"{usd_words(quote.cost_usd + early)} held now, {usd_words(quote.cost_usd)} without."
    lines = [f"Plan {quote.plan_id}: {cost}", *placed]
    first = min((one.first_later for one in quote.placements if one.first_later is not None), default=None)
    if first is not None and hold is Hold.AT_START:
        lines.append(f"Ordered at its start: {at_start_words(first, lambda at: f'{day_and_time(at)} UTC')}")
    if quote.hold_usd is not None:
        way = "Held now" if hold is Hold.NOW else "With --hold now"
        lines.append(f"{way}: {hold_now_words(quote.hold_usd)}")
    elif hold is Hold.NOW:
        lines.append("Nothing of it can be held before its start, or needs to be.")
    return "\n".join(lines)


def _cost_words(quote: OrderQuoteForm) -> str:
    what = f"{plural(quote.nodes, 'node')} of {quote.offer_id}"
    hourly = f"{price_words(quote.price_usd_per_node_hour)} per node-hour"
    limit = quote.limit_usd_per_node_hour
    most = "" if limit is None else f", at most {price_words(limit)} per node-hour"
    if quote.cost_usd is None or quote.end is None:
        return (
            f"{what}: {usd_words(quote.usd_per_hour)} an hour until released ({hourly}{most}). {_back(quote)}"
        )
    if most and quote.most_usd is not None:
        most = f"{most} or {usd_words(quote.most_usd)} in all"
    at_once = ", paid at once" if quote.at_once_usd else ""
    span = f"{day_and_time(quote.start)} to {day_and_time(quote.end)} UTC"
    return f"{what}: {usd_words(quote.cost_usd)}{at_once}, {span} ({hourly}{most}). {_back(quote)}"


def _back(quote: OrderQuoteForm | PlanQuoteForm) -> str:
    return f"Released right after the order: {estimate_words(quote.on_release)}"


def _ordered_words(quote: OrderQuoteForm, row: ReservationForm) -> str:
    """What was ordered costs, at the price that is billed."""
    rate = row.price_usd_per_node_hour or quote.price_usd_per_node_hour
    hourly = f"{usd_words(rate * row.nodes)} an hour"
    if quote.cost_usd is None or row.end is None:
        return f"It costs {hourly} until it is released."
    cost = to_cents(quote.cost_usd * rate / quote.price_usd_per_node_hour)
    return f"It costs {usd_words(cost)} until {day_and_time(row.end)} UTC, {hourly}."


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
