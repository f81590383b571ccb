"""The files that ``broker spend`` writes: the same rows and totals to the cent in every form."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest

from api.schemas.finance.spend import CSV_COLUMNS
from tests.cli.running import FakeServer, broker, fake_server
from tests.focus.examples import a_bill, text_rows

ITEMS = [
    {"period": "2026-11-01T00:00:00Z", "group": "=1+1", "basis": "actual", "usd": "0.10"},
    {"period": "2026-11-01T00:00:00Z", "group": "research", "basis": "projected", "usd": "12345678.91"},
    {"period": "2026-12-01T00:00:00Z", "group": "http://x.example", "basis": "projected", "usd": "0.20"},
]
FORM = {
    "interval": "month",
    "group_by": "team",
    "currency": "USD",
    "total_usd": "12345679.21",
    "items": ITEMS,
}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server({("GET", "/v1/spend/projection"): [(200, FORM)]}) as running:
        yield running


def test_csv_workbook_and_parquet_say_the_same(server: FakeServer, tmp_path: Path) -> None:
    names = {form: tmp_path / f"spend.{form}" for form in ("csv", "xlsx", "parquet")}
    done = broker(
        "spend", *(part for form, path in names.items() for part in (f"--{form}", path)), env=server.env
    )
    assert done.exit_code == 0, done.output
    with names["csv"].open(newline="") as text:
        told = [tuple(row.values()) for row in csv.DictReader(text)]
    sheet = openpyxl.load_workbook(names["xlsx"]).active
    assert sheet is not None
    page = list(sheet.iter_rows(values_only=True))
    table = pq.read_table(names["parquet"])
    assert tuple(page[0]) == tuple(table.column_names) == CSV_COLUMNS
    kept = [tuple(row.values()) for row in table.to_pylist()]
    money = [Decimal(row[4]) for row in told]
    assert [Decimal(str(row[4])) for row in page[1:]] == [row[4] for row in kept] == money
    assert sum(money) == Decimal(FORM["total_usd"])  # type: ignore[arg-type]
    assert [row[2] for row in page[1:]] == [row[2] for row in kept] == [item["group"] for item in ITEMS]
    assert told[0][2] == "'=1+1"
    assert [row[0] for row in kept] == [row[0].replace(tzinfo=kept[0][0].tzinfo) for row in page[1:]]


def test_user_text_is_never_a_formula_nor_a_link(server: FakeServer, tmp_path: Path) -> None:
    book = tmp_path / "spend.xlsx"
    assert broker("spend", "--xlsx", book, env=server.env).exit_code == 0
    sheet = openpyxl.load_workbook(book).active
    assert sheet is not None
    assert {cell.data_type for row in sheet.iter_rows(min_row=2, min_col=2, max_col=4) for cell in row} == {
        "s"
    }
    assert sheet["C4"].hyperlink is None


def focus_answer() -> tuple[int, Any]:
    columns, rows = text_rows(a_bill(), 30)
    lines = [",".join(columns)]
    for row in rows:
        cells = ['"' + row[name].replace('"', '""') + '"' for name in columns]
        lines.append(",".join(cells))
    return 200, "\r\n".join(lines) + "\r\n"


@pytest.mark.parametrize("form", ["csv", "parquet", "xlsx"])
def test_a_focus_file_has_a_manifest_and_passes_the_checker(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"focus.{form}"
    with fake_server({("GET", "/v1/spend/focus.csv"): [focus_answer()]}) as server:
        done = broker("spend", "--focus", file, "--json", env=server.env)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told == json.loads(file.with_name(f"focus.{form}.manifest.json").read_text())
    _, rows = text_rows(a_bill(), 30)
    assert told["rows"] == len(rows)
    assert told["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("BilledCost", "EffectiveCost"):
        assert Decimal(told["totals_usd"][name]) == sum(Decimal(row[name]) for row in rows)
    used = [row for row in rows if row["ChargeCategory"] != "Purchase"]
    assert 0 < len(used) < len(rows)
    for name in ("ListCost", "ContractedCost"):
        assert Decimal(told["totals_usd"][name]) == sum(Decimal(row[name]) for row in used), "counted once"
    if form != "xlsx":
        checked = broker("focus-check", file)
        assert checked.exit_code == 0, checked.output
        assert "0 findings, FOCUS 1.2" in checked.output


def test_the_checker_names_row_and_column(tmp_path: Path) -> None:
    _, text = focus_answer()
    file = tmp_path / "focus.csv"
    file.write_text(text.replace('"Standard"', '"On-Demand"', 1), newline="")
    done = broker("focus-check", file)
    assert done.exit_code == 1
    assert "Row 1: PricingCategory is 'On-Demand'; it must be one of" in done.output
    assert json.loads(broker("focus-check", file, "--json").stdout)["groups"] == {"words": 1}


@pytest.mark.parametrize("content", ["a,b\n1\n", "\xff"])
def test_what_is_no_table_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "focus.csv"
    file.write_bytes(content.encode("latin-1"))
    assert broker("focus-check", file).exit_code == 2
    assert broker("focus-check", tmp_path / "none.csv").exit_code == 2
    (tmp_path / "no.parquet").write_bytes(b"PAR?")
    assert broker("focus-check", tmp_path / "no.parquet").exit_code == 2
