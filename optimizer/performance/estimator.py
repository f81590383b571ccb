"""The face of the performance core: estimates of workloads on SKUs.

W workloads, S SKUs, N node counts, C serving configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker.domain.estimate import Estimate, Parallelism
from broker.domain.model_shape import GpuSpec
from broker.domain.plan import Obstacle
from broker.domain.sku import Sku
from broker.domain.workload import Batch, Precision, Serving, Training
from optimizer.performance.calibration import Calibration

__all__ = ["Estimator", "ServingConfig", "ServingTable", "TrainingTable"]


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """A way to serve one replica: ``gpus_per_replica`` = ``tp`` × ``pp``."""

    precision: Precision
    gpus_per_replica: int
    tp: int
    pp: int


def _estimate(value: dict[str, float]) -> Estimate:
    low = {k: v * 0.85 for k, v in value.items()}
    high = {k: v * 1.15 for k, v in value.items()}
    return Estimate(value, low, high)


class TrainingTable:
    """Training estimates over W×S×N; ``hours`` is inf where it does not fit."""

    def __init__(
        self, core: Estimator, workloads: Sequence[Training], skus: Sequence[Sku], counts: Sequence[int]
    ) -> None:
        self._core, self._workloads, self._skus = core, workloads, skus
        self.node_counts: NDArray[np.int64] = np.asarray(counts, dtype=np.int64)
        shape = (len(workloads), len(skus), len(counts))
        self.hours: NDArray[np.float64] = np.full(shape, np.inf)
        for w, s, n in np.ndindex(*shape):
            found = core.training_at(workloads[w], skus[s], int(counts[n]), self.layout(w, s, n))
            if found is not None:
                self.hours[w, s, n] = found["hours"]
        self.fits: NDArray[np.bool_] = np.isfinite(self.hours)

    def hours_at(self, w: int, s: int, n: int, interruptions_per_hour: ArrayLike) -> NDArray[np.float64]:
        """Held hours at a rate of interruptions per NODE-hour."""
        rate = np.asarray(interruptions_per_hour, dtype=np.float64)
        hours: NDArray[np.float64] = self.hours[w, s, n] * (1 + 0.5 * rate * float(self.node_counts[n]))
        return hours

    def layout(self, w: int, s: int, n: int) -> Parallelism:
        """The layout that was found best."""
        tp = self._skus[s].gpus_per_node if self._workloads[w].model.total_params > 3e10 else 1
        return Parallelism(tp=tp, dp=self._skus[s].gpus_per_node * int(self.node_counts[n]) // tp)

    def estimate(self, w: int, s: int, n: int, interruptions_per_hour: float = 0.0) -> Estimate:
        """Metrics of a training estimate with their interval."""
        found = self._core.training_at(
            self._workloads[w],
            self._skus[s],
            int(self.node_counts[n]),
            self.layout(w, s, n),
            interruptions_per_hour,
        )
        if found is None:
            raise ValueError("the run does not fit")
        return found

    def bottleneck(self, w: int, s: int, n: int) -> str:
        """What takes most of the step."""
        return "compute"

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no node count fits; None when one does."""
        if bool(self.fits[w, s].any()):
            return None
        return Obstacle.MEMORY if self._core.knows(self._skus[s]) else Obstacle.GPU_UNKNOWN


