"""What a user's own measurements say, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.accuracy.accuracy_tables import short_metric, short_regime
from api.cli.plain_table import PlainTable, text_lines
from api.figures import percent
from optimizer.calibration.evaluation.hybrid import HybridLine
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


def print_hybrid(console: Console, lines: Sequence[HybridLine]) -> None:
    """Prints, by regime, held-out medians of predictions that use measured rows nearby."""
    if not lines:
        return
    console.print("\nWith measured rows nearby", style="bold")
    console.print("rows of other configurations; of other (model, GPU) pairs; of the same source alone.")
    console.print("in 80 %: rows inside the shrunk interval; width: what is left of the interval.")
    rows = tuple(_hybrid_row(line) for line in lines)
    headers = ("regime", "metric", "rows", "model", "config", "pair", "own", "in 80 %", "width")
    for text in text_lines(PlainTable(headers, rows, 2), console.width):
        console.print(text, markup=False, highlight=False)


def _hybrid_row(line: HybridLine) -> tuple[str, ...]:
    errors = (line.model_percent, line.group_percent, line.pair_percent, line.own_percent)
    shares = (f"{100 * share:.0f}" for share in (line.coverage, line.narrower))
    names = short_regime(line.regime), short_metric(line.metric)
    return *names, str(line.rows), *(f"{error:.1f}" for error in errors), *shares


def _reach_text(reach: Reach) -> str:
    """How much of a row's correction carries over to a neighbour that differs in one property."""
    steps = ", ".join(
        f"{name} {percent(left)}" for name, left in sorted(reach.left.items(), key=lambda pair: pair[1])
    )
    return f"{reach.block.replace('_', ' ')}: left of a shift where one thing differs or doubles: {steps}"
