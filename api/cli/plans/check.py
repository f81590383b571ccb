"""``broker check``: verifies a plan without trusting the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.errors import ExitCode
from api.cli.market_source import find_market
from api.cli.output import Json, print_json, read_text, stdout
from api.figures import plural, usd
from api.planning.planning_call import build_planner
from api.schemas.plans.plan import read_plan
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.plan import Plan

app = typer.Typer(add_completion=False)


@app.command()
def check(
    plan: Annotated[Path, typer.Argument(help="Plan document to verify.")],
    market: Annotated[Path, typer.Option(help="The market that it was made over.")],
    workloads: Annotated[Path, typer.Option(help="The workloads that it was made for.")],
    as_json: Json = False,
) -> None:
    """Verify a plan independently: every constraint, every cost, the sums, what simpler strategies cost.

    Exit code 1 when a rule is violated, with one line for each violation.

    Example: broker check plan.json --market market.json --workloads workloads.yaml
    """
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
        violations = tuple(str(problem) for problem in error.problems)
        verdict: dict[str, Any] = {"ok": False, "violations": list(violations)}
        said = ""
    else:
        planner = build_planner()
        violations = planner.check(answer, request, offers.offers)
        if not violations:
            violations = planner.check_times(answer, offers.as_of)
        verdict = {"ok": not violations, "plan_id": answer.plan_id, "violations": list(violations)}
        said = _praise(answer)
    if as_json:
        print_json(verdict)
    else:
        stdout().print("\n".join(violations) or said, soft_wrap=True)
    if violations:
        raise typer.Exit(ExitCode.UNEXPECTED)


def _is_damaged_plan(error: InputError) -> bool:
    """A plan with an impossible field is a violation; a file that is no plan is bad input."""
    return any(problem.pointer for problem in error.problems)


def _praise(answer: Plan) -> str:
    return (
        f"ok: {plural(len(answer.placements), 'placement')} and {plural(len(answer.spend), 'spend line')} "
        f"of {answer.plan_id} keep every rule; {usd(answer.cost_usd)} is the sum of both"
    )
