"""The fit of all constants, and the same fit without each source, family of models and GPU.

The constants of a fold are those of the same fit with weight 0 for the rows of the fold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.held_out import GPU, MODEL, SOURCE, fold_name
from optimizer.calibration.table_constants import fit_settings
from optimizer.calibration.tables.observations import RATIO_REGIME, Observation, observations
from optimizer.calibration.tables.rows import is_serving, read_rows
from optimizer.performance.constants.calibrated import Calibration
from tests.bench.calibration.bundled import sweep_rows
from tests.bench.calibration.collective_fit import fit_collectives
from tests.bench.calibration.collectives import read_collectives
from tests.bench.calibration.fit import Problem, fit, read_parameters, refit, subsampled, weights_of

LEFT_OUT = (SOURCE, MODEL, GPU)
GROUPS = ("training", "serving")


@dataclass(frozen=True, slots=True)
class Fitted:
    """Fitted constants by path, and the constants of each fold: ``folds[kind][name]``."""

    values: Mapping[str, float]
    folds: Mapping[str, Mapping[str, Mapping[str, float]]]


def fit_all(
    rows: Sequence[Mapping[str, str]],
    priors: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Fitted:
    """The constants fitted to ``rows``, and those of every fold.

    Links and fabrics are fitted first, to a table of their own.
    """
    values = fit_collectives(read_collectives(sweep_rows(), gpus, priors), priors, gpus)
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
