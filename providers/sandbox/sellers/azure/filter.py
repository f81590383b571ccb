"""The OData filters of Azure's price list and SKU list: eq, contains, startswith, joined by and/or."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<word>[A-Za-z_]\w*)|(?P<mark>[(),]))")
_FUNCTIONS: Mapping[str, Callable[[str, str], bool]] = {
    "contains": lambda value, part: part in value,
    "startswith": lambda value, part: value.startswith(part),
}


def parse_filter(text: str) -> Test:
    """``text`` as a test of rows; values compare with their case. ValueError for anything else."""
    parser = _Parser(_tokens(text))
    test = parser.disjunction()
    if parser.left:
        raise ValueError(f"cannot read {parser.left[0]!r}")
    return test


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at : at + 20]!r}")
        found.append(match[match.lastgroup or "word"])
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens

    def _take(self, wanted: str | None = None) -> str:
        if not self.left or (wanted is not None and self.left[0] != wanted):
            raise ValueError(f"expected {wanted or 'more'}")
        return self.left.pop(0)

    def disjunction(self) -> Test:
        tests = [self._conjunction()]
        while self.left[:1] == ["or"]:
            self._take()
            tests.append(self._conjunction())
        return lambda row: any(test(row) for test in tests)

    def _conjunction(self) -> Test:
        tests = [self._term()]
        while self.left[:1] == ["and"]:
            self._take()
            tests.append(self._term())
        return lambda row: all(test(row) for test in tests)

    def _term(self) -> Test:
        word = self._take()
        if word == "(":
            inner = self.disjunction()
            self._take(")")
            return inner
        if word in _FUNCTIONS and self.left[:1] == ["("]:
            self._take("(")
            name = self._take()
            self._take(",")
            part = self._text()
            self._take(")")
            return lambda row: _FUNCTIONS[word](_value(row, name), part)
        self._take("eq")
        wanted = self._text()
        return lambda row: _value(row, word) == wanted

    def _text(self) -> str:
        token = self._take()
        if not token.startswith("'"):
            raise ValueError(f"{token!r} is not a text")
        return token[1:-1].replace("''", "'")


def _value(row: Mapping[str, Any], name: str) -> str:
    field = "type" if name == "priceType" else name
    if field not in row:
        raise ValueError(f"no field {name!r}")
    return str(row[field])
