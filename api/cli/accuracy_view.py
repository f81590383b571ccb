"""Error tables of the performance core."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.figures import percent
from optimizer.performance.evaluate import ErrorLine, GridReport, HeldOutLine, Report


def print_report(console: Console, report: Report) -> None:
    """Held-out medians by regime, the grid, then every source."""
    if not report.lines:
        console.print("no measured rows")
        return
    console.print("Median error by what was held out", style="bold")
    console.print(_held_out_table(report.held_out))
    if report.grid is not None:
        console.print(_grid_text(report.grid), markup=False)
    console.print("\nBy source, each predicted by constants fitted without it", style="bold")
    console.print(_source_table(report.lines))


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _held_out_table(lines: Sequence[HeldOutLine]) -> Table:
    table = _table(
        ("regime", "metric"),
        ("rows", "fitted", "by source", "by model", "by GPU", "noise floor", "in interval"),
    )
    for line in lines:
        table.add_row(
            line.regime,
            line.metric,
            str(line.rows),
            f"{line.fitted_percent:.1f} %",
            f"{line.by_source_percent:.1f} %",
            f"{line.by_model_percent:.1f} %",
            f"{line.by_gpu_percent:.1f} %",
            f"{line.noise_floor_percent:.1f} %",
            percent(line.coverage),
        )
    return table


def _grid_text(grid: GridReport) -> str:
    share = percent(grid.fit_right / max(grid.fit_told, 1))
    return (
        f"Grid: {share} of {grid.fit_told} fit decisions right; rank correlation within {grid.cells} cells "
        f"of model and GPU count: median {grid.spearman_median:.2f}, least {grid.spearman_least:.2f}, "
        f"{grid.spearman_above_09} of them 0.90 or more"
    )


def _source_table(lines: Sequence[ErrorLine]) -> Table:
    table = _table(
        ("source", "regime", "metric"),
        ("rows", "median error", "mean", "90 %", "bias", "noise floor", "in interval", "unpredicted"),
    )
    for line in lines:
        table.add_row(
            line.source,
            line.regime,
            line.metric,
            str(line.rows),
            f"{line.median_percent:.1f} %",
            f"{line.mean_percent:.1f} %",
            f"{line.p90_percent:.1f} %",
            f"{line.bias:.2f}",
            f"{line.noise_floor_percent:.1f} %",
            percent(line.coverage),
            str(line.unpredicted),
        )
    return table
