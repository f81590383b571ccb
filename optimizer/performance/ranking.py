"""Whether predictions put layouts in the right order: rank correlation within cells of the grid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.prediction import Prediction

CELL_LEAST = 8
STALLED = 2.0
DRAWS = 40
NODE = 8
RATE = "pred_tokens_per_s_per_gpu"


def spearman(a: Array, b: Array) -> float:
    """Rank correlation of two samples of equal size, ties at their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Array = last - (counts - 1) / 2.0
    return means[place]


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs [R] of one model on one GPU count: measured and predicted tokens/s a GPU; ``apart``: pipelines
    over several nodes."""

    gpus: str
    measured: Array
    predicted: Array
    apart: Mask

    @property
    def stalled(self) -> Mask:
        """Pipelines over several nodes that took twice the predicted time or more."""
        return self.apart & (self.predicted >= STALLED * self.measured)


def cells_of(rows: Sequence[Mapping[str, str]], found: Sequence[Prediction]) -> list[Cell]:
    """The cells of model and GPU count that have ``CELL_LEAST`` runs or more."""
    cells: dict[tuple[str, str], list[tuple[float, float, bool]]] = defaultdict(list)
    for row, prediction in zip(rows, found, strict=True):
        predicted = prediction.values.get(RATE)
        if row.get("status") == "ok" and row.get("tokens_per_s_per_gpu") and predicted is not None:
            gpus = row.get("gpus_total") or "0"
            apart = float(row.get("pp") or 1) > 1 and float(gpus) > float(row.get("gpus_per_node") or NODE)
            cells[row.get("model", ""), gpus].append((float(row["tokens_per_s_per_gpu"]), predicted, apart))
    enough = [(gpus, as_array(runs)) for (_, gpus), runs in cells.items() if len(runs) >= CELL_LEAST]
    return [Cell(gpus, runs[:, 0], runs[:, 1], runs[:, 2] > 0) for gpus, runs in enough]


def cell_correlations(cells: Sequence[Cell]) -> list[float]:
    """Spearman of measured and predicted tokens/s in each cell."""
    return [spearman(cell.measured, cell.predicted) for cell in cells]


def reachable_correlations(cells: Sequence[Cell], noise: float, seed: int = 0) -> Array:
    """Spearman [D, C] of D draws that a model would reach which knew the usual time of every run.

    Runs of a draw differ from the predictions by ``noise`` (two measurements of the same), and pipelines
    stall by chance: as many as stalled on that GPU count in all cells, and as long as those did.
    """
    rng = np.random.default_rng(seed)
    stalls: dict[str, list[float]] = defaultdict(list)
    pipelines: Counter[str] = Counter()
    for cell in cells:
        stalls[cell.gpus] += (cell.predicted / cell.measured)[cell.stalled].tolist()
        pipelines[cell.gpus] += int(cell.apart.sum())
    drawn = np.empty((DRAWS, len(cells)))
    for place, cell in enumerate(cells):
        lengths = as_array(stalls[cell.gpus] or [1.0])
        share = len(stalls[cell.gpus]) / max(pipelines[cell.gpus], 1)
        for draw in range(DRAWS):
            unlucky = cell.apart & (rng.random(cell.apart.size) < share)
            slower = np.where(unlucky, rng.choice(lengths, cell.apart.size), 1.0)
            run = cell.predicted / slower * np.exp(rng.normal(0.0, noise / np.sqrt(2.0), slower.size))
            drawn[draw, place] = spearman(run, cell.predicted)
    return drawn
