"""Documents in the documentation are read as a user's own would be."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from api.schemas.workloads.workloads import read_workloads

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```yaml[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    pytest.param(path.name, block, id=f"{path.name}-{number}")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for number, block in enumerate(BLOCK.findall(path.read_text()))
    if re.search(r"^workloads:", block, re.MULTILINE) and re.search(r"^team:", block, re.MULTILINE)
]


@pytest.mark.parametrize(("name", "text"), DOCUMENTS)
def test_a_document_of_the_documentation_is_read(name: str, text: str) -> None:
    request = read_workloads(text, source=name, base=None, now=datetime(2026, 11, 27, tzinfo=UTC))
    assert request.workloads


def test_the_first_page_has_one() -> None:
    assert [block.values[0] for block in DOCUMENTS if block.values[0] == "index.md"] == ["index.md"]
