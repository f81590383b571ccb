"""Held-out predictions: every row is predicted by constants that were fitted without its source, model or
GPU.

The constants of each fold are stored beside the main ones, by the fit that wrote those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.tables.observations import Observation, log_errors
from optimizer.calibration.tables.rows import ReadRows
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import CONFIG, Calibration
from optimizer.performance.constants.spread import family

FOLDS = CONFIG.with_name("performance_folds.json")
SOURCE, MODEL, GPU = "source", "model", "gpu"


def fold_name(kind: str, observation: Observation) -> str:
    """The fold of an observation: its source, its model's family, or its GPU."""
    if kind == MODEL:
        return family(observation.model)
    return observation.source if kind == SOURCE else observation.gpu


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
    """The constants by what was held out and its name, from ``config/performance_folds.json``."""
    stored: dict[str, dict[str, dict[str, float]]] = json.loads(FOLDS.read_text())
    return stored
