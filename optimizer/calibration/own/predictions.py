"""Predictions of rows, corrected by the user's own similar measured rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.own.evidence import MEASURES, describe, shrunk
from optimizer.calibration.tables.cells import Prediction
from optimizer.calibration.tables.rows import COLUMNS, ReadRows, predictions, read_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import Sides
from optimizer.performance.own.features import stack_features
from optimizer.performance.own.shift import OwnShift

SHIFTED: Mapping[str, tuple[str, float]] = {
    "pred_step_time_s": ("step time", 1.0),
    "pred_tokens_per_s_per_gpu": ("step time", -1.0),
    "pred_mfu": ("step time", -1.0),
    "pred_mem_gib": ("peak memory", 1.0),
    "pred_output_tokens_per_s_total": ("output tokens/s", -1.0),
    "pred_ttft_ms_p50": ("time to first token", 1.0),
    "pred_ttft_ms_p95": ("time to first token p95", 1.0),
    "pred_tpot_ms_p50": ("time per output token", 1.0),
    "pred_tpot_ms_p95": ("time per output token p95", 1.0),
}
ARRIVALS = "pred_output_tokens_per_s_total"
WORTH_SAYING = 0.01


def predict_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
    own: OwnShift | None = None,
) -> list[dict[str, str]]:
    """A dict for each row with the keys of ``COLUMNS``, in the order of ``rows``, corrected by the user's own
    similar rows.

    Given layout columns are used as they are, blank ones are searched. A row that cannot be predicted has
    blanks and the reason in ``note``.
    """
    read = read_rows(rows, calibration, gpus, models)
    found = predictions(read, calibration, gpus)
    if own:
        found = shifted(found, rows, read, gpus, own)
    return [
        {"id": row.get("id", "")} | {name: cells.get(name, "") for name in COLUMNS[1:]}
        for row, cells in zip(rows, (prediction.written() for prediction in found), strict=True)
    ]


def shifted(
    found: Sequence[Prediction],
    rows: Sequence[Mapping[str, str]],
    read: ReadRows,
    gpus: Mapping[str, GpuSpec],
    own: OwnShift,
) -> list[Prediction]:
    """Corrected predictions with narrower intervals."""
    moved = list(found)
    for column in SHIFTED:
        places = [p for p in range(read.count) if _may_move(moved[p], column, rows[p])]
        if places:
            _shift_column(column, places, moved, rows, read, gpus, own)
    return moved


def _may_move(prediction: Prediction, column: str, row: Mapping[str, str]) -> bool:
    """Whether own rows may correct the column: tokens/s of an open loop only reflect its arrivals."""
    if not np.isfinite(prediction.values.get(column, np.nan)):
        return False
    return not (column == ARRIVALS and row.get("regime", "").startswith("open"))


def _shift_column(
    column: str,
    places: Sequence[int],
    moved: list[Prediction],
    rows: Sequence[Mapping[str, str]],
    read: ReadRows,
    gpus: Mapping[str, GpuSpec],
    own: OwnShift,
) -> None:
    metric, sign = SHIFTED[column]
    measure = MEASURES[metric]
    described = [describe(place, rows, read, gpus) for place in places]
    asked = stack_features([(words | {"metric": measure.word}, numbers) for words, numbers in described])
    shift, shrink = own.log_shift(measure.block, asked), own.shrink(measure.block, asked)
    wide = [moved[place].spread[column] for place in places]
    below = shrunk(as_array([sides.below for sides in wide]), shrink, metric)
    above = shrunk(as_array([sides.above for sides in wide]), shrink, metric)
    for index, place in enumerate(places):
        factor = float(np.exp(sign * shift[index]))
        sides = Sides(float(below[index]), float(above[index]))
        moved[place] = _moved(moved[place], column, factor, sides)


def _moved(prediction: Prediction, column: str, factor: float, sides: Sides) -> Prediction:
    values = dict(prediction.values) | {column: prediction.values[column] * factor}
    note = prediction.note
    if abs(factor - 1.0) > WORTH_SAYING and "own measurements" not in note:
        note = "; ".join(part for part in (note, "shifted by own measurements") if part)
    return replace(prediction, values=values, spread=dict(prediction.spread) | {column: sides}, note=note)
