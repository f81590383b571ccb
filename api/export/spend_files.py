"""Sums of spend as files; every format has the same rows and totals."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from api.export.tables import Columns, Rows, write_parquet, write_xlsx
from api.schemas.finance.spend import CSV_COLUMNS, SpendForm, spend_csv_rows
from broker.domain.focus.columns import Kind

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
