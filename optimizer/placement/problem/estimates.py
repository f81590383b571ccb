"""Estimates of every workload on every kind of node, requested once.

R training runs, B batches, V services, K kinds of node, N node counts, C serving configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from broker.domain.basics.estimate import Estimate
from broker.domain.basics.node_launch import ColdStart, NodeLaunch, cold_start_of, with_launch
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Batch, Serving, Training
from optimizer.memo_cache import MemoCache
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator, ServingTable, TrainingTable
from optimizer.performance.host_needs import weights_gb
from optimizer.performance.serving.estimate import ServingConfig
from optimizer.placement.problem.host_room import runs_without_room, services_without_room
from optimizer.placement.problem.problem import Floats, OfferTable, Problem
from optimizer.placement.problem.quotas import quota_rows, without_quotas
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Tables of the performance core (``estimator``); ``row_of`` gives each workload's row in its table.

    ``cold_s`` [B + V, K, C]: seconds from ordering a node to the first token. It is the engine's start plus
    what ``launches`` [K] and ``weights_gb`` [B + V, C] say of the node's launch and the download of weights.
    ``hours_with_room`` [R, K, N] and ``rates_with_room`` [B + V, K, C] are those of the tables as if every
    host had disk and memory enough. ``kept`` caches results that were derived from these tables; none depends
    on a price.
    """

    node_counts: tuple[int, ...]
    training: TrainingTable
    serving: ServingTable
    row_of: Mapping[str, int]
    estimator: Estimator
    cold_s: Floats
    weights_gb: Floats
    launches: tuple[NodeLaunch | None, ...] = ()
    skus: tuple[Sku, ...] = ()
    hours_with_room: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)), repr=False)
    rates_with_room: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)), repr=False)
    kept: MemoCache = field(default_factory=MemoCache, repr=False)

    def part(self, run: Training, kind: int, choice: int, interruptions_per_hour: float) -> Estimate:
        """Estimate of one part of a split run, in the parallel layout that is best for the whole run."""
        layout = self.training.layout(self.row_of[run.name], kind, choice)
        nodes = self.node_counts[choice]
        found = self.estimator.training_at(run, self.skus[kind], nodes, layout, interruptions_per_hour)
        assert found is not None
        return found

    def cold_start(self, row: int, kind: int, choice: int) -> ColdStart | None:
        """The phases of a replica's cold start; None if nothing is known of the node's launch."""
        engine_s = float(self.serving.cold_start_s[row, kind, choice])
        return cold_start_of(self.launches[kind], float(self.weights_gb[row, choice]), engine_s)

    def served(self, row: int, kind: int, choice: int, usd_per_replica_hour: float) -> Estimate:
        """A service or batch in one configuration, with the node's launch and the download of weights in its
        cold start.
        """
        estimate = self.serving.estimate(row, kind, choice, usd_per_replica_hour)
        return with_launch(estimate, self.cold_start(row, kind, choice))

    @property
    def startup_hours(self) -> float:
        """Held time that each start of a run costs, independent of the work."""
        return self.training.startup_hours


def build_estimates(problem: Problem, estimator: Estimator) -> Estimates:
    """Estimates of every workload on every kind of node. They depend on no price, so a new market reuses
    them.
    """
    trainings = tuple(w for w in problem.request.workloads if isinstance(w, Training))
    others = tuple(w for w in problem.request.workloads if isinstance(w, Serving | Batch))
    table = without_quotas(problem).table if quota_rows(problem) else problem.table
    counts = node_counts(trainings, table)
    question = (trainings, others, problem.table.skus, problem.table.launches, counts)
    return problem.memo.once(("estimates", *question), lambda: _asked(estimator, *question))


def _asked(
    estimator: Estimator,
    trainings: Sequence[Training],
    others: Sequence[Serving | Batch],
    skus: tuple[Sku, ...],
    launches: tuple[NodeLaunch | None, ...],
    counts: tuple[int, ...],
) -> Estimates:
    rows = {w.name: row for group in (trainings, others) for row, w in enumerate(group)}
    training, serving = estimator.training(trainings, skus, counts), estimator.serving(others, skus)
    hours, rates = training.hours, serving.requests_per_s
    training.withhold(runs_without_room(trainings, skus, counts))
    serving.withhold(services_without_room(others, skus, serving.configs))
    gb = _weights_gb(others, serving.configs)
    return Estimates(
        node_counts=counts,
        training=training,
        serving=serving,
        row_of=rows,
        estimator=estimator,
        cold_s=serving.cold_start_s + _before_engine_s(launches, gb),
        weights_gb=gb,
        launches=launches,
        skus=skus,
        hours_with_room=hours,
        rates_with_room=rates,
    )


def _weights_gb(workloads: Sequence[Serving | Batch], configs: Sequence[ServingConfig]) -> Floats:
    """Weights of each workload's model in each configuration [B + V, C], in 10⁹ bytes."""
    rows = []
    for one in workloads:
        sizes = {p: weights_gb(one.model, p, load_calibration()) for p in one.precisions}
        rows.append([sizes.get(config.precision, 0.0) for config in configs])
    return np.array(rows, dtype=np.float64).reshape(len(workloads), len(configs))


def _before_engine_s(launches: Sequence[NodeLaunch | None], gb: Floats) -> Floats:
    """Seconds [B + V, K, C] from the order of a node until the engine can start."""
    node_s = np.array([one.before_weights_s if one else 0.0 for one in launches], dtype=np.float64)
    s_per_gb = np.array([one.weights_s_per_gb if one else 0.0 for one in launches], dtype=np.float64)
    found: Floats = node_s[None, :, None] + s_per_gb[None, :, None] * gb[:, None, :]
    return found


def node_counts(trainings: Sequence[Training], table: OfferTable) -> tuple[int, ...]:
    """Node counts to estimate: all that some offer has and connects.

    A run's minimum is included if the fabric allows it, even if the stock does not, so that the explanation
    can name stock as what is missing.
    """
    if not len(table) or not trainings:
        return (1,)
    joined = int(min(TUNING.problem.most_nodes, max(1, table.joined_nodes.max())))
    largest = min(joined, max(1, int(np.minimum(table.joined_nodes, table.stock_nodes).max())))
    least = {
        math.ceil(workload.gpus.min / int(gpus))
        for workload in trainings
        for gpus in np.unique(table.gpus_per_node)
    }
    return tuple(sorted({*range(1, largest + 1), *(nodes for nodes in least if nodes <= joined)}))
