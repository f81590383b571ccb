"""Spend as CSV, written row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal

from api.schemas.base.times import format_time
from api.schemas.finance.spend import no_formula
from broker.domain.focus.columns import Cell, FocusRow, FocusVersion, focus_columns

CHUNK_ROWS = 500


def cell_text(value: Cell) -> str:
    """A value as a CSV cell: empty for null, decimals with a point (readers take ``8`` for an integer)."""
    if value is None:
        return ""
    if isinstance(value, Decimal):
        text = format(value, "f")
        if "." not in text:
            return f"{text}.0"
        return text.rstrip("0") + ("0" if text.rstrip("0").endswith(".") else "")
    if isinstance(value, datetime):
        return format_time(value)
    return no_formula(value)


def focus_csv(rows: AsyncIterator[FocusRow], version: FocusVersion) -> AsyncIterator[bytes]:
    """A FOCUS data set of ``version``."""
    return csv_chunks(rows, focus_columns(version))


async def csv_chunks(rows: AsyncIterator[FocusRow], columns: Sequence[str]) -> AsyncIterator[bytes]:
    """The header and then ``rows`` in UTF-8, some hundred rows per chunk."""
    chunk: list[Sequence[str]] = [columns]
    async for row in rows:
        chunk.append([cell_text(row.get(column)) for column in columns])
        if len(chunk) >= CHUNK_ROWS:
            yield _encoded(chunk)
            chunk = []
    if chunk:
        yield _encoded(chunk)


def _encoded(chunk: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(chunk)
    return text.getvalue().encode()
