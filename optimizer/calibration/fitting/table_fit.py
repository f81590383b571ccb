"""Fits of small tables with rows of their own (collectives, cold starts) and their source folds, within a
second.

R rows. The regularized fit is that of training and serving; folds are computed when they are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from optimizer.calibration.fitting.gauss_newton import (
    NOISE,
    Parameter,
    Weights,
    fit,
    read_parameters,
    values_at,
    weighted_quantile,
)
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration


class TableRow(Protocol):
    """A row with its source, its measured time and its weight in a fit."""

    @property
    def source(self) -> str:
        """The publication."""

    @property
    def seconds(self) -> float:
        """The measured time."""

    @property
    def weight(self) -> float:
        """The weight; 1 for a full row."""


Row = TypeVar("Row", bound=TableRow)
Predict = Callable[[Sequence[Row], Calibration], Array]


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """Rows, the function that predicts their seconds [R], and the group of constants
    that is fitted to them."""

    rows: Sequence[Row]
    predict: Predict[Row]
    group: str

    def only(self, rows: Sequence[Row]) -> Table[Row]:
        """The same table with these rows."""
        return Table(rows, self.predict, self.group)

    def errors(self, calibration: Calibration) -> Array:
        """log(predicted / measured) [R]."""
        if not self.rows:
            return as_array([])
        return np.log(self.predict(self.rows, calibration) / as_array([row.seconds for row in self.rows]))


@dataclass(frozen=True, slots=True)
class _Problem(Generic[Row]):
    table: Table[Row]
    parameters: tuple[Parameter, ...]
    priors: Calibration

    def values(self, shift: Array) -> dict[str, float]:
        return values_at(self.parameters, self.priors, shift)

    def log_errors(self, shift: Array) -> Array:
        return self.table.errors(self.priors.with_values(self.values(shift)))


def fit_table(table: Table[Row], priors: Calibration) -> dict[str, float]:
    """The constants of the table's group, fitted to its rows; the priors if there are no rows."""
    problem = _Problem(table, read_parameters(table.group), priors)
    if not table.rows:
        return problem.values(np.zeros(len(problem.parameters)))
    weights = Weights(
        as_array([row.weight for row in table.rows]) / NOISE**2,
        as_array([1.0 / p.spread**2 for p in problem.parameters]),
    )
    return problem.values(fit(problem, weights)[0])


def held_out_by_source(table: Table[Row], priors: Calibration) -> Array:
    """log(predicted / measured) [R]; each source by constants that are fitted to the other sources, from
    ``priors``."""
    errors = np.full(len(table.rows), np.nan)
    for source, mine in _by_source(table.rows).items():
        others = [row for row in table.rows if row.source != source]
        constants = priors.with_values(fit_table(table.only(others), priors))
        errors[mine] = table.only([table.rows[i] for i in mine]).errors(constants)
    return errors


def interval_of_others(rows: Sequence[Row], groups: Sequence[str], errors: Array, share: float) -> Array:
    """Half-width in log [R] that contains ``share`` of the held-out errors of the group's *other* sources.

    If a group has only one source, all rows of other sources count.
    """
    sources, names = np.asarray([row.source for row in rows]), np.asarray(groups)
    size, spread = np.abs(errors), np.full(len(rows), np.nan)
    for source, name in {(row.source, group) for row, group in zip(rows, groups, strict=True)}:
        others = sources != source
        alike = others & (names == name)
        pool = alike if alike.any() else others
        if pool.any():
            half = weighted_quantile(size[pool], sources[pool].tolist(), share)
            spread[(sources == source) & (names == name)] = half
    return spread


def _by_source(rows: Sequence[Row]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.source, []).append(index)
    return found
