"""What a seller publishes of its API, as a table of facts, and whether calls and answers agree with it.

``fixtures/providers/<name>/api.json`` holds for each call that an adapter makes the fields of its query, its
body and its answers. A *shape* says what a value may be:

- ``"string"``, ``"integer"``, ``"number"``, ``"boolean"``, ``"null"``, ``"any"`` (not described any further);
- an object of names and shapes, where ``!`` ends the name of a field that must be there, and where the name
  ``*`` stands for keys of any name; a list of one shape;
- ``{"$words": [...]}``: one of these texts; ``{"$any": [...]}``: one of these shapes;
- ``"@Name"``: the shape of that name under ``shapes``.

Where a seller's own clients and its document contradict each other, ``differs`` names the problem and what is
followed instead; ``unchecked`` names calls that the document leaves out.

The tables are made from the sellers' documents by ``python -m tests.contract.condense``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Shape = Any
"""See the module's docstring."""

TABLE = "api.json"


@dataclass(frozen=True, slots=True)
class Heard:
    """One call and its answer, as they went over the wire; bodies are read JSON, None where there is none."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    body: Any
    status: int
    answer: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path} ({self.status})"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a description. ``answers``: shapes by status (``200``, ``2XX``, ``default``)."""

    method: str
    path: str
    query: Mapping[str, Shape]
    body: Shape
    answers: Mapping[str, Shape]

    def serves(self, method: str, path: str) -> bool:
        """Whether ``method`` and ``path`` are a use of this call."""
        return method == self.method and _pattern(self.path).fullmatch(path) is not None

    def answer_of(self, status: int) -> Shape | None:
        """The shape of an answer with ``status``; None where the description does not tell."""
        for key in (str(status), f"{str(status)[0]}XX", "default"):
            if key in self.answers:
                return self.answers[key]
        return None


@cache
def _pattern(path: str) -> re.Pattern[str]:
    """A template as a pattern: ``{name}`` is one segment."""
    return re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path)))


