"""Numbers of a Hugging Face ``config.json`` under whatever name a family has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def needed(text: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` above 0. Raises ValueError that names them where none is there."""
    found = count(text, *names)
    if not found:
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ValueError(f"{names[0]}{others} is missing")
    return found


def count(text: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that holds a number above 0 (the largest of a list); 0 without one.

    Raises ValueError for what is no number or below 0.
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
            raise ValueError(f"{field_name}: {value!r} is below 0")
        if value:
            return int(value)
    return 0
