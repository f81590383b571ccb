"""Held-out predictions: every row is predicted by constants that were fitted without its source, model or
GPU.

The constants of all folds are fitted and stored together with the main ones. The constants of a fold are
those of the same fit with weight 0 for the rows of the fold.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from broker.domain.planning.model_shape import GpuSpec, ModelShape
from optimizer.calibration.fitting.cold_starts import cold_starts_table, read_cold_starts
from optimizer.calibration.fitting.collectives import collectives_table, read_collectives
from optimizer.calibration.fitting.gauss_newton import (
    Problem,
    fit,
    fit_settings,
    log_errors,
    read_parameters,
    refit,
    subsampled,
    weights_of,
)
from optimizer.calibration.fitting.table_fit import fit_table
from optimizer.calibration.tables.bundled import cold_start_rows, sweep_rows
from optimizer.calibration.tables.observations import RATIO_REGIME, Observation, observations
from optimizer.calibration.tables.rows import ReadRows, is_serving, read_rows
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import CONFIG, FITTED, Calibration
from optimizer.performance.own.features import family

FOLDS = CONFIG.with_name("performance_folds.json")
SOURCE, MODEL, GPU = "source", "model", "gpu"
LEFT_OUT = (SOURCE, MODEL, GPU)
GROUPS = ("training", "serving")


@dataclass(frozen=True, slots=True)
class Fitted:
    """Fitted constants by path, and the constants of each fold: ``folds[kind][name]``."""

    values: Mapping[str, float]
    folds: Mapping[str, Mapping[str, Mapping[str, float]]]


def fold_name(kind: str, observation: Observation) -> str:
    """The fold of an observation: its source, its model's family, or its GPU."""
    if kind == MODEL:
        return family(observation.model)
    return observation.source if kind == SOURCE else observation.gpu


def fit_all(
    rows: Sequence[Mapping[str, str]],
    priors: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Fitted:
    """The constants fitted to ``rows``, and those of every fold.

    Links, fabrics and cold starts are fitted first, to tables of their own.
    """
    values = fit_table(collectives_table(read_collectives(sweep_rows(), gpus, priors), gpus), priors)
    values |= fit_table(cold_starts_table(read_cold_starts(cold_start_rows())), priors)
    priors = priors.with_values(values)
    read = read_rows(rows, priors, gpus, models)
    readable = set(read.training) | set(read.serving)
    observed = [o for o in observations(rows) if o.place in readable]
    folds: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in LEFT_OUT}
    for group in GROUPS:
        serving = group == "serving"
        mine = [o for o in observed if is_serving(rows[o.place]) is serving]
        problem = Problem(read, tuple(mine), read_parameters(group), priors, gpus)
        _fit_group(problem, values, folds)
    return Fitted(values, folds)


def _fit_group(
    problem: Problem, values: dict[str, float], folds: dict[str, dict[str, dict[str, float]]]
) -> None:
    ignored = fit_settings()["not_fitted"]
    used = problem.only(subsampled([o for o in problem.observed if _has_weight(o, ignored)]))
    weights = weights_of(used)
    shift, slopes = fit(used, weights)
    values.update(used.values(shift))
    for kind in LEFT_OUT:
        names = np.asarray([fold_name(kind, o) for o in used.observed])
        for name in sorted(set(names.tolist())):
            found = refit(used, weights.without(names == name), shift, slopes)
            folds[kind].setdefault(name, {}).update(used.values(found))


def _has_weight(observation: Observation, ignored: Collection[str]) -> bool:
    """Whether an observation has weight in the fit. Open loops have none, because their error jumps at
    saturation; tails have none, because they follow from the medians.
    """
    listed = observation.source in ignored or observation.regime.startswith(("open_loop", RATIO_REGIME))
    return observation.fair and not listed


def held_out_errors(
    kind: str,
    read: ReadRows,
    observed: Sequence[Observation],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
) -> Array:
    """log(predicted / measured) [O] with the constants of each observation's own fold.

    An observation without a fold was never fitted, so the main constants are used for it.
    """
    folds = load_folds()[kind]
    names = np.asarray([fold_name(kind, o) for o in observed])
    errors = np.full(len(observed), np.nan)
    for name in sorted(set(names.tolist())):
        mine = np.flatnonzero(names == name)
        part = [observed[i] for i in mine.tolist()]
        constants = calibration.with_values(folds.get(name, {}))
        errors[mine] = log_errors(read.at({o.place for o in part}), part, constants, gpus)
    return as_array(errors)


@cache
def load_folds() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """The folds of ``config/performance_folds.json``; none before the first fit."""
    if not FOLDS.exists():
        return {kind: {} for kind in LEFT_OUT}
    stored: dict[str, dict[str, dict[str, float]]] = json.loads(FOLDS.read_text())
    return stored


def fitted_sha256() -> str:
    """The fingerprint of the data that the stored constants were fitted to."""
    return str(tomllib.loads(FITTED.read_text())["data_sha256"])
