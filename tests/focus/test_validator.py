"""The public FOCUS validator over our export: no failure but those of its model's own faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.export.tables import write_parquet
from broker.domain.focus.columns import kind_of
from tests.focus.examples import a_bill, text_rows
from tests.focus.validator import KNOWN_FAULTS, RULES_AT_LEAST, failures, require_validator


@pytest.mark.slow
def test_the_public_validator_finds_only_its_own_faults(tmp_path: Path) -> None:
    require_validator()
    columns, rows = text_rows(a_bill())
    file = tmp_path / "focus.parquet"
    write_parquet(file, [(name, kind_of(name)) for name in columns], (list(row.values()) for row in rows))
    failed, asked = failures(file, tmp_path / "report.xml")
    assert asked > RULES_AT_LEAST
    assert failed <= KNOWN_FAULTS, sorted(failed - KNOWN_FAULTS)
