"""``broker simulate``: what may happen to a plan, over draws of what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_json, read_text, stdout
from api.cli.plans.asked import (
    PlannedMarket,
    PlannedWorkloads,
    PlanOrId,
    is_of_server,
    read_asked,
    require_files,
)
from api.cli.tables import print_section
from api.client import connect
from api.figures import usd
from api.plan_words import share_words
from api.planning.planning_call import build_planner
from api.schemas.plans.plan import read_plan
from api.schemas.plans.simulation import MOST_DRAWS, SIMULATION
from api.sections import Section
from broker.domain.planning.simulation import DRAWS, SEED, Simulation

app = typer.Typer(add_completion=False)


@app.command()
def simulate(
    plan: PlanOrId,
    market: PlannedMarket = None,
    workloads: PlannedWorkloads = None,
    draws: Annotated[int, typer.Option(min=1, max=MOST_DRAWS, help="How often it is drawn.")] = DRAWS,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the draws.")] = SEED,
    as_json: Json = False,
) -> None:
    """Draw step times, rates, failures and launches through a plan, and say how it ends.

    Runs are held on until they are done, and fleets follow their measured rates after a day. The chance of a
    run is to be done in time on what the plan holds. Equal seeds give equal answers.

    Example: broker simulate plan.json --market market.json --workloads workloads.yaml

    Example: broker simulate plan-01jd…
    """
    if is_of_server(plan):
        with connect(load_settings()) as client:
            found = client.simulate_plan(plan, draws=draws, seed=seed)
    else:
        files = require_files("broker simulate", market, workloads)
        found = _of_document(Path(plan), *files, draws, seed)
    if as_json:
        print_json(SIMULATION.write(found))
    else:
        _show(found)


def _of_document(plan: Path, market: Path, workloads: Path, draws: int, seed: int) -> Simulation:
    asked = read_asked(workloads, market)
    made = read_plan(read_text(plan), str(plan))
    return build_planner().simulate(made, asked.request, asked.market.offers, draws, seed)


def _show(found: Simulation) -> None:
    rows = [(one.workload, share_words(one.chance), _late(one.late_hours_p90)) for one in found.workloads]
    columns = ("Workload", ">Chance", ">Late in one of ten")
    print_section(Section(columns, rows, empty="The plan places nothing."))
    cost = found.cost_usd
    stdout().print(
        f"\nCost over {found.draws:,} draws: {usd(cost.p50)} at the median, {usd(cost.p10)} to "
        f"{usd(cost.p90)} in eight of ten, {usd(cost.mean)} on average."
    )
    for reason in found.reasons:
        stdout().print(f"- {reason.what}: {share_words(reason.share)} of draws")


def _late(hours: float | None) -> str:
    """Hours after the deadline that nine of ten draws do not exceed; nothing for a service."""
    return "" if hours is None else f"{hours:.1f} h"
