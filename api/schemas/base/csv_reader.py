"""CSV text → rows by column, each with its line number. Every reader checks the form of a table here."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

from api.schemas.base.yaml_reader import refuse

MAX_COLUMNS = 200
"""A short row is filled up to the header, so with many columns a small file would take much memory."""
LONGEST_NAME_SHOWN = 60

Row = dict[Any, Any]
"""Cells by column; a list of the cells beyond the header is under None."""


def read_table(
    text: str, source: str, *, fill: str | None = None
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The header of a table, and its rows, each with its last line. ``fill`` stands for missing cells.

    Raises InputError with the line, at once or while rows are read, for malformed CSV, a repeated column and
    more than MAX_COLUMNS columns.
    """
    reader = csv.DictReader(io.StringIO(text), restval=fill)
    try:
        columns = list(reader.fieldnames or ())
    except csv.Error as error:
        refuse(source, f"malformed CSV ({error})", "comma-separated rows", (1, 1))
    if len(columns) > MAX_COLUMNS:
        refuse(source, f"{len(columns):,} columns", f"at most {MAX_COLUMNS}", (1, 1))
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        refuse(source, f"a second column {twice[0][:LONGEST_NAME_SHOWN]!r}", "each column once", (1, 1))
    return columns, _rows(reader, source)


def _rows(reader: csv.DictReader[str], source: str) -> Iterator[tuple[int, Row]]:
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        refuse(source, f"malformed CSV ({error})", "comma-separated rows", (reader.reader.line_num, 1))
