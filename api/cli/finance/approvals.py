"""``broker approvals``: plans before finance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.output import Json, print_items
from api.cli.tables import print_section
from api.client import connect
from api.figures import day_and_time, plural, usd
from api.plan_words import overruns_or_all, who_words
from api.schemas.finance.finance import ApprovalForm
from api.sections import Cell, Section, section_of
from broker.domain.spend.approvals import ApprovalState, Verdict

app = typer.Typer(add_completion=False)

SHOWN_PURCHASES = 3
ANSWERS = {
    "": frozenset({"state"}),
    "approve": frozenset({"comment", "state"}),
    "reject": frozenset({"comment", "state"}),
}


@app.command()
def approvals(
    context: typer.Context,
    approve: Annotated[str | None, typer.Option(metavar="PLAN_ID", help="Say yes to this plan.")] = None,
    reject: Annotated[str | None, typer.Option(metavar="PLAN_ID", help="Say no to this plan.")] = None,
    comment: Annotated[str, typer.Option(help="Why; kept in the audit trail.")] = "",
    state: Annotated[ApprovalState | None, typer.Option(help="Only those that stand so.")] = None,
    as_json: Json = False,
) -> None:
    """Show plans that wait for approval or have been decided, at current prices; approve or reject one.

    Example: BROKER_KEY=… broker approvals --approve plan-… --comment "within Q4"
    """
    require_companions(context, ANSWERS)
    with connect(load_settings()) as client:
        for plan_id, verdict in ((approve, Verdict.APPROVED), (reject, Verdict.REJECTED)):
            if plan_id is not None:
                client.decide(plan_id, verdict, comment)
        found = list(client.list_approvals(state))
    if as_json:
        print_items(one.model_dump(mode="json", by_alias=True) for one in found)
    else:
        print_section(approvals_section(found))


def approvals_section(found: Sequence[ApprovalForm]) -> Section:
    """One row for each plan with what it buys and why it waits."""
    return section_of(
        found,
        {
            "plan, team, last word": lambda one: Cell(
                one.plan_id, (one.team, _last_word(one), *_purchases(one), *_circumstances(one))
            ),
            "=state": lambda one: str(one.state) if one.is_current else "replaced",
            ">cost,\nnow": lambda one: Cell(one.figures.cost_usd, (one.figures.cost_now_usd,)),
            ">P90,\nbudget left": lambda one: Cell(
                one.figures.projected_p90_usd, (one.figures.budget_left_usd,)
            ),
        },
        empty="nothing waits for approval, and nothing was decided",
    )


def _purchases(one: ApprovalForm) -> list[str]:
    lines = [
        f"{buy.workload}: {buy.gpus} × {buy.gpu} at {buy.provider} ({buy.tier}), "
        f"{buy.gpu_hours:,.0f} GPU-hours, {usd(buy.usd)}"
        for buy in one.purchases[:SHOWN_PURCHASES]
    ]
    rest = one.purchases[SHOWN_PURCHASES:]
    return [*lines, *([f"and {plural(len(rest), 'more purchase')}"] if rest else [])]


def _circumstances(one: ApprovalForm) -> list[str]:
    """What it does to budgets and to other plans; of a replaced plan, that there is nothing to decide."""
    if not one.is_current:
        by = f"replaced by plan {one.replaced_by}" if one.replaced_by else "it does not stand any more"
        return [f"{by}; nothing to decide"]
    waits = one.state is ApprovalState.WAITING
    lines = [effect.says for effect in overruns_or_all(one.effects)] if waits else []
    if one.beside is not None:
        lines.append(
            f"plan {one.beside} holds capacity for the same workloads; this one buys it a second time"
        )
    if one.replaces is not None:
        lines.append(f"it would replace plan {one.replaces}")
    return lines


def _last_word(one: ApprovalForm) -> str:
    if not one.decisions:
        return f"asked by {who_words(one.requested_by, one.requested_by_name)}"
    said = one.decisions[-1]
    why = f": {said.comment}" if said.comment else ""
    return f"{said.verdict} by {who_words(said.by, said.by_name)}, {day_and_time(said.at)}{why}"
