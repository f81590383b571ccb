"""The README says of each adapter what its spec says."""

from __future__ import annotations

from pathlib import Path

from api.cli.providers import capability_table

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_holds_the_table_that_the_command_prints() -> None:
    assert capability_table() in README.read_text(), "broker providers list --markdown prints it"
