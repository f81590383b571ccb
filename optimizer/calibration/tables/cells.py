"""Cells of tables: numbers as text, blank if not given; and a prediction as cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.performance.constants.spread import Sides

ASSUMPTIONS = ("assumed", "shape of", "taken as", "counted by", "nearest")
NOTHING = frozenset({"", "-", "–", "?", "na", "n/a", "nan", "none", "null", "unknown"})


class Unreadable(ValueError):
    """A row that cannot be predicted; the text is the reason."""


def number(row: Mapping[str, str], name: str) -> float | None:
    """A finite number of at least 0; None for a blank cell. Raises Unreadable."""
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


def assumptions_in(notes: str) -> int:
    """The number of kinds of assumptions that notes on a prediction tell."""
    return sum(word in notes for word in ASSUMPTIONS)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted ``values`` by column name, with ``spread``, the sides of the interval of each.

    ``fits`` is None if nothing could be predicted; ``stable`` is false if the load exceeds what the replica
    can follow.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, Sides] = field(default_factory=dict)
    fits: bool | None = None
    note: str = ""
    stable: bool = True

    def written(self) -> dict[str, str]:
        """The cells of the row: numbers with six digits, each followed by its interval."""
        fits = "" if self.fits is None else ("true" if self.fits else "false")
        cells = {"fits": fits, "note": self.note}
        for name, value in self.values.items():
            if math.isfinite(value):
                sides = self.spread[name]
                cells[name] = f"{value:.6g}"
                cells[f"{name}_low"] = f"{value * math.exp(-sides.below):.6g}"
                cells[f"{name}_high"] = f"{value * math.exp(sides.above):.6g}"
        return cells
