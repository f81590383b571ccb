"""Own measurements as corrections of plans: stored rows, and the ``measured`` entries of each workload.

An entry of a workload states only GPU, count and rate. On its own GPU it replaces the model
(``training.estimate``, ``serving.estimate``). Here it corrects similar configurations: it is compared with
the model's best layout on as many GPUs in nodes of up to eight. Queries of plans have no source, which means
one of the user's own systems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from broker.domain.market.sku import Fabric, FabricKind, Sku
from broker.domain.planning.workload import Batch, Measurement, Precision, Serving, Training
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.intervals import Closeness
from optimizer.performance.own.features import (
    FIRST_TOKEN,
    OWN_SOURCE,
    STEP,
    TOKEN_RATE,
    TOKEN_TIME,
    Described,
    Features,
    stack_features,
    words_of,
)
from optimizer.performance.own.gaussian_process import Evidence
from optimizer.performance.own.shift import OwnShift
from optimizer.performance.serving.estimate import (
    DEGREES,
    ServingCore,
    allowed_degrees,
    can_serve,
    lengths_of,
    measurement_for,
)
from optimizer.performance.serving.served_model import Replica
from optimizer.performance.training.estimate import TrainingCore, can_train, software_of, step_tokens
from optimizer.performance.training.table import search

FABRIC_GBIT_S_PER_GPU = 400.0
NODE_GPUS = 8
WORKLOADS_KEPT = 64

W = TypeVar("W", Training, Serving | Batch)


def _sku(gpu: str, gpus: int, specs: Mapping[str, GpuSpec]) -> Sku:
    """A SKU of nodes with up to eight such GPUs, connected by a fabric."""
    node = min(gpus, NODE_GPUS)
    fabric = Fabric(FabricKind.INFINIBAND, FABRIC_GBIT_S_PER_GPU * node, max(1, -(-gpus // node)))
    return Sku("", gpu, node, specs[gpu].memory_gb, fabric=fabric)


class _Corrections(ABC, Generic[W]):
    """Corrections by our own measurements and by those of a workload. ``BLOCKS``: what those correct."""

    BLOCKS: ClassVar[tuple[str, ...]]

    def __init__(self, own: OwnShift) -> None:
        self._own = own
        self._by_workload: dict[W, OwnShift] = {}

    def moves(self, workload: W) -> bool:
        """Whether there are any measurements."""
        return bool(self._of(workload))

    def _of(self, workload: W) -> OwnShift:
        if not workload.measured:
            return self._own
        if workload not in self._by_workload:
            if len(self._by_workload) >= WORKLOADS_KEPT:
                self._by_workload.clear()
            found = [pair for m in workload.measured for pair in self._compared(workload, m)]
            self._by_workload[workload] = _with_entries(self._own, dict.fromkeys(self.BLOCKS, found))
        return self._by_workload[workload]

    @abstractmethod
    def _compared(self, workload: W, m: Measurement) -> Iterator[tuple[Described, float]]:
        """The features of a measured entry, and log(measured / predicted)."""


class OwnTraining(_Corrections[Training]):
    """Corrections of training steps in plans. ``core`` is the model without corrections."""

    BLOCKS = (STEP,)

    def __init__(self, core: TrainingCore, own: OwnShift) -> None:
        super().__init__(own)
        self._core = core

    def log_shift(
        self, workload: Training, gpus: Sequence[str], counts: Array, degrees: NDArray[np.int64]
    ) -> Array:
        """Log of the factor on the step time [M] on ``counts`` of ``gpus`` [M] in layouts ``degrees``
        [M, 7].
        """
        return self._of(workload).log_shift(STEP, self._asked(workload, gpus, counts, degrees))

    def closeness(self, workload: Training, gpu: str, count: float, degrees: NDArray[np.int64]) -> Closeness:
        """How close the measurements are to one run; ``degrees`` [1, 7]."""
        own = self._of(workload)
        asked = self._asked(workload, [gpu], as_array([count]), degrees)
        return Closeness(float(own.nearness(STEP, asked)[0]), float(own.shrink(STEP, asked)[0]), 1.0)

    def _compared(self, workload: Training, m: Measurement) -> Iterator[tuple[Described, float]]:
        """The features of a measured entry, and log(measured / predicted) of its step time."""
        specs = self._core.gpus
        if not m.tokens_per_s or m.gpu not in specs:
            return
        sku = _sku(m.gpu, m.gpus, specs)
        hw = build_hardware([sku], specs, self._core.calibration)
        if not can_train(hw, workload)[0]:
            return
        found = search(self._core, workload, [sku], hw, as_array([m.gpus // sku.gpus_per_node]))
        if np.isfinite(found.step_s[0, 0]):
            words, numbers = self._described(workload, m.gpu, float(m.gpus), found.degrees[0, 0])
            measured = step_tokens(workload) / m.tokens_per_s
            yield ({**words, "source": OWN_SOURCE}, numbers), float(np.log(measured / found.step_s[0, 0]))

    def _asked(
        self, workload: Training, gpus: Sequence[str], counts: Array, degrees: NDArray[np.int64]
    ) -> Features:
        return stack_features(
            [
                self._described(workload, gpu, float(count), row)
                for gpu, count, row in zip(gpus, counts, degrees, strict=True)
            ]
        )

    def _described(self, workload: Training, gpu: str, count: float, degrees: NDArray[np.int64]) -> Described:
        words = words_of(workload.model, gpu, self._core.gpus) | {
            "engine": software_of(workload),
            "precision": workload.precision.value,
            "metric": STEP,
        }
        tensor, pipeline, _, _, expert, micro, _ = (float(degree) for degree in degrees)
        return words, {
            "size": workload.model.active_params / 1e9,
            "gpus": count,
            "tensor": tensor,
            "pipeline": pipeline,
            "expert": expert,
            "batch": micro,
            "input": float(workload.sequence_length),
        }


class OwnServing(_Corrections[Serving | Batch]):
    """Corrections of replicas in plans. ``core`` is the model without corrections."""

    BLOCKS = (TOKEN_TIME, TOKEN_RATE)

    def __init__(self, core: ServingCore, own: OwnShift) -> None:
        super().__init__(own)
        self._core = core

    def log_shifts(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpus: Sequence[str],
        replica: Replica,
        batch: Array,
    ) -> tuple[Array, Array]:
        """Logs of the factors on inter-token latency and time to first token [M], at ``batch`` in flight."""
        own, rate = self._of(workload), _rate_block(workload)
        asked = self._asked(workload, precision, gpus, replica, batch)
        return own.log_shift(rate, asked), own.log_shift(FIRST_TOKEN, asked)

    def closeness(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpu: str,
        replica: Replica,
        batch: Array,
    ) -> Closeness:
        """How close the measurements are to one replica."""
        own, rate = self._of(workload), _rate_block(workload)
        asked = self._asked(workload, precision, [gpu], replica, batch)
        return Closeness(
            float(own.nearness(rate, asked)[0]),
            float(own.shrink(rate, asked)[0]),
            float(own.shrink(FIRST_TOKEN, asked)[0]),
        )

    def _compared(self, workload: Serving | Batch, m: Measurement) -> Iterator[tuple[Described, float]]:
        """The features of a measured entry in the best layout on as many GPUs, and log(measured / predicted)
        of a token's time.
        """
        measured = measurement_for(workload, m.gpu, m.gpus)
        if m.gpu not in self._core.gpus or not measured:
            return
        sku = _sku(m.gpu, m.gpus, self._core.gpus)
        hw = build_hardware([sku], self._core.gpus, self._core.calibration)
        best: tuple[float, Described] | None = None
        for precision in workload.precisions:
            for tp, pp in DEGREES:
                spec, rates = self._core.gpus[m.gpu], self._core.calibration.serving
                able = can_serve(spec, workload, precision, rates) and allowed_degrees(sku, tp, pp)
                if tp * pp != m.gpus or not able:
                    continue
                replica = Replica(as_array([tp]), as_array([pp]), as_array([1.0]))
                most = self._core.most(workload, precision, replica, hw, m.gpu)
                rate = float(most.requests_per_s[0])
                if rate > 0 and (best is None or rate > best[0]):
                    batch = float(most.load.batch[0])
                    best = rate, self._described(workload, precision, m.gpu, (tp, pp, batch))
        if best is not None:
            words, numbers = best[1]
            yield ({**words, "source": OWN_SOURCE}, numbers), float(np.log(best[0] / measured))

    def _asked(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpus: Sequence[str],
        replica: Replica,
        batch: Array,
    ) -> Features:
        numbers = np.stack(np.broadcast_arrays(replica.tp * replica.dp, replica.pp, batch), axis=-1)
        return stack_features(
            [
                self._described(workload, precision, gpu, row)
                for gpu, row in zip(gpus, numbers.reshape(len(gpus), 3).tolist(), strict=True)
            ]
        )

    def _described(
        self, workload: Serving | Batch, precision: Precision, gpu: str, numbers: Sequence[float]
    ) -> Described:
        tp, pp, batch = numbers
        lengths, working = lengths_of(workload), isinstance(workload, Batch)
        words = words_of(workload.model, gpu, self._core.gpus) | {
            "engine": self._core.engine_class(workload, gpu),
            "precision": f"{precision.value}/{precision.value}",
            "metric": "rate" if working else "itl",
        }
        if working:
            words["regime"] = "offline"
        return words, {
            "size": workload.model.active_params / 1e9,
            "gpus": tp * pp,
            "tensor": tp,
            "pipeline": pp,
            "batch": max(batch, 1.0),
            "input": float(lengths.input_tokens),
            "output": float(lengths.output_tokens),
        }


def _rate_block(workload: Serving | Batch) -> str:
    return TOKEN_RATE if isinstance(workload, Batch) else TOKEN_TIME


def _with_entries(own: OwnShift, found: Mapping[str, Sequence[tuple[Described, float]]]) -> OwnShift:
    more = {
        block: Evidence(stack_features([row for row, _ in pairs]), as_array([left for _, left in pairs]))
        for block, pairs in found.items()
        if pairs
    }
    return own.with_evidence(more) if more else own
