"""``broker check``: verifies a plan without trusting the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from api.cli.configuration import load_settings
from api.cli.errors import ExitCode
from api.cli.market_source import find_market
from api.cli.output import Json, print_json, read_text, stdout
from api.cli.plans.asked import PlannedMarket, PlannedWorkloads, PlanOrId, is_of_server, require_files
from api.client import connect
from api.figures import day_and_time, plural, usd
from api.planning.planning_call import build_planner
from api.schemas.plans.plan import read_plan
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.plan import Plan

app = typer.Typer(add_completion=False)


@app.command()
def check(
    plan: PlanOrId,
    market: PlannedMarket = None,
    workloads: PlannedWorkloads = None,
    as_json: Json = False,
) -> None:
    """Verify a plan independently: every constraint, every cost, the sums, what simpler strategies cost.

    A plan of the server is verified at the prices and with the stock that it knew when it made the plan. Exit
    code 1 when a rule is violated, with one line for each violation.

    Example: broker check plan.json --market market.json --workloads workloads.yaml

    Example: broker check plan-01jd…
    """
    if is_of_server(plan):
        verdict, said = _of_server(plan)
    else:
        verdict, said = _of_document(Path(plan), *require_files("broker check", market, workloads))
    violations = verdict["violations"]
    if as_json:
        print_json(verdict)
    else:
        stdout().print("\n".join(violations) or said, soft_wrap=True)
    if violations:
        raise typer.Exit(ExitCode.UNEXPECTED)


def _of_server(plan_id: str) -> tuple[dict[str, Any], str]:
    """The verdict on a plan of the server, and the sentence about a valid one."""
    with connect(load_settings()) as client:
        found = client.check_plan(plan_id)
        made = client.wait_for_plan(plan_id).plan
    verdict = {"ok": found.ok, "plan_id": plan_id, "violations": found.violations}
    return verdict, f"{_praise(made)}, at the prices of {day_and_time(found.prices_at)} UTC"


def _of_document(plan: Path, market: Path, workloads: Path) -> tuple[dict[str, Any], str]:
    """The verdict on a plan document, and the sentence about a valid one."""
    offers = find_market(market)
    request = read_workloads(
        read_text(workloads), source=str(workloads), base=workloads.parent, now=offers.as_of
    )
    text = read_text(plan)
    try:
        answer = read_plan(text, str(plan))
    except InputError as error:
        if not _is_damaged_plan(error):
            raise
        return {"ok": False, "violations": [str(problem) for problem in error.problems]}, ""
    planner = build_planner()
    violations = planner.check(answer, request, offers.offers)
    if not violations:
        violations = planner.check_times(answer, offers.as_of)
    verdict = {"ok": not violations, "plan_id": answer.plan_id, "violations": list(violations)}
    return verdict, _praise(answer)


def _is_damaged_plan(error: InputError) -> bool:
    """A plan with an impossible field is a violation; a file that is no plan is bad input."""
    return any(problem.pointer for problem in error.problems)


def _praise(answer: Plan) -> str:
    return (
        f"ok: {plural(len(answer.placements), 'placement')} and {plural(len(answer.spend), 'spend line')} "
        f"of {answer.plan_id} keep every rule; {usd(answer.cost_usd)} is the sum of both"
    )
