"""``broker plan``: plans on the server that BROKER_URL names, or on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from api.cli.companions import is_given, require_companions
from api.cli.configuration import load_settings
from api.cli.errors import ExitCode
from api.cli.market_source import named_server
from api.cli.output import Json, read_text, require_writable, say
from api.cli.plans.asked import MOST_NAMES, MarketFile, WorkloadsFile, read_asked
from api.cli.plans.plan_view import misses_something, show_plan
from api.cli.plans.plans import ask_for_plan, made_unless_stopped, show_made
from api.cli.plans.progress import ProgressLine
from api.client import BrokerClient
from api.client.calls import PLAN_TIMEOUT_S
from api.figures import plural
from api.planning.planning_call import build_planner
from api.schemas.plans.plan import PLAN
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Serving
from broker.domain.planning.workload_document import to_document
from broker.ports.planning import LimitClock, PlanOptions
from providers.registry import PRICE_LISTS

app = typer.Typer(add_completion=False)

MOST_PRICED_UNASKED = 4
LEAST_LEFT = 0.25
"""Share of the limit that must be left for prices of confidence that nobody asked for."""
ON_A_SERVER = {
    "": frozenset({"workloads", "time_limit", "output", "confidence_prices"}),
    "market": frozenset({"gap", "seed"}),
}
"""Options beside a server; the others need a market file, with which this machine plans."""


@app.command()
def plan(
    context: typer.Context,
    workloads: WorkloadsFile,
    market: MarketFile = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds to search at most.")] = 30.0,
    gap: Annotated[float, typer.Option(min=0, max=1, help="Stop this close to the proven bound.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the search.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    confidence_prices: Annotated[
        bool | None,
        typer.Option(
            "--confidence-prices/--no-confidence-prices",
            help="Tell what other confidences cost, in as much time again at most; default: up to "
            f"{MOST_PRICED_UNASKED} workloads, in what is left of the time limit.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan workloads over a market: where, when, how many, at what cost, and why.

    With BROKER_URL the server plans over its offers, as `broker plans --new` does, and the plan can be
    reserved. With --market, or without a server, this machine plans, and no server knows the plan. Exit code
    6 when some workload cannot be placed; the plan of the others is still printed.

    Example: broker plan fixtures/examples/quickstart.yaml --market market.json --output plan.json
    """
    if output is not None:
        require_writable(output)
    server = named_server() if market is None else None
    if server is not None:
        _plan_on(server, context, workloads, output, as_json=as_json)
        return
    asked = read_asked(workloads, market)
    request, found = asked.request, asked.market
    with ProgressLine() as progress:
        progress.say(
            f"planning {plural(len(request.workloads), 'workload')} over {len(found.offers):,} offers"
        )
        options = PlanOptions(
            time_limit, gap, seed, limit_clock=LimitClock.CPU, workers=load_settings().plan_workers
        )
        planner = build_planner()
        answer = planner.plan(request, found.offers, found.as_of, options, progress)
        limit_s = _pricing_limit_s(answer, len(request.workloads), time_limit, confidence_prices)
        if answer.placements and limit_s:
            progress.say("planning at other confidences, for what they cost")
            limits = replace(options, time_limit_s=limit_s)
            prices = planner.price_confidence(answer, request, found.offers, found.as_of, limits)
            answer = replace(answer, confidence_prices=prices)
    document = {**PLAN.write(answer), "workloads": to_document(request)}
    show_plan(answer, document, output, request, as_json=as_json)
    warn_of_price_lists(answer)
    tell_of_lanes(request)
    if misses_something(answer):
        raise typer.Exit(ExitCode.UNPLACED)


def _pricing_limit_s(plan: Plan, workloads: int, time_limit_s: float, wish: bool | None) -> float:
    """Seconds in which a plan's price of confidence is searched: one more limit if that is wished, else what
    the search of a small document left of its own; 0: not at all.
    """
    if wish is not None:
        return time_limit_s if wish else 0.0
    left_s = time_limit_s - plan.solve_seconds
    enough = workloads <= MOST_PRICED_UNASKED and left_s >= LEAST_LEFT * time_limit_s
    return left_s if enough else 0.0


def _plan_on(
    server: BrokerClient, context: typer.Context, workloads: Path, output: Path | None, *, as_json: bool
) -> None:
    """Has the server plan, and shows what it answers. Raises InputError for options of this machine's
    planner."""
    require_companions(context, ON_A_SERVER)
    limit_s = context.params["time_limit"] if is_given(context, "time_limit") else None
    with server:
        plan_id = ask_for_plan(server, read_text(workloads), limit_s)
        found = made_unless_stopped(server, plan_id, PLAN_TIMEOUT_S)
        if context.params["confidence_prices"]:
            server.find_confidence_prices(plan_id)  # it keeps them with the plan
            found = made_unless_stopped(server, plan_id, PLAN_TIMEOUT_S)
    show_made(found, output, as_json=as_json)


def tell_of_lanes(request: PlanRequest) -> None:
    """Suggests ``broker divide`` on stderr when requests of several sizes share a fleet."""
    mixed = [w.name for w in request.workloads if isinstance(w, Serving) and len(w.traffic.mix) > 1]
    if mixed:
        names = ", ".join(mixed[:MOST_NAMES])
        told = (
            f"requests of several sizes share the fleets of {names}; `broker divide` tells whether lanes pay"
        )
        say(told)


def warn_of_price_lists(plan: Plan) -> None:
    """Warns on stderr when a plan uses offers of price lists, which cannot be ordered."""
    for provider in sorted(PRICE_LISTS & {placement.provider for placement in plan.placements}):
        placed = sorted({one.workload for one in plan.placements if one.provider == provider})
        told = f"warning: {provider} is a price list, nothing can be ordered there: {', '.join(placed)}"
        way_out = f"`broker offers --json --orderable`, or policy: {{providers: {{exclude: [{provider}]}}}}"
        say(f"{told} ({way_out})")
