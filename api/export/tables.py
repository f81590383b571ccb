"""Tables as Parquet and XLSX files, written in batches so that a large table does not fill the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xlsxwriter

from api.export.focus_csv import cell_text
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.focus.columns import Kind

BATCH_ROWS = 5_000
MOST_XLSX_ROWS = 50_000
DIGITS, FRACTION = 38, 12
_TYPES: Mapping[Kind, Any] = {
    Kind.DECIMAL: pa.decimal128(DIGITS, FRACTION),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.STRING: pa.string(),
    Kind.JSON: pa.string(),
}

Columns = Sequence[tuple[str, Kind]]
Rows = Iterable[Sequence[str]]


def write_parquet(path: Path, columns: Columns, rows: Rows) -> None:
    """Writes rows of text with ``decimal128(38, 12)`` amounts and UTC times. Raises InputError for a bad
    path.
    """
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    source = iter(rows)
    try:
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            while batch := list(islice(source, BATCH_ROWS)):
                cells = [
                    pa.array([_value(kind, row[at]) for row in batch], type=_TYPES[kind])
                    for at, (_, kind) in enumerate(columns)
                ]
                writer.write_table(pa.Table.from_arrays(cells, schema=schema))
    except OSError as error:
        raise _path_error(path, error) from None


def _value(kind: Kind, text: str) -> Decimal | datetime | str | None:
    if not text:
        return None
    if kind is Kind.DECIMAL:
        return Decimal(text)
    return datetime.fromisoformat(text) if kind is Kind.TIME else text


def write_xlsx(path: Path, sheet: str, columns: Columns, rows: Rows) -> None:
    """Writes one sheet: amounts as numbers, times as dates, everything else as text that is never a formula.

    Raises InputError for more than MOST_XLSX_ROWS rows, and for a bad path.
    """
    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    try:
        with xlsxwriter.Workbook(str(path), options) as book:
            page = book.add_worksheet(sheet)
            bold = book.add_format({"bold": True, "bottom": 1})
            forms = {
                Kind.DECIMAL: book.add_format({"num_format": "#,##0.00########"}),
                Kind.TIME: book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
            }
            page.freeze_panes(1, 0)
            for at, (name, kind) in enumerate(columns):
                page.set_column(at, at, 20 if kind is Kind.TIME else max(12, min(40, len(name) + 2)))
                page.write_string(0, at, name, bold)
            last = 0
            for last, row in enumerate(rows, start=1):
                if last > MOST_XLSX_ROWS:
                    found = f"more than {MOST_XLSX_ROWS} rows"
                    raise InputError(
                        str(path),
                        (FieldProblem("", found, "a CSV or Parquet file, which has no such limit"),),
                    )
                for at, (_, kind) in enumerate(columns):
                    _write_cell(page, (last, at), kind, row[at], forms)
            page.autofilter(0, 0, last, len(columns) - 1)
    except (OSError, xlsxwriter.exceptions.FileCreateError) as error:
        raise _path_error(path, error) from None


def _write_cell(page: Any, at: tuple[int, int], kind: Kind, text: str, forms: Mapping[Kind, Any]) -> None:
    if not text:
        return
    if kind is Kind.DECIMAL:
        page.write_number(*at, Decimal(text), forms[kind])
    elif kind is Kind.TIME:
        instant = datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)
        page.write_datetime(*at, instant, forms[kind])
    else:
        page.write_string(*at, text)


def parquet_text(path: Path) -> tuple[list[str], Iterator[Mapping[str, str]]]:
    """Header and rows of a Parquet file in the text form of CSV. Raises InputError."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        problem = FieldProblem("", str(error)[:80], "a Parquet file")
        raise InputError(str(path), (problem,)) from None

    def rows() -> Iterator[Mapping[str, str]]:
        for batch in file.iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                yield {name: _text(value) for name, value in row.items()}

    return list(file.schema_arrow.names), rows()


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return cell_text(value)
    if isinstance(value, datetime):
        return cell_text(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    return "" if value is None else str(value)


def _path_error(path: Path, error: Exception) -> InputError:
    found = getattr(error, "strerror", None) or str(error)
    return InputError(str(path), (FieldProblem("", found, "a path that can be written"),))
