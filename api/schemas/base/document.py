"""Text → plain data, with the position of every field, so that a message can point at it.

Scalars follow YAML 1.2's core schema, not PyYAML's 1.1: ``2e11`` is a number, ``NO`` is a country, ``11:30``
is text, times stay text. Custom tags are refused, so a document cannot create Python objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from api.schemas.base.json_reader import read_json
from api.schemas.base.yaml_reader import Mark, escaped, marks_of, read_yaml
from broker.domain.basics.errors import FieldProblem, InputError

MAX_MARKED_CHARACTERS = 4_000_000
MAX_SHOWN = 20


@dataclass(frozen=True)
class Document:
    """Plain data and the positions of its fields, which are found only for error messages."""

    source: str
    data: Any
    find_marks: Callable[[], Mapping[str, Mark]] = dict

    @cached_property
    def marks(self) -> Mapping[str, Mark]:
        """The 1-based (line, column) of every field by JSON pointer."""
        return self.find_marks()

    def problem(self, pointer: str, found: str, expected: str) -> FieldProblem:
        """A problem at ``pointer``, with the position of that field or of the nearest field around it."""
        around = pointer
        while around and around not in self.marks:
            around = around.rpartition("/")[0]
        line, column = self.marks.get(around, (None, None))
        return FieldProblem(pointer, found, expected, line, column)

    def value_at(self, pointer: str) -> Any:
        """The value at ``pointer``; None if there is none."""
        value = self.data
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict):
                value = value.get(name)
            else:
                return None
        return value


def pointer_of(*tokens: str | int) -> str:
    """The JSON pointer (RFC 6901) of a path of names and indices."""
    return "".join("/" + escaped(str(token)) for token in tokens)


def describe(value: object) -> str:
    """A short description of a value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"an object with {_listed(list(value))}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "…"


def _listed(names: list[object]) -> str:
    shown = ", ".join(str(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def input_error(
    source: str, problems: list[FieldProblem], further: int = 0, *, stopped: bool = False
) -> InputError:
    """An InputError of the first MAX_SHOWN problems, with a line that counts the others.

    ``further``: problems that are not listed. ``stopped``: the rest of the input was not checked.
    """
    shown = problems[:MAX_SHOWN]
    rest = len(problems) - len(shown) + further
    if rest:
        found = f"{'at least ' if stopped else ''}{rest} more problem{'' if rest == 1 else 's'}"
        shown.append(FieldProblem("", found, "the problems above corrected first"))
    return InputError(source, tuple(shown))


def read_document(text: str, source: str) -> Document:
    """Plain data of a YAML or JSON text with the positions of its fields.

    Raises InputError with line and column for malformed text, repeated field names and documents that are too
    deep or too large (``yaml_reader`` has the limits).
    """
    root, problems = read_yaml(text, source)
    if problems:
        raise input_error(source, problems)
    if root is None:
        return Document(source, None)
    return Document(source, root.data, partial(marks_of, root))


def read_json_document(text: str, source: str) -> Document:
    """Like ``read_document``, for JSON only and faster; very large texts have no positions."""
    return Document(source, read_json(text, source), partial(_json_marks, text, source))


def _json_marks(text: str, source: str) -> Mapping[str, Mark]:
    if len(text) > MAX_MARKED_CHARACTERS:
        return {}
    try:
        return read_document(text, source).marks
    except InputError:
        return {}