@dataclass(frozen=True, slots=True)
class Description:
    """A seller's description. ``source``: document, address, version and date, for people.

    ``differs``: problems in which other material is followed than the description, each with that material;
    ``unchecked``: calls that the description does not hold, with the reason.
    """

    source: Mapping[str, str]
    calls: tuple[Call, ...]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)

    def call_for(self, method: str, path: str) -> Call | None:
        """The call that ``method`` and ``path`` are; one without variables comes before one with them."""
        found = [call for call in self.calls if call.serves(method, path)]
        return min(found, key=lambda call: call.path.count("{"), default=None)

    def problems(self, heard: Heard) -> Iterator[str]:
        """What of ``heard`` the description does not know; nothing where both agree."""
        call = self.call_for(heard.method, heard.path)
        if call is None:
            yield "no such call"
            return
        yield from self._of_query(call, heard.query)
        yield from self._of_body(call, heard.body)
        yield from self._of_answer(call, heard)

    def _of_query(self, call: Call, query: Sequence[tuple[str, str]]) -> Iterator[str]:
        names = {name for name, _ in query}
        for name in call.query:
            if name.endswith("!") and name[:-1] not in names:
                yield f"query: {name[:-1]} is missing"
        for name, text in query:
            shape = call.query.get(name, call.query.get(f"{name}!"))
            if shape is None:
                yield f"query: {name} is unknown"
            else:
                yield from self.mismatches(_read_as(self.resolved(shape), text), shape, f"query: {name}")

    def _of_body(self, call: Call, body: Any) -> Iterator[str]:
        if call.body is None:
            if body not in (None, {}):
                yield "body: there is none in the description"
        elif body is None:
            if self._needs(call.body):
                yield "body: it is missing"
        else:
            yield from self.mismatches(body, call.body, "body", complete=True)

    def _of_answer(self, call: Call, heard: Heard) -> Iterator[str]:
        shape = call.answer_of(heard.status)
        if shape is None:
            if heard.status < 300:
                yield f"answer: status {heard.status} is unknown, {', '.join(call.answers)} are known"
        elif shape == "nothing":
            if heard.answer is not None:
                yield f"answer: a body with status {heard.status}"
        elif heard.answer is not None or heard.status < 300:
            yield from self.mismatches(heard.answer, shape, "answer")

    def _needs(self, shape: Shape) -> bool:
        shape = self.resolved(shape)
        return isinstance(shape, dict) and any(name.endswith("!") for name in shape)

    def resolved(self, shape: Shape) -> Shape:
        """``shape`` itself, where it is a name of another."""
        while isinstance(shape, str) and shape.startswith("@"):
            shape = self.shapes[shape[1:]]
        return shape

    def mismatches(self, value: Any, shape: Shape, at: str, complete: bool = False) -> Iterator[str]:
        """What of ``value`` is not of ``shape``.

        ``complete``: fields that must be there are. In an answer they need not be, and null stands for a
        field that may be missing: few documents say which fields can be null.
        """
        shape = self.resolved(shape)
        if isinstance(shape, list):
            if isinstance(value, list):
                for number, item in enumerate(value):
                    yield from self.mismatches(item, shape[0], f"{at}[{number}]", complete)
            else:
                yield f"{at}: {_shown(value)} is no list"
        elif isinstance(shape, str):
            if not _IS[shape](value):
                yield f"{at}: {_shown(value)} is no {shape}"
        elif "$words" in shape:
            if value not in shape["$words"]:
                yield f"{at}: {_shown(value)} is none of {', '.join(map(str, shape['$words']))}"
        elif "$any" in shape:
            tried = [list(self.mismatches(value, each, at, complete)) for each in shape["$any"]]
            yield from min(tried, key=lambda problems: (len(problems), _is_of_type(problems, at)))
        else:
            yield from self._of_fields(value, shape, at, complete)

    def _of_fields(self, value: Any, shape: Mapping[str, Shape], at: str, complete: bool) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at}: {_shown(value)} is no object"
            return
        for name in shape:
            if complete and name.endswith("!") and name[:-1] not in value:
                yield f"{at}.{name[:-1]} is missing"
        for name, inner in value.items():
            told = shape.get(name, shape.get(f"{name}!", shape.get("*")))
            if inner is None and not complete and f"{name}!" not in shape and told is not None:
                continue
            if told is None:
                yield f"{at}.{name} is unknown"
            else:
                key = name if name in shape or f"{name}!" in shape else "*"
                yield from self.mismatches(inner, told, f"{at}.{key}", complete)

    def knows(self, shape: Shape, names: Sequence[str]) -> bool:
        """Whether ``names`` lead to a field of ``shape``, through lists and choices."""
        shape = self.resolved(shape)
        if isinstance(shape, list):
            return self.knows(shape[0], names)
        if not names or shape == "any":
            return True
        if not isinstance(shape, dict):
            return False
        if "$any" in shape:
            return any(self.knows(each, names) for each in shape["$any"])
        head, rest = names[0], names[1:]
        told = [
            inner for name, inner in shape.items() if head == "*" or name.removesuffix("!") in {head, "*"}
        ]
        return any(self.knows(each, rest) for each in told)


def _is_of_type(problems: Sequence[str], at: str) -> bool:
    """Whether the value itself is of another type: the alternative says little then."""
    return any(problem.startswith(f"{at}: ") for problem in problems)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:60]


def _read_as(shape: Shape, text: str) -> Any:
    """The value that the text of a query stands for."""
    if isinstance(shape, list):
        return [_read_as(shape[0], text)]
    if isinstance(shape, dict) and "$any" in shape:
        read = [_read_as(each, text) for each in shape["$any"]]
        return next((value for value in read if value != text), text)
    if shape in ("integer", "number", "boolean"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "nothing": lambda value: value is None,
}
