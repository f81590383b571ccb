"""How far predictions are from measured rows: by source and regime, by what was held out, over the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.model_shape import GpuSpec, ModelShape
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.calibration import Calibration
from optimizer.performance.fitting import fit_settings, log_errors
from optimizer.performance.folds import GPU, MODEL, SOURCE, held_out_errors, load_folds
from optimizer.performance.observations import Observation, identifier_front, observations
from optimizer.performance.ranking import cell_correlations
from optimizer.performance.rows import ReadRows, is_serving, predictions, read_rows


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Absolute percentage errors of one metric over the rows of one source and regime, held out by source.

    ``bias``: median of predicted over measured. ``coverage``: share of measured values inside the 80 %
    interval. ``unpredicted``: rows with a measured value and no prediction, or over capacity.
    """

    source: str
    regime: str
    metric: str
    rows: int
    mean_percent: float
    median_percent: float
    p90_percent: float
    bias: float
    coverage: float
    unpredicted: int
    noise_floor_percent: float


@dataclass(frozen=True, slots=True)
class HeldOutLine:
    """Median errors of a regime, in percent: with all rows fitted, and without the source, the model's
    family, the GPU of each row. ``coverage`` as in ``ErrorLine``, held out by source."""

    regime: str
    metric: str
    rows: int
    fitted_percent: float
    by_source_percent: float
    by_model_percent: float
    by_gpu_percent: float
    coverage: float
    noise_floor_percent: float


@dataclass(frozen=True, slots=True)
class GridReport:
    """Runs of one model over layouts: right decisions "it fits" of all, and rank correlation of predicted
    and measured rates within each cell of model and GPU count (``CELL_LEAST`` runs or more)."""

    fit_right: int
    fit_told: int
    cells: int
    spearman_median: float
    spearman_least: float
    spearman_above_09: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything ``broker perf evaluate`` prints."""

    lines: tuple[ErrorLine, ...]
    held_out: tuple[HeldOutLine, ...]
    grid: GridReport | None


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Log errors [O] of fair observations by what was held out, and the intervals' half-widths in log."""

    observed: tuple[Observation, ...]
    groups: tuple[str, ...]
    fitted: Array
    held_out: Mapping[str, Array]
    spread: Array


def evaluate_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Report:
    """Errors of ``rows``; a row whose source was fitted is predicted without it."""
    read = read_rows(rows, calibration, gpus, models)
    evidence = _evidence(rows, read, calibration, gpus)
    lines: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    regimes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, o in enumerate(evidence.observed):
        lines[o.source, o.regime, o.metric].append(index)
        regimes[evidence.groups[index], o.metric].append(index)
    return Report(
        tuple(_error_line(key, members, evidence) for key, members in sorted(lines.items())),
        tuple(_held_out_line(key, members, evidence) for key, members in sorted(regimes.items())),
        _grid(rows, read, calibration, gpus),
    )


def _evidence(
    rows: Sequence[Mapping[str, str]], read: ReadRows, calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> _Evidence:
    observed = tuple(o for o in observations(rows) if o.fair)
    found = predictions(read, calibration, gpus)
    spread = [found[o.place].spread.get(o.column, np.nan) for o in observed]
    return _Evidence(
        observed,
        tuple(regime_group(o) for o in observed),
        log_errors(read, observed, calibration, gpus),
        {kind: held_out_errors(kind, read, observed, calibration, gpus) for kind in (SOURCE, MODEL, GPU)},
        np.log1p(as_array(spread)),
    )


def regime_group(observation: Observation) -> str:
    """Regimes that are judged together: training by kind of model, serving by kind of load."""
    if observation.metric in {"step time", "peak memory"}:
        word = observation.regime.split(" ")[0]
        return f"training {'moe' if 'moe' in word else 'grid' if word == 'grid' else 'dense'}"
    return observation.regime


def noise_floor_percent(metric: str, group: str) -> float:
    """What two measurements of the same configuration differ by, in percent."""
    table = fit_settings()["noise_floor"]
    kind = "moe" if group.endswith("moe") else "dense"
    plain = metric.removesuffix(" p95")
    return 100.0 * float(table.get(f"{metric} {kind}", table.get(plain, 0.0)))


def _percent(errors: Array) -> Array:
    """Absolute errors in percent of the measured value."""
    return 100.0 * np.abs(np.expm1(errors))


def _error_line(key: tuple[str, str, str], members: Sequence[int], evidence: _Evidence) -> ErrorLine:
    errors = evidence.held_out[SOURCE][members]
    known = np.isfinite(errors)
    off = _percent(errors[known]) if known.any() else as_array([np.nan])
    return ErrorLine(
        source=key[0],
        regime=key[1],
        metric=key[2],
        rows=int(known.sum()),
        mean_percent=float(np.mean(off)),
        median_percent=float(np.median(off)),
        p90_percent=float(np.percentile(off, 90)),
        bias=float(np.exp(np.median(errors[known]))) if known.any() else float("nan"),
        coverage=_coverage(errors, evidence.spread[members]),
        unpredicted=int((~known).sum()),
        noise_floor_percent=noise_floor_percent(key[2], evidence.groups[members[0]]),
    )


def _held_out_line(key: tuple[str, str], members: Sequence[int], evidence: _Evidence) -> HeldOutLine:
    errors = evidence.held_out[SOURCE][members]
    return HeldOutLine(
        regime=key[0],
        metric=key[1],
        rows=int(np.isfinite(errors).sum()),
        fitted_percent=_median(evidence.fitted[members]),
        by_source_percent=_median(errors),
        by_model_percent=_median(evidence.held_out[MODEL][members]),
        by_gpu_percent=_median(evidence.held_out[GPU][members]),
        coverage=_coverage(errors, evidence.spread[members]),
        noise_floor_percent=noise_floor_percent(key[1], key[0]),
    )


def _median(errors: Array) -> float:
    known = errors[np.isfinite(errors)]
    return float(np.median(_percent(known))) if known.size else float("nan")


def _coverage(errors: Array, spread: Array) -> float:
    known = np.isfinite(errors)
    return float(np.mean(np.abs(errors[known]) <= spread[known])) if known.any() else float("nan")


def _grid(
    rows: Sequence[Mapping[str, str]], read: ReadRows, calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> GridReport | None:
    told = [place for place, row in enumerate(rows) if row.get("status") and not is_serving(row)]
    if not told:
        return None
    folds = load_folds()[SOURCE]
    names = {identifier_front(rows[p]) for p in told}
    held_out = calibration.with_values(folds.get(names.pop(), {}) if len(names) == 1 else {})
    found = predictions(read.at(told), held_out, gpus)
    decided = [(rows[p]["status"] == "ok", found[p].fits) for p in told if found[p].fits is not None]
    ranks = cell_correlations(rows, found)
    known = as_array(ranks) if ranks else as_array([np.nan])
    return GridReport(
        fit_right=sum(ran is fits for ran, fits in decided),
        fit_told=len(decided),
        cells=len(ranks),
        spearman_median=float(np.median(known)),
        spearman_least=float(np.min(known)),
        spearman_above_09=int(np.sum(known >= 0.9)),
    )
