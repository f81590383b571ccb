"""Refuses invisible characters in all text from outside (``broker.unseen``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from api.schemas.base.document import MAX_SHOWN, Document, describe, input_error, pointer_of
from broker.unseen import find_unseen, name_of, shown

EXPECTED = "text without control characters and invisible characters"


def require_seen(document: Document) -> None:
    """Raises InputError that names each field whose text, or whose own name, has an invisible character."""
    problems = [
        document.problem(pointer_of(*path), f"{describe(shown(text))} with {name_of(character)}", EXPECTED)
        for path, text, character in islice(_unseen(document.data, ()), MAX_SHOWN + 1)
    ]
    if problems:
        raise input_error(document.source, problems, stopped=True)


def require_seen_fields(fields: Mapping[str, str], source: str) -> None:
    """Like ``require_seen``, for the fields of an HTML form."""
    require_seen(Document(source, dict(fields)))


def _unseen(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    if isinstance(value, str):
        character = find_unseen(value)
        if character is not None:
            yield path, value, character
    elif isinstance(value, dict):
        for name, part in value.items():
            if find_unseen(name) is not None:
                yield from _unseen(name, path)
            else:
                yield from _unseen(part, (*path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _unseen(part, (*path, index))
