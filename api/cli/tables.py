"""Sections in a terminal of at least 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.output import stdout
from api.sections import Cell, Section, Value, lines_of

PADDING = 3  # between two columns
STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "": ""}


def print_section(section: Section, console: Console | None = None) -> None:
    """Prints a table, or what is said where it has no rows."""
    console = console or stdout()
    if section.rows or not section.empty:
        console.print(table_of(section, console.width))
    else:
        console.print(section.empty, soft_wrap=True)


def table_of(section: Section, width: int) -> Table:
    """A section as a table without a frame, in which no word is cut as long as all columns' longest words fit
    into ``width``.
    """
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
    columns = zip_longest(section.columns, section.sums, fillvalue="")
    for (heading, total), column_width in zip(columns, _widths(section, width), strict=True):
        is_whole = heading.startswith((">", "="))
        table.add_column(
            heading.lstrip(">="),
            _text(total),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=is_whole,
            overflow="ellipsis" if is_whole else "fold",
            width=column_width,
        )
    for row in section.rows:
        table.add_row(*map(_text, row))
    return table


def _widths(section: Section, width: int) -> Sequence[int | None]:
    """The width of each column: its longest word, and a share of what is left by what its lines lack; None,
    the table's own choice, where all lines fit or not even all words do.
    """
    sizes = [_word_and_line(section, place) for place in range(len(section.columns))]
    room = width - PADDING * (len(sizes) - 1)
    left, lack = room - sum(word for word, _ in sizes), sum(line - word for word, line in sizes)
    if left < 0 or lack <= left:
        return [None] * len(sizes)
    return [word + left * (line - word) // lack for word, line in sizes]


def _word_and_line(section: Section, place: int) -> tuple[int, int]:
    """The width of the longest word and of the longest line of a column; a column that is never wrapped has
    no words.
    """
    heading = section.columns[place]
    cells: list[Value | Cell] = [
        heading.lstrip(">="),
        *(row[place] for row in section.rows if place < len(row)),
    ]
    if place < len(section.sums):
        cells.append(section.sums[place])
    lines = [line for cell in cells for line in _text(cell).plain.splitlines()]
    longest = max(map(cell_len, lines), default=0)
    if heading.startswith((">", "=")):
        return longest, longest
    return max((cell_len(word) for line in lines for word in line.split()), default=0), longest


def _text(cell: Value | Cell) -> Text:
    first, *more = lines_of(cell)
    tone = cell.tone if isinstance(cell, Cell) else ""
    return Text.assemble((first, STYLES[tone]), *((f"\n{line}", "dim") for line in more))
