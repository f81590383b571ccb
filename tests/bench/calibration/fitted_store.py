"""Writes the result of a fit: constants, intervals from held-out residuals, the constants of each fold, and
their origin.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np

from broker.domain.planning.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.evaluate import regime_group
from optimizer.calibration.evaluation.held_out import FOLDS, SOURCE, held_out_errors, load_folds
from optimizer.calibration.table_constants import load_table_constants, other_sources
from optimizer.calibration.tables.observations import (
    BETWEEN,
    FIRST,
    RATE,
    RATIO_REGIME,
    Observation,
    loop_rates,
    observations,
    with_overload,
)
from optimizer.calibration.tables.rows import ReadRows, predictions, read_rows
from optimizer.calibration.tables.serving_reading import IN_PROCESS, ServingRow
from optimizer.calibration.tables.serving_rows import (
    CROWDED,
    CROWDED_ABOVE,
    FEW,
    FEW_UP_TO,
    RATIO_KEYS,
)
from optimizer.calibration.tables.serving_words import REGIMES
from optimizer.calibration.tables.training_rows import TrainingRow
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import FITTED, Calibration, load_calibration
from optimizer.performance.intervals import (
    BURST,
    FIRST_ALONE,
    MOE,
    OBJECTIVE,
    OLD,
    OVERLOAD,
    P95,
    memory_regime,
)
from tests.bench.calibration.bundled import data_sha256
from tests.bench.calibration.fit import weighted_quantile
from tests.bench.calibration.folds import Fitted

SHARE = 0.8
ENOUGH = 20
APART = {MOE: 100, OLD: ENOUGH}
DENSE_STEPS, ADAPTER_STEPS = "intervals.training_dense", "intervals.training_adapters"
OTHERS = " others"
LEAST = 0.005
DIGITS = 5
METRIC_TABLES = {
    RATE: "tokens_per_s",
    BETWEEN: "itl",
    FIRST: "ttft",
}
TRAINING_KEYS = {
    ("training dense", "step time"): "training_dense",
    ("training grid", "step time"): "training_grid",
    ("training moe", "step time"): "training_moe",
}

STEP_PATHS = frozenset({ADAPTER_STEPS, *(f"intervals.{name}" for name in TRAINING_KEYS.values())})
COMMAND = "python -m tests.bench.calibration fit"


def save_folds(fitted: Fitted) -> None:
    """Writes the constants of each fold in the form that ``load_folds`` reads."""
    folds = {
        kind: {name: _rounded(values) for name, values in by_name.items()}
        for kind, by_name in fitted.folds.items()
    }
    FOLDS.write_text(json.dumps(folds, indent=0, sort_keys=True) + "\n")
    load_folds.cache_clear()


def interval_half_widths(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> dict[str, float]:
    """Relative half-widths that contain 80 % of the rows held out by the stored folds, by path of the
    constant.
    """
    samples = interval_samples(rows, calibration, gpus, models)
    return {
        path: half_width(sizes, samples.get(regime_path(path)))
        for path, sizes in pooled(samples).items()
        if _has(calibration, path)
    }


def interval_samples(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> dict[str, list[tuple[str, float]]]:
    """Absolute held-out log errors with their sources, by path of the half-width.

    Rows of sources without a fold were never fitted, so the constants themselves are used for them.
    """
    read = read_rows(rows, calibration, gpus, models)
    fair = [o for o in observations(rows) if o.fair]
    observed = with_overload(fair, read, predictions(read, calibration, gpus)) + loop_rates(rows)
    observed = [o for o in observed if o.place in read.training or o.place in read.serving]
    errors = held_out_errors(SOURCE, read, observed, calibration, gpus)
    samples: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for o, error in zip(observed, errors, strict=True):
        path = _memory_path(read, o) if o.metric == "peak memory" else _path(o)
        if o.place in read.training:
            path = _of_stack(path, read.training[o.place])
        if path and np.isfinite(error):
            sample = o.source, _less_unseen(path, abs(float(error)), o.gpu, calibration)
            samples[path].append(sample)
            if o.place in read.serving:
                samples[f"{path}{_apart(read.serving[o.place])}"].append(sample)
    return samples


def _less_unseen(path: str, size: float, gpu: str, calibration: Calibration) -> float:
    """The absolute log error, less the amount by which intervals are widened for GPUs
    without measured rows."""
    intervals = calibration.intervals
    group = path.split(".")[1]
    more = intervals.serving_unseen_gpu if group in METRIC_TABLES.values() else 0.0
    more = intervals.training_unseen_gpu if path in STEP_PATHS else more
    known = gpu in calibration.calibrated_gpus
    return size if known else float(np.log1p(max(np.expm1(size) - more, 0.0)))


def _apart(row: ServingRow) -> str:
    """The kind of a serving row, which may have a half-width of its own."""
    if load_table_constants().is_old(row.engine) or row.early is not None:
        return OLD
    return MOE if row.model.is_moe else OTHERS


def _has(calibration: Calibration, path: str) -> bool:
    try:
        calibration.value(path)
    except KeyError:
        return False
    return True


def _of_stack(path: str | None, row: TrainingRow) -> str | None:
    """The path; steps of adapters have a half-width of their own, because they are less well known."""
    return ADAPTER_STEPS if path == DENSE_STEPS and row.recipe.adapters else path


def pooled(
    samples: Mapping[str, Sequence[tuple[str, float]]],
) -> dict[str, Sequence[tuple[str, float]]]:
    """The samples of each half-width, if there are enough. A kind with many rows has its own half-width, and
    the regime's is made of the remaining rows."""
    found = {}
    for path, sizes in sorted(samples.items()):
        kind = _kind(path)
        if path.endswith(OTHERS) or len(sizes) < APART.get(kind, ENOUGH):
            continue
        others = [] if kind else _rest(path, samples)
        found[path] = others if len(others) >= ENOUGH else sizes
    return found


