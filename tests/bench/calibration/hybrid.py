"""Cross-validation of the Gaussian process: prediction errors when similar rows were measured.

Protocol. The model's constants are those of the fold without the row's source. The correction is trained on
the residuals of the other rows, in five folds, with whole *configuration groups* held out: a group has the
rows of one source, model, GPU, engine class, GPU count, tensor and pipeline degree, which differ in load,
lengths, precision and release. A group is never on both sides. There are two harder protocols: every (model,
GPU) pair is held out as a whole; or the correction only sees rows of the row's own source (a user with one
benchmark).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from api.cli.accuracy.accuracy_tables import short_metric, short_regime
from api.cli.plain_table import PlainTable, text_lines
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.errors import inside, noise_floor_percent
from optimizer.calibration.evaluation.evaluate import regime_group
from optimizer.calibration.evaluation.held_out import SOURCE, held_out_errors
from optimizer.calibration.own.evidence import MEASURES, features_of, is_evidence, residuals_of, shrunk
from optimizer.calibration.own.rows import leave_out
from optimizer.calibration.tables.observations import Observation, observations
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.own.features import Features
from optimizer.performance.own.gaussian_process import (
    OUTLIER,
    Kernel,
    correlation,
    inverse_of,
    narrowed,
)
from tests.bench.calibration.kernel_fit import PAIR, configuration_groups, groups_of

FOLDS = 5
SPLITS = ("group", "pair", "own")


@dataclass(frozen=True, slots=True)
class HybridLine:
    """Median errors of a regime in percent: of the model (held out by source), and with rows of other
    configuration groups, of other (model, GPU) pairs, or of the row's own source only.

    ``coverage``: share of measured values within the narrowed 80 % interval (first protocol).
    """

    regime: str
    metric: str
    rows: int
    model_percent: float
    group_percent: float
    pair_percent: float
    own_percent: float
    coverage: float
    narrower: float
    noise_floor_percent: float


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Remaining errors in log [O] by protocol, and sides of intervals [O, 2] before and after the
    correction."""

    errors: Mapping[str, Array]
    before: Array
    after: Array


def evaluate_hybrid(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    kernels: Mapping[str, Kernel],
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> tuple[HybridLine, ...]:
    """One line per regime and metric, in the order of ``HeldOutLine``."""
    read = read_rows(rows, calibration, gpus, models)
    observed = [o for o in observations(rows) if is_evidence(o)]
    errors = held_out_errors(SOURCE, read, observed, calibration, gpus)
    found = predictions(read, calibration, gpus)
    lines: list[HybridLine] = []
    for metric in dict.fromkeys(o.metric for o in observed):
        places = [i for i, o in enumerate(observed) if o.metric == metric and np.isfinite(errors[i])]
        mine = [observed[i] for i in places]
        wide = [found[o.place].spread[o.column] for o in mine]
        wide = wide if MEASURES[metric].sign > 0 else [sides.inverse for sides in wide]
        spread = as_array([(sides.below, sides.above) for sides in wide])
        features = features_of(mine, rows, read, gpus)
        kernel = kernels[MEASURES[metric].block]
        residuals = residuals_of(mine, errors[places])
        left = _remaining(metric, kernel, features, residuals, spread)
        lines += _lines(metric, mine, residuals, left)
    return tuple(sorted(lines, key=lambda line: (line.regime, line.metric)))


def _remaining(metric: str, kernel: Kernel, features: Features, residuals: Array, sides: Array) -> _Remaining:
    """The remaining ``residuals`` under each protocol."""
    known = np.clip(residuals, -OUTLIER, OUTLIER)
    covariance = kernel.variance * correlation(features, features, kernel.lengths)
    groups, inverse = configuration_groups(features) % FOLDS, inverse_of(covariance, kernel.noise)
    mean, variance = leave_out(inverse, known, groups)
    pairs, _ = leave_out(inverse, known, groups_of(features, PAIR) % FOLDS)
    own = np.zeros_like(known)
    for members in _sources(features):
        block = inverse_of(covariance[np.ix_(members, members)], kernel.noise)
        own[members] = leave_out(block, known[members], groups[members])[0]
    errors = {"group": residuals - mean, "pair": residuals - pairs, "own": residuals - own}
    return _Remaining(errors, sides, shrunk(sides, narrowed(variance, kernel)[:, None], metric))


def _sources(features: Features) -> list[NDArray[np.intp]]:
    numbers = groups_of(features, ("source",))
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def _lines(metric: str, mine: Sequence[Observation], residuals: Array, left: _Remaining) -> list[HybridLine]:
    regimes: dict[str, list[int]] = defaultdict(list)
    for index, o in enumerate(mine):
        regimes[regime_group(o)].append(index)
    return [_line(regime, metric, members, residuals, left) for regime, members in regimes.items()]


def _line(regime: str, metric: str, members: Sequence[int], residuals: Array, left: _Remaining) -> HybridLine:
    after = left.after[members]
    sign = MEASURES[metric].sign
    group, pair, own = (_median(sign * left.errors[name][members]) for name in SPLITS)
    return HybridLine(
        regime=regime,
        metric=metric,
        rows=len(members),
        model_percent=_median(sign * residuals[members]),
        group_percent=group,
        pair_percent=pair,
        own_percent=own,
        coverage=float(np.mean(inside(-left.errors["group"][members], after))),
        narrower=float(np.median(after.sum(axis=1) / left.before[members].sum(axis=1))),
        noise_floor_percent=noise_floor_percent(metric, regime),
    )


def _median(left: Array) -> float:
    """Median absolute error in percent of the measured value; ``left`` is log(measured / predicted)."""
    return float(np.median(100.0 * np.abs(np.expm1(-left))))


def print_hybrid(console: Console, lines: Sequence[HybridLine]) -> None:
    """Prints, by regime, held-out medians of predictions that use measured rows nearby."""
    if not lines:
        return
    console.print("\nWith measured rows nearby", style="bold")
    console.print("rows of other configurations; of other (model, GPU) pairs; of the same source alone.")
    console.print("in 80 %: rows inside the shrunk interval; width: what is left of the interval.")
    rows = tuple(_hybrid_row(line) for line in lines)
    headers = ("regime", "metric", "rows", "model", "config", "pair", "own", "in 80 %", "width")
    for text in text_lines(PlainTable(headers, rows, 2), console.width):
        console.print(text, markup=False, highlight=False)


def _hybrid_row(line: HybridLine) -> tuple[str, ...]:
    errors = (line.model_percent, line.group_percent, line.pair_percent, line.own_percent)
    shares = (f"{100 * share:.0f}" for share in (line.coverage, line.narrower))
    names = short_regime(line.regime), short_metric(line.metric)
    return *names, str(line.rows), *(f"{error:.1f}" for error in errors), *shares
