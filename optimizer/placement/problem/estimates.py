"""Estimates of all workloads on all kinds of node, asked for once.

R runs of training, B batches, V services, K kinds of node, N node counts, C serving configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from broker.domain.estimate import Estimate
from broker.domain.sku import Sku
from broker.domain.workload import Batch, Serving, Training
from optimizer.performance.estimator import Estimator, ServingTable, TrainingTable
from optimizer.placement.problem.host_room import runs_without_room, services_without_room
from optimizer.placement.problem.menus import menu_counts
from optimizer.placement.problem.problem import OfferTable, Problem
from optimizer.placement.problem.quotas import quota_rows, without_quotas
from optimizer.recall import Recall

MAX_NODES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Tables of the performance core (``estimator``) with the row of each workload in its table.

    ``kept``: what was worked out of them; no price counts in it.
    """

    node_counts: tuple[int, ...]
    training: TrainingTable
    serving: ServingTable
    row_of: Mapping[str, int]
    estimator: Estimator
    skus: tuple[Sku, ...] = ()
    kept: Recall = field(default_factory=Recall, repr=False)

    def part(self, run: Training, kind: int, choice: int, interruptions_per_hour: float) -> Estimate:
        """A run that is a part of another, in the layout that is best for the whole."""
        layout = self.training.layout(self.row_of[run.name], kind, choice)
        nodes = self.node_counts[choice]
        found = self.estimator.training_at(run, self.skus[kind], nodes, layout, interruptions_per_hour)
        assert found is not None
        return found

    @property
    def startup_hours(self) -> float:
        """What each start of a run costs in held time, whatever its work."""
        return self.training.startup_hours


def build_estimates(problem: Problem, estimator: Estimator) -> Estimates:
    """Every workload on every kind of node; asked again over other prices, the same tables."""
    trainings = tuple(w for w in problem.request.workloads if isinstance(w, Training))
    others = tuple(w for w in problem.request.workloads if isinstance(w, Serving | Batch))
    counts = node_counts(trainings, without_quotas(problem).table if quota_rows(problem) else problem.table)
    question = (trainings, others, problem.table.skus, counts)
    return problem.recall.once(("estimates", *question), lambda: _asked(estimator, *question))


def _asked(
    estimator: Estimator,
    trainings: Sequence[Training],
    others: Sequence[Serving | Batch],
    skus: tuple[Sku, ...],
    counts: tuple[int, ...],
) -> Estimates:
    rows = {w.name: row for group in (trainings, others) for row, w in enumerate(group)}
    training, serving = estimator.training(trainings, skus, counts), estimator.serving(others, skus)
    training.withhold(runs_without_room(trainings, skus, counts))
    serving.withhold(services_without_room(others, skus, serving.configs))
    return Estimates(
        node_counts=counts,
        training=training,
        serving=serving,
        row_of=rows,
        estimator=estimator,
        skus=skus,
    )


def node_counts(trainings: Sequence[Training], table: OfferTable) -> tuple[int, ...]:
    """Node counts worth a look: powers of two, those times three, each workload's own limits, and menus.

    The fewest that a run may have are looked at where they are joined, even if fewer are in stock, so that
    stock is told to be what is missing.
    """
    if not len(table):
        return (1,)
    joined = int(min(MAX_NODES, max(1, table.joined_nodes.max())))
    largest = min(joined, max(1, int(np.minimum(table.joined_nodes, table.stock_nodes).max())))
    found, least = {1}, set[int]()
    for base in (1, 3):
        found |= {base << power for power in range(11)}
    sizes = {int(g) for g in np.unique(table.gpus_per_node)}
    for workload in trainings:
        for gpus in sizes:
            least.add(math.ceil(workload.gpus_min / gpus))
            if workload.gpus_max is not None:
                found.add(workload.gpus_max // gpus)
    if trainings:
        found |= menu_counts(table)
    inside = {n for n in found if 1 <= n <= largest} | {n for n in least if 1 <= n <= joined}
    return tuple(sorted(inside))
