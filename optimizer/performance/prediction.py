"""A predicted row: values, their 80 % interval, whether it fits, and what was assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Prediction:
    """``values`` by column name, ``spread``: relative half-width of each. ``fits`` is None where nothing
    could be predicted; ``stable`` false where the load is beyond what the replica can follow."""

    values: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    fits: bool | None = None
    note: str = ""
    stable: bool = True

    def written(self) -> dict[str, str]:
        """The cells of the row: numbers with six digits, the interval beside each."""
        fits = "" if self.fits is None else ("true" if self.fits else "false")
        cells = {"fits": fits, "note": self.note}
        for name, value in self.values.items():
            if math.isfinite(value):
                share = 1.0 + self.spread[name]
                cells[name] = f"{value:.6g}"
                cells[f"{name}_low"] = f"{value / share:.6g}"
                cells[f"{name}_high"] = f"{value * share:.6g}"
        return cells