def _rest(path: str, samples: Mapping[str, Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """The samples of a path that belong to no kind with a half-width of its own."""
    few = [kind for kind, least in APART.items() if len(samples.get(f"{path}{kind}", ())) < least]
    return [sample for kind in (OTHERS, *few) for sample in samples.get(f"{path}{kind}", ())]


def _kind(path: str) -> str:
    """The last part of a path if it names a kind with a half-width of its own; empty for a regime's path."""
    return next((kind for kind in APART if path.endswith(kind)), "")


def regime_path(path: str) -> str:
    """The path of the regime to which the half-width of ``path`` belongs."""
    return path.removesuffix(_kind(path))


def half_width(
    sizes: Sequence[tuple[str, float]], regime: Sequence[tuple[str, float]] | None = None
) -> float:
    """80th percentile of the absolute log errors, given with their sources, as a relative half-width.

    Sources that measured something else (``[not_in_intervals]``) count only if there is no other. ``regime``:
    all log errors of the regime that these are part of; a source weighs the square root of its number of rows
    there.
    """
    used = [sample for sample in sizes if sample[0] not in other_sources()] or list(sizes)
    among = [source for source, _ in (used if regime is None else regime)]
    errors = as_array([error for _, error in used])
    held = weighted_quantile(errors, [source for source, _ in used], SHARE, among)
    return max(float(np.expm1(held)), LEAST)


def _memory_path(read: ReadRows, observation: Observation) -> str:
    row = read.training[observation.place]
    return f"intervals.training_memory.{memory_regime(row.software, row.recipe.adapters)}"


def _path(observation: Observation) -> str | None:
    named = TRAINING_KEYS.get((regime_group(observation), observation.metric))
    if named:
        return f"intervals.{named}"
    beyond = observation.regime.startswith(OVERLOAD)
    if observation.regime.endswith(RATIO_REGIME):
        end = f"_{OVERLOAD}" if beyond else ""
        return f"intervals.percentile_ratio.{RATIO_KEYS[observation.column]}{end}"
    table = METRIC_TABLES.get(observation.metric.removesuffix(" p95"))
    if beyond:
        return f"intervals.{table}.{OVERLOAD}" if table else None
    if observation.regime == "open_loop_slo":
        end = P95 if observation.metric.endswith(" p95") else ""
        return f"intervals.{table}.{OBJECTIVE}{end}" if table else None
    if observation.regime == "offline_burst":
        return f"intervals.{table}.{BURST}" if table else None
    if observation.regime == IN_PROCESS:
        return f"intervals.{table}.{FIRST_ALONE}" if table else None
    ends = {f">{CROWDED_ABOVE:.0f}": CROWDED, f"≤{FEW_UP_TO:.0f}": FEW}
    plain = REGIMES.get(observation.regime.split(" ")[0])
    kind = next((kind for end, kind in ends.items() if observation.regime.endswith(end)), plain)
    return f"intervals.{table}.{kind}" if table and kind else None


def save_fitted(values: Mapping[str, float], intervals: Mapping[str, float], on: date) -> None:
    """``config/performance_fitted.toml``."""
    lines = [
        f"# Written by `{COMMAND}`: constants of performance.toml fitted to fixtures/performance,",
        "# and half-widths of the 80 % interval from residuals held out by source. Not edited by hand.",
        f'data_sha256 = "{data_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        f'command = "{COMMAND}"',
        "",
        "[values]",
        *(f'"{path}" = {number!r}' for path, number in _rounded(values).items()),
        "",
        "[intervals]",
        *(f'"{path}" = {number!r}' for path, number in _rounded(intervals, up=True).items()),
    ]
    FITTED.write_text("\n".join(lines) + "\n")
    load_calibration.cache_clear()


def _rounded(values: Mapping[str, float], up: bool = False) -> dict[str, float]:
    """Five significant digits; ``up`` rounds up, for half-widths that must contain an error exactly at their
    end.
    """
    least = 0.5 * 10.0 ** (1 - DIGITS) if up else 0.0
    return {path: float(f"{number * (1.0 + least):.{DIGITS - 1}e}") for path, number in values.items()}
