"""Writes what a fit found: constants, intervals from held-out residuals, folds, and what they came from."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from broker.domain.planning.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.evaluate import regime_group
from optimizer.calibration.fitting.folds import FOLDS, SOURCE, Fitted, held_out_errors, load_folds
from optimizer.calibration.fitting.gauss_newton import held_by_sources, other_sources
from optimizer.calibration.table_constants import load_table_constants
from optimizer.calibration.tables.bundled import data_sha256
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
from optimizer.performance.constants.calibrated import CONFIG, FITTED, Calibration, load_calibration
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
MEASURED = "intervals"

Value = float | str | Mapping[str, float]


def save_folds(fitted: Fitted) -> None:
    """The folds' constants, as ``load_folds`` reads them."""
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
    """Relative half-widths that hold 80 % of rows held out by the stored folds, by path of the constant."""
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
    """Sizes of held-out log errors with their sources, by path of the half-width that they belong to.

    Rows of sources that no fold knows were never fitted, and are held out as they stand.
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
    """The size of a log error without what GPUs without rows of their own add to the width."""
    intervals = calibration.intervals
    group = path.split(".")[1]
    more = intervals.serving_unseen_gpu if group in METRIC_TABLES.values() else 0.0
    more = intervals.training_unseen_gpu if path in STEP_PATHS else more
    known = gpu in calibration.calibrated_gpus
    return size if known else float(np.log1p(max(np.expm1(size) - more, 0.0)))


def _apart(row: ServingRow) -> str:
    """The kind of a serving row that may have a half-width of its own."""
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
    """Adapters are known less well."""
    return ADAPTER_STEPS if path == DENSE_STEPS and row.recipe.adapters else path


def pooled(
    samples: Mapping[str, Sequence[tuple[str, float]]],
) -> dict[str, Sequence[tuple[str, float]]]:
    """The samples that each half-width is made of, where there are enough. Kinds of rows that are many have
    their own half-width, and the rest's is made without them."""
    found = {}
    for path, sizes in sorted(samples.items()):
        kind = _kind(path)
        if path.endswith(OTHERS) or len(sizes) < APART.get(kind, ENOUGH):
            continue
        others = [] if kind else _rest(path, samples)
        found[path] = others if len(others) >= ENOUGH else sizes
    return found


def _rest(path: str, samples: Mapping[str, Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """The samples of a path that no kind with a half-width of its own holds."""
    few = [kind for kind, least in APART.items() if len(samples.get(f"{path}{kind}", ())) < least]
    return [sample for kind in (OTHERS, *few) for sample in samples.get(f"{path}{kind}", ())]


def _kind(path: str) -> str:
    """The end of a path that names a kind with a half-width of its own; blank where it is a regime's."""
    return next((kind for kind in APART if path.endswith(kind)), "")


def regime_path(path: str) -> str:
    """The path of the regime that a half-width is of, or that its kind of rows is a part of."""
    return path.removesuffix(_kind(path))


def half_width(
    sizes: Sequence[tuple[str, float]], regime: Sequence[tuple[str, float]] | None = None
) -> float:
    """80th percentile of the sizes of log errors, given with their sources, as a relative half-width.

    Sources that measured something else (``[not_in_intervals]``) count where there is no other. ``regime``:
    all sizes of the regime that these are part of, among which a source counts as the root of its rows.
    """
    used = [sample for sample in sizes if sample[0] not in other_sources()] or list(sizes)
    among = [source for source, _ in (used if regime is None else regime)]
    errors = as_array([error for _, error in used])
    held = held_by_sources(errors, [source for source, _ in used], SHARE, among)
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
        "# Written by `broker perf fit`: constants of performance.toml fitted to fixtures/performance, and",
        "# half-widths of the 80 % interval from residuals held out by source. Not edited by hand.",
        f'data_sha256 = "{data_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        'command = "broker perf fit"',
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
    """Five digits; ``up`` for half-widths, which end at an error that they hold."""
    least = 0.5 * 10.0 ** (1 - DIGITS) if up else 0.0
    return {path: float(f"{number * (1.0 + least):.{DIGITS - 1}e}") for path, number in values.items()}


@dataclass(frozen=True, slots=True)
class SourcedConstant:
    """One constant of ``group``: a number, a word, or a table of numbers by architecture, format or kind.

    ``fitted``: what the fit moved, a number for a number and the entries that moved for a table; None where
    it moved nothing.
    """

    group: str
    name: str
    prior: Value
    fitted: float | Mapping[str, float] | None
    source: str


def sourced_constants() -> tuple[SourcedConstant, ...]:
    """Every constant, in the order of the file; half-widths of intervals are measured and not among them."""
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
