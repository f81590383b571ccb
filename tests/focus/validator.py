"""The public FOCUS validator, in an environment of its own: what it finds, and its model's own faults."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import peers_env

RULES_AT_LEAST = 300
LIMIT_S = 900
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
    command = [str(python), str(python.with_name("focus-validator")), "--data-file", str(file)]
    command += ["--validate-version", MODEL, "--block-download", "--applicability-criteria", "ALL"]
    command += ["--output-type", "unittest", "--output-destination", str(report)]
    clean = {"PATH": os.environ.get("PATH", os.defpath)}
    # it opens a file of its own relative to the current folder
    done = subprocess.run(
        command, cwd=packages, env=clean, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert report.is_file(), done.stderr[-2000:]
    return ElementTree.parse(report).getroot()


def failures(file: Path, report: Path) -> tuple[frozenset[str], int]:
    """Rules that failed, and how many were looked at."""
    cases = list(validated(file, report).iter("testcase"))
    failed = (case for case in cases if case.find("failure") is not None)
    return frozenset(str(case.get("name")).split()[0] for case in failed), len(cases)


def require_validator() -> None:
    """Skips the test, and says why, where the Python that the validator needs is not found."""
    try:
        peers_env.interpreter("focus-validator")
    except peers_env.NoPython as missing:
        pytest.skip(str(missing))
