"""The public FOCUS validator over our export: no failure but those of its model's own faults."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from api.export.tables import write_parquet
from broker.domain.focus_columns import kind_of
from tests import peers_env
from tests.focus.examples import a_bill, text_rows

MODEL = "1.2.0.1"
KNOWN_FAULTS = frozenset(
    {
        "CapacityReservationStatus-C-000-C",
        "CapacityReservationStatus-C-002-C",
        "CapacityReservationStatus-C-003-C",
        "CapacityReservationStatus-C-004-C",
        "CommitmentDiscountStatus-C-000-C",
        "CommitmentDiscountStatus-C-002-C",
        "CommitmentDiscountStatus-C-004-C",
        "CostAndUsage-D-000-M",
        "CostAndUsage-D-002-M",
        "InvoiceId-C-005-C",
    }
)
"""Rules of its model 1.2.0.1 with conditions inverted or dropped, and their parents."""


def validated(file: Path, report: Path) -> ElementTree.Element:
    """The validator's report; it ends with 0 whatever it finds."""
    python = peers_env.python_of("focus-validator")
    packages = next((python.parents[1] / "lib").glob("python*/site-packages"))
    command = [str(python.with_name("focus-validator")), "--data-file", str(file)]
    command += ["--validate-version", MODEL, "--block-download", "--applicability-criteria", "ALL"]
    command += ["--output-type", "unittest", "--output-destination", str(report)]
    clean = {"PATH": os.environ.get("PATH", os.defpath)}
    # it opens a file of its own relative to the current folder
    done = subprocess.run(
        command, cwd=packages, env=clean, capture_output=True, text=True, timeout=240, check=False
    )
    assert report.is_file(), done.stderr[-2000:]
    return ElementTree.parse(report).getroot()


@pytest.mark.slow
def test_the_public_validator_finds_only_its_own_faults(tmp_path: Path) -> None:
    try:
        peers_env.interpreter("focus-validator")
    except peers_env.NoPython as missing:
        pytest.skip(str(missing))
    columns, rows = text_rows(a_bill())
    file = tmp_path / "focus.parquet"
    write_parquet(file, [(name, kind_of(name)) for name in columns], (list(row.values()) for row in rows))
    root = validated(file, tmp_path / "report.xml")
    cases = list(root.iter("testcase"))
    failed = {str(case.get("name")).split()[0] for case in cases if case.find("failure") is not None}
    assert len(cases) > 300
    assert failed <= KNOWN_FAULTS, sorted(failed - KNOWN_FAULTS)
