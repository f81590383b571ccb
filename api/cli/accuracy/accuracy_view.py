"""The accuracy report of the performance core for a terminal (80 columns and more), and its constants."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from api.cli.accuracy.accuracy_tables import LEGEND, MISSED, OK, sections
from api.cli.plain_table import PlainTable, text_lines
from optimizer.calibration.evaluation.report import Report
from optimizer.calibration.sourced_constants import SourcedConstant

WIDEST = 120
NO_ROWS = "no measured rows"


def print_report(console: Console, report: Report) -> None:
    """Every section's figures beside their targets and its regimes; then every source."""
    found, width = sections(report), min(console.width, WIDEST)
    if not found:
        console.print(NO_ROWS)
        return
    for line in LEGEND:
        _print(console, line, "dim")
    for section in found:
        _print(console, f"\n{section.title}", "bold")
        for place, table in enumerate(section.tables):
            _print_table(console, table, width, spaced=place > 0)
        for line in (line for note in section.notes for line in wrap(note, width)):
            _print(console, line)
    for section in found:
        if section.sources.rows:
            title = f"\n{section.title} by source, predicted by constants fitted without it"
            _print(console, title, "bold")
            _print_table(console, section.sources, width, spaced=False)


def markdown_constants(constants: Sequence[SourcedConstant]) -> str:
    """One line for each constant under its group: the prior, the fitted value if the fit moved it, and the
    source."""
    lines = []
    for group, members in groupby(constants, key=lambda constant: constant.group):
        lines += [f"## {group}", ""]
        lines += [f"- `{one.name}` {one.value_words}: {one.source}" for one in members]
        lines += [""]
    return "\n".join(lines)


def _print_table(console: Console, table: PlainTable, width: int, spaced: bool) -> None:
    if spaced:
        console.print()
    head, *rest = text_lines(table, width)
    _print(console, head, "dim")
    for line in rest:
        _print(console, line)


def _print(console: Console, line: str, style: str = "") -> None:
    text = Text(line, style=style, no_wrap=True, overflow="ellipsis")
    text.highlight_regex(rf"{MISSED}|missed$", "red")
    text.highlight_regex(rf"{OK}|ok$", "green")
    console.print(text, soft_wrap=True)
