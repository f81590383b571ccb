"""A small deterministic performance core for tests of placement.

Training: tokens / (rate of the GPU × GPUs) seconds, and a start-up; spot adds a share per interruption.
Serving: requests/s of the GPU × GPUs of the replica. Memory: a model fits where its GB are held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker.domain.basics.confidence import MEDIAN, deviation_of, quantile_factor, work_factors
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Precision, Serving, Training
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import ServingConfig


@dataclass(frozen=True)
class FakeGpu:
    tokens_per_s: float
    requests_per_s: float
    cold_start_s: float = 600.0


GPUS = {
    "BIG": FakeGpu(1000.0, 4.0),
    "MID": FakeGpu(400.0, 2.5),
    "TINY": FakeGpu(100.0, 1.0, 300.0),
    "H100-SXM-80GB": FakeGpu(1000.0, 4.0),
    "RTX-A6000": FakeGpu(1000.0, 4.0),
    "RTX-4090": FakeGpu(1000.0, 4.0),
    "MI300X-192GB": FakeGpu(1000.0, 4.0),
}


TIMES, RATES = 0.1, 1 / 0.9 - 1
"""How much slower a time and a rate may be: each is the faster side of the other."""


def _estimate(value: dict[str, float]) -> Estimate:
    return Estimate(value, {k: v * 0.9 for k, v in value.items()}, {k: v * 1.1 for k, v in value.items()})


def _sure_run(found: Estimate, run: Training, startup_hours: float) -> Estimate:
    if run.planned_confidence == MEDIAN:
        return found
    work = found["hours"] - startup_hours
    sure, mean = (
        startup_hours + work * factor for factor in work_factors(TIMES, RATES, run.planned_confidence)
    )
    return replace(found, at_confidence={"hours": sure}, expected_hours=mean)


def _sure_service(found: Estimate, workload: Serving | Batch) -> Estimate:
    if workload.planned_confidence == MEDIAN or isinstance(workload, Batch):
        return found
    slower = quantile_factor(RATES, workload.planned_confidence)
    rate = found["requests_per_s_per_replica"] / slower
    latencies = {name: found[name] for name in ("ttft_p95_ms", "itl_p95_ms")}
    return replace(found, at_confidence={"requests_per_s_per_replica": rate, **latencies})


def _memory_gb(params: float) -> float:
    return 2 * params / 1e9


class FakeTrainingTable:
    def __init__(
        self, core: FakeEstimator, workloads: Sequence[Training], skus: Sequence[Sku], counts: Sequence[int]
    ):
        self._core, self._workloads, self._skus = core, workloads, skus
        self.node_counts = np.asarray(counts, dtype=np.int64)
        self.hours = np.full((len(workloads), len(skus), len(counts)), np.inf)
        for w, s, n in np.ndindex(*self.hours.shape):
            found = core.training_at(workloads[w], skus[s], int(counts[n]), self.layout(w, s, n))
            if found is not None:
                self.hours[w, s, n] = found.sure_hours
        self.mean_share = np.ones(self.hours.shape)
        self.deviation = np.full(self.hours.shape, deviation_of(TIMES))
        for w, run in enumerate(workloads):
            sure, mean = work_factors(TIMES, RATES, run.planned_confidence)
            self.mean_share[w] = mean / sure
        self.fits = np.isfinite(self.hours)
        self.startup_hours = core.startup_hours
        self._without_room = np.zeros(self.fits.shape[:2], dtype=np.bool_)

    def withhold(self, without_room: NDArray[np.bool_]) -> None:
        self._without_room |= (self.fits & without_room).any(axis=2)
        self.hours = np.where(without_room, np.inf, self.hours)
        self.fits = np.isfinite(self.hours)

    def hours_at(self, w: int, s: int, n: int, interruptions_per_hour: ArrayLike) -> NDArray[np.float64]:
        rates = np.atleast_1d(np.asarray(interruptions_per_hour, dtype=np.float64))
        hours = np.array([self.estimate(w, s, n, float(rate)).sure_hours for rate in rates])
        return hours.reshape(np.shape(interruptions_per_hour))

    def hours_at_each(
        self, w: int, s: NDArray[np.int64], n: NDArray[np.int64], interruptions_per_hour: ArrayLike
    ) -> NDArray[np.float64]:
        cells = zip(s, n, np.atleast_1d(np.asarray(interruptions_per_hour)), strict=True)
        return np.array([float(self.hours_at(w, int(k), int(c), rate)) for k, c, rate in cells])

    def layout(self, w: int, s: int, n: int) -> Parallelism:
        return Parallelism(dp=self._skus[s].gpus_per_node * int(self.node_counts[n]))

    def estimate(self, w: int, s: int, n: int, interruptions_per_hour: float = 0.0) -> Estimate:
        found = self._core.training_at(
            self._workloads[w],
            self._skus[s],
            int(self.node_counts[n]),
            self.layout(w, s, n),
            interruptions_per_hour,
        )
        assert found is not None
        return found

    def bottleneck(self, w: int, s: int, n: int) -> str:
        return "compute"

    def obstacle(self, w: int, s: int, among: NDArray[np.bool_] | None = None) -> Obstacle | None:
        if self.fits[w, s, slice(None) if among is None else among].any():
            return None
        if self._without_room[w, s]:
            return Obstacle.DISK
        return Obstacle.MEMORY if self._skus[s].gpu in GPUS else Obstacle.GPU_UNKNOWN


class FakeServingTable:
    def __init__(self, core: FakeEstimator, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]):
        self._core, self._workloads, self._skus = core, workloads, skus
        self.configs = tuple(ServingConfig(Precision.BF16, tp, tp, 1) for tp in core.replica_sizes)
        shape = (len(workloads), len(skus), len(self.configs))
        self.requests_per_s, self.cold_start_s = np.zeros(shape), np.zeros(shape)
        self.median_requests_per_s, self.low_requests_per_s = np.zeros(shape), np.zeros(shape)
        self.mean_share = np.ones(shape)
        for w, s, c in np.ndindex(*shape):
            found = core.serving_at(workloads[w], skus[s], Precision.BF16, self.layout(w, s, c), 1.0)
            if found is not None:
                sure, mean = work_factors(RATES, TIMES, workloads[w].planned_confidence)
                is_batch = isinstance(workloads[w], Batch)
                self.requests_per_s[w, s, c] = found.sure_requests_per_s / (sure if is_batch else 1.0)
                self.median_requests_per_s[w, s, c] = found["requests_per_s_per_replica"]
                self.low_requests_per_s[w, s, c] = found.low["requests_per_s_per_replica"]
                self.mean_share[w, s, c] = mean / sure if is_batch else 1.0
                self.cold_start_s[w, s, c] = found["cold_start_s"]
        self.fits = self.requests_per_s > 0
        self._without_room = np.zeros(self.fits.shape[:2], dtype=np.bool_)

    def withhold(self, without_room: NDArray[np.bool_]) -> None:
        self._without_room |= (self.fits & without_room).any(axis=2)
        self.requests_per_s = np.where(without_room, 0.0, self.requests_per_s)
        self.fits = self.requests_per_s > 0

    def layout(self, w: int, s: int, c: int) -> Parallelism:
        return Parallelism(tp=self.configs[c].tp)

    def estimate(self, w: int, s: int, c: int, usd_per_replica_hour: float) -> Estimate:
        found = self._core.serving_at(
            self._workloads[w], self._skus[s], Precision.BF16, self.layout(w, s, c), usd_per_replica_hour
        )
        assert found is not None
        return found

    def bottleneck(self, w: int, s: int, c: int) -> str:
        return "HBM bandwidth"

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        if self.fits[w, s].any():
            return None
        if self._without_room[w, s]:
            return Obstacle.DISK
        return Obstacle.MEMORY if self._skus[s].gpu in GPUS else Obstacle.GPU_UNKNOWN


class FakeEstimator:
    gpus: Mapping[str, GpuSpec] = {}
    """Without silicon, nothing can be asked of faster silicon."""
    calibration = load_calibration()
    """Of the real core: its goodput is drawn in simulations."""

    def __init__(self, replica_sizes: Sequence[int] = (1, 2), startup_hours: float = 0.0) -> None:
        self.replica_sizes = tuple(replica_sizes)
        self.startup_hours = startup_hours

    def training(
        self, workloads: Sequence[Training], skus: Sequence[Sku], node_counts: Sequence[int]
    ) -> FakeTrainingTable:
        return FakeTrainingTable(self, workloads, skus, node_counts)

    def serving(self, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> FakeServingTable:
        return FakeServingTable(self, workloads, skus)

    def begun_again_hours(self, run: Training, nodes: int, gpus_per_node: int) -> float:
        return self.startup_hours + (run.checkpoint_every_minutes or 60.0) / 120

    def training_at(
        self,
        workload: Training,
        sku: Sku,
        nodes: int,
        layout: Parallelism,
        interruptions_per_hour: float = 0.0,
    ) -> Estimate | None:
        gpu = GPUS.get(sku.gpu)
        gpus = nodes * sku.gpus_per_node
        if gpu is None or _memory_gb(workload.model.total_params) > gpus * sku.gpu_memory_gb:
            return None
        tokens_per_s = gpu.tokens_per_s * gpus
        hours = workload.tokens * (1 + workload.headroom) / tokens_per_s / 3600
        hours = hours * (1 + nodes * interruptions_per_hour) + self.startup_hours
        found = _estimate(
            {
                "step_s": workload.global_batch_tokens / tokens_per_s,
                "mfu": 0.4,
                "tokens_per_s": tokens_per_s,
                "hours": hours,
                "memory_gb_per_gpu": _memory_gb(workload.model.total_params) / gpus,
                "communication_share": 0.0,
                "checkpoint_share": 0.0,
                "goodput": 1.0,
            }
        )
        return _sure_run(found, workload, self.startup_hours)

    def serving_at(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        gpu = GPUS.get(sku.gpu)
        fits = _memory_gb(workload.model.total_params) <= layout.tp * sku.gpu_memory_gb
        if gpu is None or sku.gpus_per_node % layout.tp or precision not in workload.precisions or not fits:
            return None
        rate = gpu.requests_per_s * layout.tp
        found = _estimate(
            {
                "requests_per_s_per_replica": rate,
                "ttft_p95_ms": 500.0,
                "itl_p95_ms": 20.0,
                "tokens_per_s": 100 * rate,
                "memory_gb_per_gpu": _memory_gb(workload.model.total_params) / layout.tp,
                "kv_tokens": 100_000.0,
                "usd_per_million_tokens": usd_per_replica_hour / (3600 * 100 * rate) * 1e6,
                "cold_start_s": gpu.cold_start_s,
            }
        )
        return _sure_service(found, workload)