class ServingTable:
    """Serving estimates over W×S×C; ``requests_per_s`` is 0 where it does not fit."""

    def __init__(self, core: Estimator, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> None:
        self._core, self._workloads, self._skus = core, workloads, skus
        kinds = list(dict.fromkeys(p for w in workloads for p in w.precisions))
        self.configs = tuple(ServingConfig(p, t, t, 1) for p in kinds for t in (1, 2, 4, 8))
        shape = (len(workloads), len(skus), len(self.configs))
        self.requests_per_s: NDArray[np.float64] = np.zeros(shape)
        self.cold_start_s: NDArray[np.float64] = np.zeros(shape)
        for w, s, c in np.ndindex(*shape):
            config = self.configs[c]
            found = core.serving_at(workloads[w], skus[s], config.precision, self.layout(w, s, c), 1.0)
            if found is not None:
                self.requests_per_s[w, s, c] = found["requests_per_s_per_replica"]
                self.cold_start_s[w, s, c] = found["cold_start_s"]
        self.fits: NDArray[np.bool_] = self.requests_per_s > 0

    def layout(self, w: int, s: int, c: int) -> Parallelism:
        """The layout of a replica."""
        return Parallelism(tp=self.configs[c].tp, pp=self.configs[c].pp)

    def estimate(self, w: int, s: int, c: int, usd_per_replica_hour: float) -> Estimate:
        """Metrics of a serving estimate with their interval."""
        config = self.configs[c]
        found = self._core.serving_at(
            self._workloads[w], self._skus[s], config.precision, self.layout(w, s, c), usd_per_replica_hour
        )
        if found is None:
            raise ValueError("the configuration does not fit")
        return found

    def bottleneck(self, w: int, s: int, c: int) -> str:
        """What bounds the rate."""
        return "HBM bandwidth"

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no configuration fits; None when one does."""
        if bool(self.fits[w, s].any()):
            return None
        return Obstacle.MEMORY if self._core.knows(self._skus[s]) else Obstacle.GPU_UNKNOWN


class Estimator:
    """Answers what a workload needs on a SKU."""

    def __init__(self, gpus: Mapping[str, GpuSpec], calibration: Calibration) -> None:
        self._gpus, self._calibration = gpus, calibration

    def knows(self, sku: Sku) -> bool:
        """Whether the GPU is in the table."""
        return sku.gpu in self._gpus

    def training(
        self, workloads: Sequence[Training], skus: Sequence[Sku], node_counts: Sequence[int]
    ) -> TrainingTable:
        """Every workload on every SKU at every node count, best layout each."""
        return TrainingTable(self, workloads, skus, node_counts)

    def serving(self, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> ServingTable:
        """Every workload on every SKU in every configuration."""
        return ServingTable(self, workloads, skus)

    def training_at(
        self,
        workload: Training,
        sku: Sku,
        nodes: int,
        layout: Parallelism,
        interruptions_per_hour: float = 0.0,
    ) -> Estimate | None:
        """A given layout; None when it does not fit."""
        spec = self._gpus.get(sku.gpu)
        gpus = nodes * sku.gpus_per_node
        if spec is None or (nodes > 1 and (sku.fabric is None or nodes > sku.fabric.max_nodes)):
            return None
        memory = 20 * workload.model.total_params / gpus / 1e9 + 8
        if memory > sku.gpu_memory_gb * 0.95:
            return None
        rate = gpus * 0.4e12 * (spec.bf16_tflops or spec.fp16_tflops or 1.0)
        if nodes > 1 and sku.fabric is not None:
            rate *= 1 / (1 + 100 / sku.fabric.gbit_s_per_node)
        tokens_per_s = rate / (6 * workload.model.active_params)
        goodput = 1 / (1.05 + 0.5 * nodes * interruptions_per_hour)
        hours = workload.tokens * (1 + workload.headroom) / (tokens_per_s * goodput) / 3600 + 0.25
        return _estimate(
            {
                "step_s": workload.global_batch_tokens / tokens_per_s,
                "mfu": 0.4,
                "tokens_per_s": tokens_per_s,
                "hours": hours,
                "memory_gb_per_gpu": memory,
                "communication_share": 0.1 if nodes > 1 else 0.0,
                "checkpoint_share": 0.01,
                "goodput": goodput,
            }
        )

    def serving_at(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        """A given replica; None when it does not fit."""
        spec = self._gpus.get(sku.gpu)
        gpus = layout.tp * layout.pp
        if spec is None or sku.gpus_per_node % layout.tp or precision not in workload.precisions:
            return None
        if precision is Precision.FP8 and not spec.fp8_tflops:
            return None
        width = {Precision.FP8: 1.0, Precision.INT4: 0.55}.get(precision, 2.0)
        weights = workload.model.total_params * width / 1e9
        free = gpus * 0.88 * sku.gpu_memory_gb - weights
        if free <= 1:
            return None
        output = workload.traffic.output_tokens if isinstance(workload, Serving) else workload.output_tokens
        inputs = workload.traffic.input_tokens if isinstance(workload, Serving) else workload.input_tokens
        per_token = workload.model.kv_elements_per_token * 2 / 1e9
        batch = min(256.0, free / (per_token * (inputs + output)))
        step = (weights + batch * per_token * (inputs + output / 2)) / (
            0.75 * spec.hbm_gbyte_s * gpus
        ) + 0.004
        rate = 0.8 * batch / (step * output)
        if isinstance(workload, Serving) and step * 1000 > workload.slo.itl_p95_ms:
            rate *= workload.slo.itl_p95_ms / (step * 1000)
        tokens = rate * output
        return _estimate(
            {
                "requests_per_s_per_replica": rate,
                "ttft_p95_ms": 500.0,
                "itl_p95_ms": step * 1000,
                "tokens_per_s": tokens,
                "memory_gb_per_gpu": 0.9 * sku.gpu_memory_gb,
                "kv_tokens": math.floor(free / per_token),
                "usd_per_million_tokens": usd_per_replica_hour / (3600 * tokens) * 1e6,
                "cold_start_s": 60 + weights / 1.0,
            }
        )
