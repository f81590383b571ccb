"""Ranking of layouts: rank correlation of predicted and measured rates within cells of the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.calibration.tables.cells import Prediction
from optimizer.performance.arrays import Array, Mask, as_array

CELL_LEAST = 8
RANKED = 0.9
STALLED = 2.0
NODE = 8
RATE = "pred_tokens_per_s_per_gpu"


def spearman(a: Array, b: Array) -> float:
    """Spearman's rank correlation of two samples of equal size; ties have their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Array = last - (counts - 1) / 2.0
    return means[place]


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs [R] of one model on one GPU count: measured and predicted tokens/s per GPU. ``apart``: pipelines
    over several nodes.
    """

    measured: Array
    predicted: Array
    apart: Mask

    @property
    def stalled(self) -> Mask:
        """Pipelines over several nodes that took at least twice the predicted time."""
        return self.apart & (self.predicted >= STALLED * self.measured)


def cells_of(rows: Sequence[Mapping[str, str]], found: Sequence[Prediction]) -> list[Cell]:
    """The cells of a model and GPU count that have at least ``CELL_LEAST`` runs."""
    cells: dict[tuple[str, str], list[tuple[float, float, bool]]] = defaultdict(list)
    for row, prediction in zip(rows, found, strict=True):
        predicted = prediction.values.get(RATE)
        if row.get("status") == "ok" and row.get("tokens_per_s_per_gpu") and predicted is not None:
            gpus = row.get("gpus_total") or "0"
            apart = float(row.get("pp") or 1) > 1 and float(gpus) > float(row.get("gpus_per_node") or NODE)
            cells[row.get("model", ""), gpus].append((float(row["tokens_per_s_per_gpu"]), predicted, apart))
    enough = [as_array(runs) for runs in cells.values() if len(runs) >= CELL_LEAST]
    return [Cell(runs[:, 0], runs[:, 1], runs[:, 2] > 0) for runs in enough]


def cell_correlations(cells: Sequence[Cell]) -> list[float]:
    """Spearman's correlation of measured and predicted tokens/s in each cell."""
    return [spearman(cell.measured, cell.predicted) for cell in cells]


def steady_correlations(cells: Sequence[Cell]) -> list[float]:
    """The same over runs that did not stall, in each cell with at least ``CELL_LEAST`` of them."""
    steady = [~cell.stalled for cell in cells]
    return [
        spearman(cell.measured[kept], cell.predicted[kept])
        for cell, kept in zip(cells, steady, strict=True)
        if kept.sum() >= CELL_LEAST
    ]


def reachable_correlations(cells: Sequence[Cell]) -> list[float]:
    """The correlation in each cell of a model that is exact except for stalled runs: the best that a model
    without stalls can reach.
    """
    return [spearman(cell.measured, np.where(cell.stalled, cell.predicted, cell.measured)) for cell in cells]
