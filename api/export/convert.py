"""Converts CSV to the format of a file's suffix."""

from __future__ import annotations

import csv
from pathlib import Path
from shutil import copyfile

from api.export.tables import write_parquet, write_xlsx
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.focus.columns import kind_of


def convert(csv_file: Path, file: Path, sheet: str) -> None:
    """The rows of ``csv_file`` as ``file``, by its suffix: Parquet, XLSX, or else CSV as it is.

    Raises InputError for a path that cannot be written, and for too many rows in XLSX.
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
