"""The OData filters of Azure's price list and SKU list: ``eq`` and ``contains``, joined by ``and``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Mapping[str, Any]], bool]
_TERM = re.compile(r"(?P<field>\w+) eq '(?P<text>[^']*)'|contains\((?P<whole>\w+), ?'(?P<part>[^']*)'\)")


def parse_filter(text: str) -> Test:
    """``text`` as a test of rows; values compare with their case. ValueError for anything else."""
    tests = [_test(term) for term in text.split(" and ")]
    return lambda row: all(test(row) for test in tests)


def _test(term: str) -> Test:
    found = _TERM.fullmatch(term)
    if found is None:
        raise ValueError(f"cannot read {term!r}")
    if found["field"] is None:
        return lambda row: found["part"] in _value(row, found["whole"])
    return lambda row: _value(row, found["field"]) == found["text"]


def _value(row: Mapping[str, Any], name: str) -> str:
    field = "type" if name == "priceType" else name
    if field not in row:
        raise ValueError(f"no field {name!r}")
    return str(row[field])
