"""The fit of the constants of links and fabrics to rows of collectives, and its source folds.

C rows. The regularized fit is that of training and serving; it takes a second, so folds are computed when
they are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from tests.bench.calibration.collectives import CollectiveRow, predict_collectives
from tests.bench.calibration.fit import (
    NOISE,
    Parameter,
    Weights,
    fit,
    read_parameters,
    values_at,
    weighted_quantile,
)

GROUP = "collectives"


@dataclass(frozen=True, slots=True)
class _Problem:
    rows: Sequence[CollectiveRow]
    parameters: tuple[Parameter, ...]
    priors: Calibration
    gpus: Mapping[str, GpuSpec]

    def values(self, shift: Array) -> dict[str, float]:
        return values_at(self.parameters, self.priors, shift)

    def log_errors(self, shift: Array) -> Array:
        return collective_errors(self.rows, self.priors.with_values(self.values(shift)), self.gpus)


def collective_errors(
    rows: Sequence[CollectiveRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """log(predicted / measured) [C]."""
    measured = as_array([row.seconds for row in rows])
    return np.log(predict_collectives(rows, calibration, gpus) / measured)


def fit_collectives(
    rows: Sequence[CollectiveRow], priors: Calibration, gpus: Mapping[str, GpuSpec]
) -> dict[str, float]:
    """The constants of links and fabrics, fitted to ``rows``."""
    problem = _Problem(rows, read_parameters(GROUP), priors, gpus)
    weights = Weights(
        as_array([row.weight for row in rows]) / NOISE**2,
        as_array([1.0 / p.spread**2 for p in problem.parameters]),
    )
    return problem.values(fit(problem, weights)[0])


def held_out_by_source(
    rows: Sequence[CollectiveRow], priors: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """log(predicted / measured) [C]; each source by constants that are fitted to the other sources, from
    ``priors``."""
    errors = np.full(len(rows), np.nan)
    sources = np.asarray([row.source for row in rows])
    for source in sorted(set(sources.tolist())):
        others = [row for row in rows if row.source != source]
        constants = priors.with_values(fit_collectives(others, priors, gpus))
        mine = np.flatnonzero(sources == source)
        errors[mine] = collective_errors([rows[i] for i in mine.tolist()], constants, gpus)
    return errors


def interval_of_others(
    rows: Sequence[CollectiveRow], groups: Sequence[str], errors: Array, share: float
) -> Array:
    """Half-width in log [C] that contains ``share`` of the held-out errors of the group's *other* sources.

    If a group has only one source, all rows of other sources count.
    """
    sources, names = np.asarray([row.source for row in rows]), np.asarray(groups)
    size, spread = np.abs(errors), np.full(len(rows), np.nan)
    for source, name in {(row.source, group) for row, group in zip(rows, groups, strict=True)}:
        others = sources != source
        alike = others & (names == name)
        pool = alike if alike.any() else others
        half = weighted_quantile(size[pool], sources[pool].tolist(), share)
        spread[(sources == source) & (names == name)] = half
    return spread
