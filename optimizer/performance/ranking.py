"""Whether predictions put layouts in the right order: rank correlation within cells of the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.prediction import Prediction

CELL_LEAST = 8
RATE = "pred_tokens_per_s_per_gpu"


def spearman(a: Array, b: Array) -> float:
    """Rank correlation of two samples of equal size, ties at their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Array = last - (counts - 1) / 2.0
    return means[place]


def cell_correlations(rows: Sequence[Mapping[str, str]], found: Sequence[Prediction]) -> list[float]:
    """Spearman of measured and predicted tokens/s in each large enough cell of model and GPU count."""
    cells: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row, prediction in zip(rows, found, strict=True):
        predicted = prediction.values.get(RATE)
        if row.get("status") == "ok" and row.get("tokens_per_s_per_gpu") and predicted is not None:
            pair = float(row["tokens_per_s_per_gpu"]), predicted
            cells[row.get("model", ""), row.get("gpus_total", "")].append(pair)
    enough = [as_array(pairs) for pairs in cells.values() if len(pairs) >= CELL_LEAST]
    return [spearman(pairs[:, 0], pairs[:, 1]) for pairs in enough]
