"""Sums of spend and CSV files in the form that a file's name asks for, with the same rows in each form."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copyfile

from api.export.tables import Columns, Rows, write_parquet, write_xlsx
from api.schemas.finance.spend import CSV_COLUMNS, SpendForm, spend_csv_rows
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.focus.columns import Kind, kind_of

SHEET = "Spend"
SPEND_KINDS = {
    "period": Kind.TIME,
    "usd": Kind.DECIMAL,
    "until_released_usd": Kind.DECIMAL,
    "intended_usd": Kind.DECIMAL,
}
MEDIA_TYPES: Mapping[str, str] = {
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
}
_WRITERS: Mapping[str, Callable[[Path, Columns, Rows], None]] = {
    "xlsx": lambda path, columns, rows: write_xlsx(path, SHEET, columns, rows),
    "parquet": write_parquet,
}


def write_spend(path: Path, kind: str, form: SpendForm) -> None:
    """Writes ``form`` as one of MEDIA_TYPES. Raises InputError for a bad path or too many rows."""
    columns = [(name, SPEND_KINDS.get(name, Kind.STRING)) for name in CSV_COLUMNS]
    _WRITERS[kind](path, columns, [tuple(map(str, row)) for row in spend_csv_rows(form)])


def spend_bytes(kind: str, form: SpendForm) -> bytes:
    """Like ``write_spend``, as bytes. It is slow, so call it in a thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"spend.{kind}"
        write_spend(path, kind, form)
        return path.read_bytes()


def convert(csv_file: Path, file: Path, sheet: str) -> None:
    """The rows of ``csv_file`` as ``file``, by its suffix: Parquet, a workbook, else CSV as it is.

    InputError for a path that cannot be written, and for a workbook of too many rows.
    """
    suffix = file.suffix.lower()
    if suffix in (".parquet", ".xlsx"):
        with csv_file.open(encoding="utf-8", newline="") as text:
            rows = csv.reader(text)
            columns = [(name, kind_of(name)) for name in next(rows)]
            if suffix == ".parquet":
                write_parquet(file, columns, rows)
            else:
                write_xlsx(file, sheet, columns, rows)
        return
    try:
        copyfile(csv_file, file)
    except OSError as error:
        problem = FieldProblem("", str(error.strerror), "a path that can be written")
        raise InputError(str(file), (problem,)) from None
