"""``broker budgets``: the limits of teams, and how much of them is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.output import Json, print_items
from api.cli.tables import print_section
from api.client import connect
from api.figures import day, percent
from api.plan_words import team_words
from api.schemas.finance.finance import BudgetForm, LaterPeriodForm
from api.sections import Cell, Row, Section
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import USD_FORMS, format_usd, read_usd
from broker.domain.spend.budgets import DEFAULT_THRESHOLDS, BudgetPeriod

app = typer.Typer(add_completion=False)

ANSWERS = {
    "": frozenset({"month"}),
    "team": frozenset({"limit", "period", "threshold", "since", "until", "confidence"}),
    "remove": frozenset({"period"}),
}


@app.command()
def budgets(
    context: typer.Context,
    team: Annotated[
        str | None, typer.Option("--set", metavar="TEAM", help="Set this team's budget (* is everybody).")
    ] = None,
    limit: Annotated[str | None, typer.Option("--usd", help="The limit of a period: 5000, '$5,000'.")] = None,
    period: Annotated[BudgetPeriod, typer.Option(help="When it begins anew.")] = BudgetPeriod.MONTH,
    threshold: Annotated[
        list[int] | None, typer.Option(help="Percent at which webhooks are told; again for more.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="Start of a horizon budget.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="End of a horizon budget.")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Chance, 0.5 to 0.99, with which it holds; default: what is held.")
    ] = None,
    remove: Annotated[str | None, typer.Option(metavar="TEAM", help="End this team's budget.")] = None,
    month: Annotated[
        str | None, typer.Option(metavar="MONTH", help="Show the periods of this month: 2026-10.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show budgets with what is spent, reserved and planned, and the day each runs out; set one.

    Example: BROKER_KEY=… broker budgets --set research --usd 40000 --period month
    """
    require_companions(context, ANSWERS)
    with connect(load_settings()) as client:
        if remove is not None:
            client.delete_budget(remove, period)
        if team is not None:
            body: dict[str, object] = {
                "limit_usd": _amount(limit),
                "thresholds": threshold or list(DEFAULT_THRESHOLDS),
                "from": since,
                "to": until,
                "confidence": confidence,
            }
            client.put_budget(team, period, body)
        found = client.list_budgets(month)
    if as_json:
        print_items(one.model_dump(mode="json", by_alias=True) for one in found)
    else:
        print_section(budgets_section(found))


def _amount(text: str | None) -> str:
    amount = read_usd(text or "")
    if amount is None:
        raise InputError("command line", (FieldProblem("--usd", repr(text or ""), USD_FORMS),))
    return format_usd(amount)


def budgets_section(found: Sequence[BudgetForm]) -> Section:
    """One row for each budget, and one for each later period that is expected to exceed it."""
    rows: list[Row] = []
    for one in found:
        rows.append((*_cells(one, one), "-" if one.runs_out_on is None else day(one.runs_out_on)))
        rows += [(*_cells(one, later), "expected") for later in one.later if later.left_usd < 0]
    columns = (
        "team,\nperiod",
        ">limit,\nexpected",
        ">spent,\nreserved,\nplanned",
        ">left,\nof limit",
        ">runs out",
    )
    return Section(columns, rows, empty="no budgets")


def _sure(budget: BudgetForm) -> tuple[str, ...]:
    return () if budget.confidence is None else (f"with {percent(budget.confidence)}",)


def _cells(budget: BudgetForm, shown: BudgetForm | LaterPeriodForm) -> Row:
    return (
        Cell(team_words(budget.team), (f"{budget.period} from {shown.start:%Y-%m-%d}", *_sure(budget))),
        Cell(budget.limit_usd, (shown.expected_usd,)),
        Cell(shown.owed_usd, (shown.reserved_usd, shown.planned_usd)),
        Cell(shown.left_usd, (percent(shown.expected_share),)),
    )
