"""What a user's own measurements say, as text."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from api.figures import percent
from optimizer.calibration.own.rows import OwnReport, Reach


def print_own_report(console: Console, report: OwnReport) -> None:
    """Prints the errors before and after calibration, how far the rows reach, and the rows that were not
    used."""
    console.print("Median error of the model, and of each row predicted from your others", style="bold")
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("metric")
    for name in ("rows", "model", "with your rows nearby"):
        table.add_column(name, justify="right")
    for line in report.lines:
        table.add_row(
            line.metric, str(line.rows), f"{line.before_percent:.1f} %", f"{line.after_percent:.1f} %"
        )
    console.print(table)
    for reach in report.reach:
        console.print(_reach_text(reach), markup=False)
    for name, why in report.unused.items():
        console.print(f"{name}: kept, but shifts nothing: {why}", markup=False)


def _reach_text(reach: Reach) -> str:
    """How much of a row's correction carries over to a neighbour that differs in one property."""
    steps = ", ".join(
        f"{name} {percent(left)}" for name, left in sorted(reach.left.items(), key=lambda pair: pair[1])
    )
    return f"{reach.block.replace('_', ' ')}: left of a shift where one thing differs or doubles: {steps}"
