"""Rows of published tables → predictions: the columns of ``broker perf predict`` (contract, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.domain.model_shape import GpuSpec, ModelShape
from optimizer.performance import serving_rows, training_rows
from optimizer.performance.calibration import Calibration
from optimizer.performance.cells import Unreadable
from optimizer.performance.training_rows import blank

METRICS = training_rows.METRICS + serving_rows.METRICS
COLUMNS = ("id", *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")), "fits", "note")


def predict_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> list[dict[str, str]]:
    """One dict a row with the keys of ``COLUMNS``, in the order of ``rows``.

    Layout columns that are given are used as they are, blank ones searched. A row that cannot be
    predicted has blanks and the reason in ``note``.
    """
    found: list[dict[str, str]] = [{} for _ in rows]
    training: dict[int, training_rows.TrainingRow] = {}
    serving: dict[int, serving_rows.ServingRow] = {}
    for index, row in enumerate(rows):
        try:
            if is_serving(row):
                serving[index] = serving_rows.read_row(row, gpus, models)
            else:
                training[index] = training_rows.read_row(row, calibration, gpus, models)
        except Unreadable as reason:
            found[index] = blank(str(reason))
    trained = training_rows.predict_training(list(training.values()), calibration, gpus)
    served = serving_rows.predict_serving(list(serving.values()), calibration, gpus)
    found_by_index = {**dict(zip(training, trained, strict=True)), **dict(zip(serving, served, strict=True))}
    for index, values in found_by_index.items():
        found[index] = values
    return [
        {"id": row.get("id", "")} | {name: values.get(name, "") for name in COLUMNS[1:]}
        for row, values in zip(rows, found, strict=True)
    ]


def is_serving(row: Mapping[str, str]) -> bool:
    """By ``kind``; grid rows have none and are training rows."""
    return row.get("kind", "") == "serving" or (not row.get("kind") and bool(row.get("regime")))
