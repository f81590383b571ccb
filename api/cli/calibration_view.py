"""What a user's own measurements say, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.figures import percent
from optimizer.performance.hybrid import HybridLine
from optimizer.performance.own_rows import OwnReport, Reach


def print_own_report(console: Console, report: OwnReport) -> None:
    """Errors before and after, how far the rows reach, and the rows that say nothing."""
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


def print_hybrid(console: Console, lines: Sequence[HybridLine]) -> None:
    """Held-out medians with measured rows nearby, by regime; nothing without lines."""
    if not lines:
        return
    title = "With measured rows nearby, without the row's configuration, its (model, GPU), or other sources"
    console.print(f"\n{title}", style="bold")
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in ("regime", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "model", "configuration", "pair", "own source", "in interval", "width"):
        table.add_column(name, justify="right")
    for line in lines:
        errors = (line.model_percent, line.group_percent, line.pair_percent, line.own_percent)
        cells = (f"{error:.1f} %" for error in errors)
        shares = percent(line.coverage), percent(line.narrower)
        table.add_row(line.regime, line.metric, str(line.rows), *cells, *shares)
    console.print(table)


def _reach_text(reach: Reach) -> str:
    """A row's shift is worth this much on a neighbour that differs in one thing."""
    steps = ", ".join(
        f"{name} {percent(left)}" for name, left in sorted(reach.left.items(), key=lambda pair: pair[1])
    )
    return f"{reach.block.replace('_', ' ')}: left of a shift where one thing differs or doubles: {steps}"
