"""The interface of the performance core: requirements and performance of a workload on a SKU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Batch, Precision, Serving, Training
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.memo_cache import MemoCache
from optimizer.performance.arrays import number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.own.plans import OwnServing, OwnTraining
from optimizer.performance.own.shift import OwnShift, load_kernels
from optimizer.performance.serving.estimate import ServingConfig, ServingCore
from optimizer.performance.serving.mixes import MixedTable, is_mixed, mixed_estimate, parts_of
from optimizer.performance.serving.table import ServingTable
from optimizer.performance.training.estimate import TrainingCore, saved_params
from optimizer.performance.training.goodput import begun_again_s
from optimizer.performance.training.table import TrainingTable

__all__ = ["Estimator", "ServingConfig", "ServingTable", "TrainingTable"]


class Estimator:
    """Estimates over a GPU table and constants; pure: equal questions have equal answers.

    ``own``: the user's measured rows. They, and the ``measured`` entries of a workload, correct similar
    estimates. ``memo``: a cache of answers.
    """

    def __init__(
        self,
        gpus: Mapping[str, GpuSpec],
        calibration: Calibration,
        own: OwnShift | None = None,
        memo: MemoCache | None = None,
    ) -> None:
        self.gpus, self.calibration, self._own = dict(gpus), calibration, own
        shift = own if own is not None else OwnShift({}, load_kernels())
        plain_training, plain_serving = (
            TrainingCore(self.gpus, calibration),
            ServingCore(self.gpus, calibration),
        )
        self._training = TrainingCore(self.gpus, calibration, OwnTraining(plain_training, shift))
        self._serving = ServingCore(self.gpus, calibration, OwnServing(plain_serving, shift))
        self._memo = memo if memo is not None else MemoCache()

    def over(self, changed: Mapping[str, GpuSpec]) -> Estimator:
        """The same core with changed GPUs, to estimate what a workload would do on them."""
        return Estimator({**self.gpus, **changed}, self.calibration, self._own)

    def training(
        self, workloads: Sequence[Training], skus: Sequence[Sku], node_counts: Sequence[int]
    ) -> TrainingTable:
        """Every run on every SKU at every node count, each in its best layout."""
        return TrainingTable(self._training, workloads, skus, node_counts)

    def serving(self, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> ServingTable:
        """Every model on every SKU in every configuration, at the highest rate that its objective allows."""
        if any(is_mixed(workload) for workload in workloads):
            return MixedTable(self._serving, workloads, skus)
        return ServingTable(self._serving, workloads, skus)

    def training_at(
        self,
        workload: Training,
        sku: Sku,
        nodes: int,
        layout: Parallelism,
        interruptions_per_hour: float = 0.0,
    ) -> Estimate | None:
        """One run in a given layout, with spot interruptions per node-hour; None if it does not fit."""

        def estimated() -> Estimate | None:
            case = self._training.case(workload, sku, nodes, layout)
            return self._training.estimate(case, interruptions_per_hour) if case is not None else None

        return self._memo.once((workload, sku, nodes, layout, interruptions_per_hour), estimated)

    def begun_again_hours(self, run: Training, nodes: int, gpus_per_node: int) -> float:
        """Hours that a run on ``nodes`` takes to go on elsewhere: start-up, checkpoint, and lost work."""
        params, every = number(saved_params(run)), run.checkpoint_every_minutes
        sizes = number(nodes), number(gpus_per_node)
        return float(begun_again_s(params, *sizes, every, self.calibration)) / 3600.0

    def serving_at(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        """One replica in a given configuration; None if it does not fit."""
        question = (workload, sku, precision, layout, usd_per_replica_hour)
        return self._memo.once(question, lambda: self._serving_at(*question))

    def _serving_at(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        parts = parts_of(workload)
        found = [
            self._serving.estimate(part, sku, precision, layout, usd_per_replica_hour) for _, part in parts
        ]
        known = [estimate for estimate in found if estimate is not None]
        return mixed_estimate(parts, known) if len(known) == len(parts) else None
