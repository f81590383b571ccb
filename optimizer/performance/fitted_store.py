"""Writes what a fit found: constants, intervals from held-out residuals, folds, and what they came from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np

from broker.domain.model_shape import GpuSpec, ModelShape
from optimizer.performance.arrays import as_array
from optimizer.performance.calibration import FITTED, Calibration, load_calibration
from optimizer.performance.evaluate import regime_group
from optimizer.performance.folds import FOLDS, SOURCE, Fitted, held_out_errors, load_folds
from optimizer.performance.intervals import memory_regime
from optimizer.performance.measured import data_sha256
from optimizer.performance.observations import Observation, observations
from optimizer.performance.rows import ReadRows, read_rows
from optimizer.performance.serving_rows import CROWDED, CROWDED_ABOVE, REGIMES

SHARE = 0.8
ENOUGH = 20
LEAST = 0.03
DIGITS = 5
METRIC_TABLES = {
    "output tokens/s": "tokens_per_s",
    "time per output token": "itl",
    "time to first token": "ttft",
}
TRAINING_KEYS = {
    ("training dense", "step time"): "training_dense",
    ("training moe", "step time"): "training_moe",
}


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
    read = read_rows(rows, calibration, gpus, models)
    observed = [o for o in observations(rows) if o.fair]
    errors = held_out_errors(SOURCE, read, observed, calibration, gpus)
    by_path: dict[str, list[float]] = defaultdict(list)
    for o, error in zip(observed, errors, strict=True):
        path = _memory_path(read, o) if o.metric == "peak memory" else _path(o)
        if path and np.isfinite(error):
            by_path[path].append(abs(float(error)))
    return {
        path: max(float(np.expm1(np.percentile(as_array(sizes), 100.0 * SHARE))), LEAST)
        for path, sizes in sorted(by_path.items())
        if len(sizes) >= ENOUGH
    }


def _memory_path(read: ReadRows, observation: Observation) -> str:
    return f"intervals.training_memory.{memory_regime(read.training[observation.place].software)}"


def _path(observation: Observation) -> str | None:
    named = TRAINING_KEYS.get((regime_group(observation), observation.metric))
    if named:
        return f"intervals.{named}"
    table = METRIC_TABLES.get(observation.metric)
    crowded = observation.regime.endswith(f">{CROWDED_ABOVE:.0f}")
    kind = CROWDED if crowded else REGIMES.get(observation.regime.split(" ")[0])
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
        *(f'"{path}" = {number!r}' for path, number in _rounded(intervals).items()),
    ]
    FITTED.write_text("\n".join(lines) + "\n")
    load_calibration.cache_clear()


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {path: float(f"{number:.{DIGITS - 1}e}") for path, number in values.items()}
