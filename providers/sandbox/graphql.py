"""The part of GraphQL that clients of a provider send: one operation, fields, arguments, aliases,
variables, inline values. Fragments and directives are refused.

``parse`` gives the operation's fields; ``project`` cuts an answer to what was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r'(?P<skip>[\s,\ufeff]+|\#[^\n]*)|(?P<block>"""(?:.|\n)*?""")|(?P<string>"(?:\\.|[^"\\])*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[_A-Za-z]\w*)|(?P<mark>\.\.\.|[!$():=@\[\]{}|&])"
)
_WORDS = {"true": True, "false": False, "null": None}


class GraphQLError(Exception):
    """A document that cannot be understood, or a field that does not exist."""


@dataclass(frozen=True, slots=True)
class Field:
    """One asked field; ``key`` is its name in the answer."""

    key: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()


Resolver = Callable[[Mapping[str, Any]], Any]
"""A value that depends on the field's arguments."""


def parse(document: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """The operation's kind ("query" or "mutation") and its fields, variables filled in."""
    return _Parser(_tokens(document), variables).operation()


def project(value: Any, fields: tuple[Field, ...]) -> Any:
    """``value`` cut to ``fields``; GraphQLError for a field that it does not have."""
    if not fields or value is None:
        return value
    if isinstance(value, list):
        return [project(item, fields) for item in value]
    found: dict[str, Any] = {}
    for asked in fields:
        if asked.name == "__typename":
            continue
        if asked.name not in value:
            raise GraphQLError(f'Cannot query field "{asked.name}".')
        inner = value[asked.name]
        found[asked.key] = project(inner(asked.arguments) if callable(inner) else inner, asked.fields)
    return found


def _tokens(document: str) -> list[str]:
    found, place = [], 0
    while place < len(document):
        match = _TOKEN.match(document, place)
        if match is None:
            raise GraphQLError(f"Syntax Error: Unexpected character {document[place]!r}.")
        if match.lastgroup != "skip":
            found.append(match[0])
        place = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[str], variables: Mapping[str, Any]) -> None:
        self._tokens = tokens
        self._place = 0
        self._variables = dict(variables)

    def operation(self) -> tuple[str, tuple[Field, ...]]:
        kind = "query"
        if self._peek() in {"query", "mutation"}:
            kind = self._next()
            if self._peek() not in {"{", "("}:
                self._next()
            if self._peek() == "(":
                self._definitions()
        fields = self._selection()
        if self._place != len(self._tokens):
            raise GraphQLError("Syntax Error: one operation a document, without fragments.")
        return kind, fields

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise GraphQLError("Syntax Error: Unexpected <EOF>.")
        self._place += 1
        return token

    def _expect(self, mark: str) -> None:
        found = self._next()
        if found != mark:
            raise GraphQLError(f"Syntax Error: Expected {mark!r}, found {found!r}.")

    def _definitions(self) -> None:
        """``($name: Type! = default, …)``; a default stands in for a variable that was not sent."""
        self._expect("(")
        while self._peek() != ")":
            self._expect("$")
            name = self._next()
            self._expect(":")
            while self._peek() not in {"$", ")", "="}:
                self._next()
            if self._peek() == "=":
                self._next()
                self._variables.setdefault(name, self._value())
        self._expect(")")

    def _selection(self) -> tuple[Field, ...]:
        self._expect("{")
        found = []
        while self._peek() != "}":
            found.append(self._field())
        self._expect("}")
        return tuple(found)

    def _field(self) -> Field:
        key = name = self._name()
        if self._peek() == ":":
            self._next()
            name = self._name()
        arguments = self._arguments() if self._peek() == "(" else {}
        fields = self._selection() if self._peek() == "{" else ()
        return Field(key, name, arguments, fields)

    def _name(self) -> str:
        token = self._next()
        if not re.fullmatch(r"[_A-Za-z]\w*", token):
            raise GraphQLError(f"Syntax Error: Expected Name, found {token!r}.")
        return token

    def _arguments(self) -> dict[str, Any]:
        self._expect("(")
        found = self._pairs(")")
        self._expect(")")
        return found

    def _pairs(self, end: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != end:
            name = self._name()
            self._expect(":")
            found[name] = self._value()
        return found

    def _value(self) -> Any:
        token = self._next()
        if token == "$":  # noqa: S105  GraphQL's mark of a variable
            name = self._name()
            return self._variables.get(name)
        if token == "{":  # noqa: S105
            pairs = self._pairs("}")
            self._expect("}")
            return pairs
        if token == "[":  # noqa: S105
            return self._list()
        return _scalar(token)

    def _list(self) -> list[Any]:
        found = []
        while self._peek() != "]":
            found.append(self._value())
        self._expect("]")
        return found


def _scalar(token: str) -> Any:
    if token.startswith('"""'):
        return token[3:-3].strip()
    if token.startswith('"') or re.fullmatch(r"-?\d.*", token):
        return json.loads(token)
    return _WORDS.get(token, token)
