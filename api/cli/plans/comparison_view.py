"""A comparison of plans as text for a terminal of at least 80 columns."""

from __future__ import annotations

from decimal import Decimal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from api.cli.figures import day_and_time, usd
from api.schemas.plans.comparison import ComparedPlan, ComparisonDocument

WIDEST = 110


def print_comparison(console: Console, found: ComparisonDocument) -> None:
    """One row for each plan, then what moves in each."""
    console.width = min(console.width, WIDEST)
    console.print(_table(found))
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


def _table(found: ComparisonDocument) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("plan", overflow="fold")
    for name in ("cost", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last end (UTC)", no_wrap=True)
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("left out", justify="right", no_wrap=True)
    for plan in (found.base, *found.plans):
        is_made = plan.cost_usd is not None
        left_out = sum(not outcome.placed for outcome in plan.workloads)
        table.add_row(
            plan.name,
            usd(plan.cost_usd) if plan.cost_usd is not None else str(plan.status),
            "" if plan is found.base else signed(plan.difference_usd),
            "-" if plan.finishes_at is None else day_and_time(plan.finishes_at),
            f"{sum(outcome.gpus for outcome in plan.workloads):,}" if is_made else "-",
            str(left_out or "-") if is_made else "-",
        )
    return table


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
