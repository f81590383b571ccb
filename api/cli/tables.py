"""Sections in a terminal of at least 80 columns."""

from __future__ import annotations

from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.output import stdout
from api.sections import Cell, Section, Value, lines_of

STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "": ""}


def print_section(section: Section, console: Console | None = None) -> None:
    """Prints a table, or what is said where it has no rows."""
    console = console or stdout()
    if section.rows or not section.empty:
        console.print(table_of(section))
    else:
        console.print(section.empty, soft_wrap=True)


def table_of(section: Section) -> Table:
    """A section as a table without a frame."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=section.title or None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        pad_edge=False,
        show_edge=False,
        show_footer=bool(section.sums),
    )
    for heading, total in zip_longest(section.columns, section.sums, fillvalue=""):
        is_whole = heading.startswith((">", "="))
        table.add_column(
            heading.lstrip(">="),
            _text(total),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=is_whole,
            overflow="ellipsis" if is_whole else "fold",
        )
    for row in section.rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Value | Cell) -> Text:
    first, *more = lines_of(cell)
    tone = cell.tone if isinstance(cell, Cell) else ""
    return Text.assemble((first, STYLES[tone]), *((f"\n{line}", "dim") for line in more))
