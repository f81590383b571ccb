"""Prints ``docs/seller-apis.md``: what from outside holds each seller's adapter."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from providers.registry import SPECS
from tests.contract.description import Description
from tests.contract.exchanges import FIXTURES
from tests.contract.seller_api import description_of

CONSTRAINTS = FIXTURES.parents[1] / "constraints.txt"
HEAD = """# What from outside holds each adapter

Each adapter is driven through the sandbox market (offers, orders, reads, releases), and every request and
answer is looked up in what the seller publishes of its API: the call, the fields that must be there, fields
and words that are unknown, types. `tests/contract/test_descriptions.py` does it;
`fixtures/providers/<seller>/api.json` holds the facts, or names the installed package that carries them.
Where a seller's document and other material of its own contradict each other, `differs` in that file names
what is followed; the number in brackets counts these. *Driven by* is a client that is not ours and that
orders, reads and releases at the sandbox (`tests/sandbox/`). `python -m tests.contract.seller_table` prints
this page.

| seller | outside material | version, date | calls checked | driven by | not checked |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The whole document."""
    rows = [
        f"| {spec.title} | {' | '.join(_cells(description_of(name)))} |\n"
        for name, spec in sorted(SPECS.items(), key=lambda item: item[1].title.casefold())
    ]
    return HEAD + "".join(rows)


def _cells(description: Description) -> tuple[str, ...]:
    source = description.source
    document = source["document"] + (f" ({source['at']})" if "at" in source else "")
    calls = str(len(description.calls)) if description.calls else "none"
    if description.differs:
        calls += f" ({len(description.differs)})"
    return document, _version(source), calls, source["driven"], source["open"]


def _version(source: Mapping[str, str]) -> str:
    """The package's pinned version, or the document's own with the day of the copy."""
    if carrier := source.get("carrier"):
        found = re.search(rf"^{re.escape(carrier)}==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
        return found[1] if found else "not pinned"
    return ", ".join(source[key] for key in ("version", "date") if key in source) or "none"


if __name__ == "__main__":
    sys.stdout.write(page())
