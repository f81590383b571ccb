"""Constants that no fit moves: their values and reasons, as ``config/performance.toml`` gives them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.performance.calibration import CONFIG
from optimizer.performance.fitting import PARAMETERS

MEASURED = "intervals"


@dataclass(frozen=True, slots=True)
class HandSet:
    """One constant of ``group`` that was set by hand; of a table its entries that no fit moves."""

    group: str
    name: str
    value: str
    reason: str


def hand_set() -> tuple[HandSet, ...]:
    """Every constant that no fit moves, in the order of the file; half-widths of intervals are measured."""
    fitted = {path for table in tomllib.loads(PARAMETERS.read_text()).values() for path in table}
    groups = tomllib.loads(CONFIG.read_text())
    return tuple(found for group, table in groups.items() for found in _of_group(group, table, fitted))


def _of_group(group: str, table: Any, fitted: set[str]) -> Iterator[HandSet]:
    if group == MEASURED or not isinstance(table, Mapping):
        return
    for name, entry in table.items():
        path = f"{group}.{name}"
        if not isinstance(entry, Mapping):
            continue
        if "value" not in entry:
            yield from _of_group(path, entry, fitted)
            continue
        value = _shown(path, entry["value"], fitted)
        if value and "source" in entry:
            yield HandSet(group, name, value, str(entry["source"]))


def _shown(path: str, value: Any, fitted: set[str]) -> str:
    """The value, or a table's entries that no fit moves; blank where all are fitted."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key} {number:g}" for key, number in value.items() if f"{path}.{key}" not in fitted
        )
    if isinstance(value, str):
        return value
    return "" if path in fitted else f"{value:g}"
