"""A comparison of plans as text for a terminal of at least 80 columns."""

from __future__ import annotations

from decimal import Decimal

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from api.cli.tables import print_section
from api.figures import usd
from api.schemas.plans.comparison import ComparedPlan, ComparisonDocument
from api.sections import Row, Section

WIDEST = 110


def print_comparison(console: Console, found: ComparisonDocument) -> None:
    """One row for each plan, then what moves in each."""
    console.width = min(console.width, WIDEST)
    print_section(_section(found), console)
    if found.prices_note:
        console.print(f"\n{found.prices_note}")
    if found.search_error_usd:
        console.print(
            f"\nA difference below {usd(found.search_error_usd)} may come from the search, which was ended "
            "while one of the plans could still be so much cheaper.",
            style="dim",
        )
    for plan in found.plans:
        console.print(Text.assemble("\n", (plan.name, "bold"), "  ", (plan.plan_id, "dim")))
        for line in _lines(plan):
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _section(found: ComparisonDocument) -> Section:
    columns = ("plan", ">cost", ">difference", "=last end (UTC)", ">GPUs", ">left out")
    return Section(columns, [_row(plan, found.base) for plan in (found.base, *found.plans)])


def _row(plan: ComparedPlan, base: ComparedPlan) -> Row:
    is_made = plan.cost_usd is not None
    left_out = sum(not outcome.placed for outcome in plan.workloads)
    return (
        plan.name,
        plan.cost_usd if is_made else str(plan.status),
        "" if plan is base else signed(plan.difference_usd),
        plan.finishes_at,
        f"{sum(outcome.gpus for outcome in plan.workloads):,}" if is_made else None,
        str(left_out or "-") if is_made else None,
    )


def signed(difference_usd: Decimal | None) -> str:
    """A difference with its sign."""
    if difference_usd is None:
        return "-"
    return ("+" if difference_usd > 0 else "") + usd(difference_usd)


def _lines(plan: ComparedPlan) -> list[str]:
    if plan.problem is not None:
        return [plan.problem]
    if plan.cost_usd is None:
        return [f"it is {plan.status}"]
    lines = [f"{move.workload}: {move.says}" for move in plan.moves]
    if plan.prices is not None:
        whose = "all prices" if plan.prices.provider is None else f"prices of {plan.prices.provider}"
        lines.insert(0, f"it assumes {whose} × {plan.prices.factor}: it can be compared, not bought")
    return lines or ["nothing differs"]
