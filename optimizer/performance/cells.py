"""Cells of a measured table: numbers as text, blank where nobody said."""

from __future__ import annotations

import math
from collections.abc import Mapping

NOTHING = frozenset({"", "-", "–", "?", "na", "n/a", "nan", "none", "null", "unknown"})


class Unreadable(ValueError):
    """A row that cannot be predicted; the text says why."""


def number(row: Mapping[str, str], name: str) -> float | None:
    """A finite number of at least 0; None for a cell that says nothing. Raises Unreadable."""
    text = (row.get(name) or "").strip().replace(",", "")
    if text.lower() in NOTHING:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise Unreadable(f"{name} {text!r} is not a number") from error
    if not math.isfinite(value) or value < 0:
        raise Unreadable(f"{name} {text!r} is not a number of at least 0")
    return value


def needed(row: Mapping[str, str], name: str) -> float:
    """A number above 0. Raises Unreadable for a blank cell or 0."""
    value = number(row, name)
    if not value:
        raise Unreadable(f"{name} is missing")
    return value
