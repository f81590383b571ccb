"""Numbers in a Hugging Face ``config.json``, whose field names differ by model family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def needed(text: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` with a value above 0. Raises ValueError, naming them, if there is none."""
    found = count(text, *names)
    if not found:
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ValueError(f"{names[0]}{others} is missing")
    return found


def count(text: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` with a value above 0 (of a list the largest); 0 if there is none.

    Raises ValueError for a value that is not a number, or is negative.
    """
    for field_name in names:
        value = text.get(field_name)
        if isinstance(value, list) and value:
            value = max(value)
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float):
            raise ValueError(f"{field_name}: {value!r} is not a number")
        if value < 0:
            raise ValueError(f"{field_name}: {value!r} is negative")
        if value:
            return int(value)
    return 0
