"""Estimates of all workloads on all kinds of node, asked for once.

R runs of training, B batches, V services, K kinds of node, N node counts, C serving configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.workload import Batch, Serving, Training
from optimizer.performance.estimator import Estimator, ServingTable, TrainingTable
from optimizer.placement.menus import menu_counts
from optimizer.placement.problem import OfferTable, Problem

MAX_NODES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Tables of the performance core (``estimator``) with the row of each workload in its table."""

    node_counts: tuple[int, ...]
    training: TrainingTable
    serving: ServingTable
    row_of: Mapping[str, int]
    estimator: Estimator


def build_estimates(problem: Problem, estimator: Estimator) -> Estimates:
    """Every workload on every kind of node."""
    trainings = [w for w in problem.request.workloads if isinstance(w, Training)]
    others = [w for w in problem.request.workloads if isinstance(w, Serving | Batch)]
    counts = node_counts(trainings, problem.table)
    rows = {w.name: row for group in (trainings, others) for row, w in enumerate(group)}
    return Estimates(
        node_counts=counts,
        training=estimator.training(trainings, problem.table.skus, counts),
        serving=estimator.serving(others, problem.table.skus),
        row_of=rows,
        estimator=estimator,
    )


def node_counts(trainings: Sequence[Training], table: OfferTable) -> tuple[int, ...]:
    """Node counts worth a look: powers of two, those times three, each workload's own limits, and menus."""
    if not len(table):
        return (1,)
    largest = int(min(MAX_NODES, max(1, np.minimum(table.joined_nodes, table.stock_nodes).max())))
    found = {1}
    for base in (1, 3):
        found |= {base << power for power in range(11)}
    for workload in trainings:
        for gpus in {int(g) for g in table.gpus_per_node}:
            found.add(math.ceil(workload.gpus_min / gpus))
            if workload.gpus_max is not None:
                found.add(workload.gpus_max // gpus)
    if trainings:
        found |= menu_counts(table)
    return tuple(sorted(n for n in found if 1 <= n <= largest))
