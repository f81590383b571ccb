"""JSON text → plain data. Repeated names within an object and deep nesting are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from api.schemas.base.yaml_reader import Mark, refuse

MAX_DEPTH = 64
LONGEST_NAME_SHOWN = 60
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[\[\]{}]', re.DOTALL)


class _RepeatedName(Exception):
    """An object has two fields of the same name."""


def read_json(text: str, source: str) -> Any:
    """Plain data of a JSON text.

    Raises InputError with line and column for malformed text, repeated field names and more than MAX_DEPTH
    levels.
    """
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        refuse(source, f"malformed JSON ({error.msg})", "one JSON document", (error.lineno, error.colno))
    except (_RepeatedName, RecursionError):
        _refuse_where_it_is(text, source)
    except ValueError as error:
        refuse(source, f"JSON that cannot be read ({error})", "numbers with fewer digits")
    if _is_deep(data):
        _refuse_where_it_is(text, source)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of unique names. A repeated name is an error, because readers differ in which value they
    take.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _RepeatedName
    return fields


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [part for whole in level for part in _parts(whole) if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def _parts(whole: Any) -> Iterable[Any]:
    if isinstance(whole, dict):
        return whole.values()
    return whole if isinstance(whole, list) else ()


def _refuse_where_it_is(text: str, source: str) -> None:
    """Raises InputError at the first repeated name, or at the first level too deep, of a JSON text."""
    names: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "[{":
            names.append(set())
            if len(names) > MAX_DEPTH:
                place = _place(text, token.start())
                refuse(source, f"more than {MAX_DEPTH} levels", "a document less deep", place)
        elif word in "]}":
            names.pop()
        elif token.group(1) is not None:
            name = json.loads(word[: -len(token.group(1))])
            if name in names[-1]:
                shown = name if len(name) <= LONGEST_NAME_SHOWN else name[:LONGEST_NAME_SHOWN] + "…"
                refuse(source, f"a second {shown!r}", "each field once", _place(text, token.start()))
            names[-1].add(name)
    raise AssertionError("a name that comes twice, or a level too deep, is found where it stands")


def _place(text: str, offset: int) -> Mark:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
