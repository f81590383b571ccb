"""How far predictions are from measured rows, by source and regime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.model_shape import GpuSpec, ModelShape
from optimizer.performance.calibration import Calibration
from optimizer.performance.rows import is_serving, predict_rows

UNSTABLE = "over capacity"
TRAINING_PAIRS = (
    ("step time", "pred_step_time_s", ("step_time_s",)),
    ("peak memory", "pred_mem_gib", ("mem_gib", "mem_gb")),
)
SERVING_PAIRS = (
    ("output tokens/s", "pred_output_tokens_per_s_total", ("output_tokens_per_s_total",)),
    ("time per output token", "pred_tpot_ms_p50", ("tpot_ms_p50", "tpot_ms_mean")),
    ("time to first token", "pred_ttft_ms_p50", ("ttft_ms_p50", "ttft_ms_mean")),
    ("time per output token p95", "pred_tpot_ms_p95", ("tpot_ms_p95",)),
    ("time to first token p95", "pred_ttft_ms_p95", ("ttft_ms_p95",)),
)


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Absolute percentage errors of one metric over the rows of one source and regime.

    ``bias``: median of predicted over measured. ``coverage``: share of measured values inside the 80 %
    interval. ``unpredicted``: rows with a measured value and no prediction.
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


@dataclass(frozen=True, slots=True)
class _Pair:
    source: str
    regime: str
    metric: str
    measured: float
    predicted: float
    low: float
    high: float


def evaluate_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> tuple[ErrorLine, ...]:
    """Errors of every (source, regime, metric) that ``rows`` measure, sorted; rows over capacity left out."""
    groups: dict[tuple[str, str, str], list[_Pair]] = {}
    for row, predicted in zip(rows, predict_rows(rows, calibration, gpus, models), strict=True):
        for pair in _pairs(row, predicted):
            groups.setdefault((pair.source, pair.regime, pair.metric), []).append(pair)
    return tuple(_line(key, groups[key]) for key in sorted(groups))


def fit_decisions(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> tuple[int, int]:
    """Right and all decisions "it fits" over rows whose ``status`` says whether the run went through."""
    told = [row for row in rows if row.get("status")]
    predictions = predict_rows(told, calibration, gpus, models)
    pairs = [
        (row["status"] == "ok", predicted["fits"] == "true")
        for row, predicted in zip(told, predictions, strict=True)
        if predicted["fits"]
    ]
    return sum(ran == fits for ran, fits in pairs), len(pairs)


def _pairs(row: Mapping[str, str], predicted: Mapping[str, str]) -> Iterator[_Pair]:
    serving = is_serving(row)
    if predicted["note"].startswith(UNSTABLE) or (not serving and row.get("usable_step") == "0"):
        return
    source = row.get("source", "") if serving else _short(row.get("id", ""))
    regime = row.get("regime", "") if serving else f"{row.get('arch') or 'dense'} {row.get('precision', '')}"
    for metric, column, measured_columns in SERVING_PAIRS if serving else TRAINING_PAIRS:
        measured = _first(row, measured_columns)
        if measured is not None:
            values = [_value(predicted.get(f"{column}{end}", "")) for end in ("", "_low", "_high")]
            yield _Pair(source, regime, metric, measured, values[0], values[1], values[2])


def _short(identifier: str) -> str:
    """Rows of one table share the front of their id."""
    return identifier.rsplit("-", 1)[0]


def _first(row: Mapping[str, str], names: Sequence[str]) -> float | None:
    for name in names:
        value = _value(row.get(name) or "")
        if value > 0:
            return value
    return None


def _value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _line(key: tuple[str, str, str], pairs: Sequence[_Pair]) -> ErrorLine:
    known = [pair for pair in pairs if np.isfinite(pair.predicted)]
    ratio = np.asarray([pair.predicted / pair.measured for pair in known] or [np.nan])
    inside = [pair.low <= pair.measured <= pair.high for pair in known]
    error = 100.0 * np.abs(ratio - 1.0)
    return ErrorLine(
        source=key[0],
        regime=key[1],
        metric=key[2],
        rows=len(known),
        mean_percent=float(np.mean(error)),
        median_percent=float(np.median(error)),
        p90_percent=float(np.percentile(error, 90)),
        bias=float(np.median(ratio)),
        coverage=float(np.mean(inside)) if inside else float("nan"),
        unpredicted=len(pairs) - len(known),
    )
