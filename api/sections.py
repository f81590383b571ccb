"""Answers as tables for the terminal and Markdown, and cards for pages too; each has one way to draw them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from api.figures import day_and_time, usd

T = TypeVar("T")
Value = str | Decimal | datetime | None
"""A Decimal is money in USD. None: there is no value."""

TONES: Mapping[str, str] = {
    **dict.fromkeys(("done", "active", "held", "fresh", "applied", "approved"), "good"),
    **dict.fromkeys(("reserved", "running", "optimal"), "good"),
    **dict.fromkeys(("queued", "being planned", "pending", "scheduled", "releasing"), "warn"),
    **dict.fromkeys(("holding", "bought now"), "good"),
    "ordered at its start": "warn",
    **dict.fromkeys(("proposed", "a proposal", "stale", "waiting", "waits for approval"), "warn"),
    **dict.fromkeys(("accepted", "moving", "partly", "unfinished", "part held", "feasible"), "warn"),
    **dict.fromkeys(("infeasible", "failed", "unknown", "rejected", "refused", "impossible"), "bad"),
}


def tone(state: str) -> str:
    """Whether a state is good news, a wait, or bad news; empty for others."""
    return TONES.get(str(state), "")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with soft lines ``more`` beneath it. ``tone``: ``good``, ``warn``, ``bad``, or none."""

    value: Value
    more: Sequence[Value] = ()
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One figure with its name and a note; ``lead`` marks the one to read first."""

    label: str
    figure: str
    note: str = ""
    tone: str = ""
    lead: bool = False


Row = Sequence[Value | Cell]


@dataclass(frozen=True, slots=True)
class Section:
    """A table. A heading after ``>`` is of figures, at the right, and one after ``=`` of words; neither
    column is broken into lines. ``empty`` is said in place of a table without rows.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    sums: Row = ()
    empty: str = ""


def section_of(
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], Value | Cell]],
    *,
    title: str = "",
    sums: Row = (),
    empty: str = "",
) -> Section:
    """A row for each item: what each column says of it."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return Section(list(columns), rows, title, sums, empty)


def shown(value: Value, none: str = "-") -> str:
    """A value as text."""
    if isinstance(value, datetime):
        return day_and_time(value)
    if isinstance(value, Decimal):
        return usd(value)
    return none if value is None else value


def markdown_of(section: Section) -> str:
    """A section as Markdown, whatever its cells say."""
    rule = ["---:" if heading.startswith(">") else "---" for heading in section.columns]
    headings = [" ".join(heading.lstrip(">=").split()) for heading in section.columns]
    rows = [["<br>".join(map(escaped, lines_of(cell))) for cell in row] for row in section.rows]
    lines = [f"| {' | '.join(row)} |" for row in (headings, rule, *rows)]
    return "\n".join([*([f"**{section.title}**", ""] if section.title else []), *lines])


def escaped(text: str) -> str:
    """``text`` as text in Markdown, on one line."""
    return " ".join(re.sub(r"([\\|\[`])", r"\\\1", text).replace("<", "&lt;").split())


def lines_of(cell: Value | Cell) -> Iterator[str]:
    """The lines of a cell, its value first."""
    whole = cell if isinstance(cell, Cell) else Cell(cell)
    return map(shown, (whole.value, *whole.more))
