"""Every constant of the performance core with its prior, its fitted value and its source."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.performance.constants.calibrated import CONFIG, FITTED

MEASURED = "intervals"

Value = float | str | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SourcedConstant:
    """One constant of ``group``: a number, a word, or a table of numbers by architecture, format or kind.

    ``fitted``: the fitted value of a number, or the fitted entries of a table; None if nothing was fitted.
    """

    group: str
    name: str
    prior: Value
    fitted: float | Mapping[str, float] | None
    source: str

    @property
    def value_words(self) -> str:
        """The prior, and the fitted value where the fit moved it; of a table, each entry."""
        if not isinstance(self.prior, Mapping):
            return _shown(self.prior, self.fitted if isinstance(self.fitted, float) else None)
        entries = self.fitted if isinstance(self.fitted, Mapping) else {}
        return ", ".join(f"{name} {_shown(value, entries.get(name))}" for name, value in self.prior.items())


def _shown(prior: float | str, fitted: float | None) -> str:
    shown = prior if isinstance(prior, str) else f"{prior:g}"
    return shown if fitted is None else f"{shown} → {fitted:.3g}"


def sourced_constants() -> tuple[SourcedConstant, ...]:
    """All constants, in the order of the file. Half-widths of intervals are not among them, because they are
    measured.
    """
    fitted = tomllib.loads(FITTED.read_text())["values"]
    groups = tomllib.loads(CONFIG.read_text())
    return tuple(found for group, table in groups.items() for found in _of_group(group, table, fitted))


def _of_group(group: str, table: Any, fitted: Mapping[str, float]) -> Iterator[SourcedConstant]:
    if group == MEASURED or not isinstance(table, Mapping):
        return
    for name, entry in table.items():
        path = f"{group}.{name}"
        if not isinstance(entry, Mapping):
            continue
        if "value" not in entry:
            yield from _of_group(path, entry, fitted)
        elif "source" in entry and entry["value"] != {}:
            prior = entry["value"]
            yield SourcedConstant(group, name, prior, _moved(path, prior, fitted), str(entry["source"]))


def _moved(path: str, prior: Value, fitted: Mapping[str, float]) -> float | Mapping[str, float] | None:
    if not isinstance(prior, Mapping):
        return fitted.get(path)
    return {key: fitted[f"{path}.{key}"] for key in prior if f"{path}.{key}" in fitted} or None
