"""Serving over every workload, SKU and configuration at once.

W workloads, S SKUs, C configurations (number format × tensor × pipeline degree).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.domain.estimate import Estimate, Parallelism
from broker.domain.plan import Obstacle
from broker.domain.sku import Sku
from broker.domain.workload import Batch, Precision, Serving
from optimizer.performance.arrays import Array, Mask, as_array, number
from optimizer.performance.hardware import build_hardware, kind_of
from optimizer.performance.serving import Replica
from optimizer.performance.serving_estimate import (
    DEGREES,
    ServingConfig,
    ServingCore,
    allowed_degrees,
    has_format,
    measurement_for,
)


class ServingTable:
    """Estimates of W×S×C; ``requests_per_s`` is the most at which the objective holds, 0 where unfit."""

    def __init__(self, core: ServingCore, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> None:
        self._core, self._workloads, self._skus = core, tuple(workloads), tuple(skus)
        wanted = {precision for workload in workloads for precision in workload.precisions}
        self.configs: tuple[ServingConfig, ...] = tuple(
            ServingConfig(precision, tp * pp, tp, pp)
            for precision in Precision
            if precision in wanted
            for tp, pp in DEGREES
        )
        kinds = list(dict.fromkeys(kind_of(sku) for sku in skus))
        number = {kind: index for index, kind in enumerate(kinds)}
        self._kind = np.asarray([number[kind_of(sku)] for sku in skus], dtype=np.intp)
        shape = (len(workloads), len(kinds), len(self.configs))
        rates, starts = np.zeros(shape), np.zeros(shape)
        self._fits_memory: Mask = np.zeros(shape, dtype=np.bool_)
        self._formats: Mask = np.zeros(shape[:2], dtype=np.bool_)
        for w in range(len(workloads)):
            self._fill(w, kinds, rates, starts)
        self._drop_needless_pipelines(rates)
        self.requests_per_s: Array = rates[:, self._kind, :]
        self.cold_start_s: Array = starts[:, self._kind, :]
        self.fits: Mask = self.requests_per_s > 0

    def _fill(self, w: int, kinds: Sequence[Sku], rates: Array, starts: Array) -> None:
        for precision in self._workloads[w].precisions:
            able = [k for k, kind in enumerate(kinds) if has_format(self._core.gpus.get(kind.gpu), precision)]
            self._formats[w, able] = True
            cells = [
                (k, c)
                for c, config in enumerate(self.configs)
                if config.precision is precision
                for k in able
                if allowed_degrees(kinds[k], config.tp, config.pp)
            ]
            if cells:
                self._fill_cells(w, precision, kinds, cells, rates, starts)

    def _fill_cells(
        self,
        w: int,
        precision: Precision,
        kinds: Sequence[Sku],
        cells: Sequence[tuple[int, int]],
        rates: Array,
        starts: Array,
    ) -> None:
        workload = self._workloads[w]
        where = np.asarray([k for k, _ in cells], dtype=np.intp)
        config = np.asarray([c for _, c in cells], dtype=np.intp)
        used, place = np.unique(where, return_inverse=True)
        hw = build_hardware([kinds[k] for k in used], self._core.gpus, self._core.calibration).take(place)
        tp = as_array([self.configs[c].tp for c in config])
        pp = as_array([self.configs[c].pp for c in config])
        most, fits = self._core.most(workload, precision, Replica(tp, pp, np.ones_like(tp)), hw)
        rates[w, where, config] = most.requests_per_s
        starts[w, where, config] = most.cold_start_s
        self._fits_memory[w, where, config] = fits
        self._overlay_measured(w, kinds, cells, rates)

    def _overlay_measured(
        self, w: int, kinds: Sequence[Sku], cells: Sequence[tuple[int, int]], rates: Array
    ) -> None:
        for k, c in cells:
            measured = measurement_for(self._workloads[w], kinds[k].gpu, self.configs[c].gpus_per_replica)
            if measured is not None:
                rates[w, k, c] = measured
                self._fits_memory[w, k, c] = True

    def _drop_needless_pipelines(self, rates: Array) -> None:
        """A pipeline is a way for models larger than a node: not where one tensor group holds the model."""
        single = {(c.precision, c.tp): place for place, c in enumerate(self.configs) if c.pp == 1}
        for place, config in enumerate(self.configs):
            if config.pp > 1:
                held = self._fits_memory[:, :, single[config.precision, config.tp]]
                rates[:, :, place] = np.where(held, 0.0, rates[:, :, place])

    def layout(self, w: int, s: int, c: int) -> Parallelism:
        """The degrees of configuration ``c``, the same for every workload and SKU."""
        return Parallelism(tp=self.configs[c].tp, pp=self.configs[c].pp)

    def estimate(self, w: int, s: int, c: int, usd_per_replica_hour: float) -> Estimate:
        """Metrics of the contract with their interval. Raises ValueError where the configuration is unfit."""
        config = self.configs[c]
        found = self._core.estimate(
            self._workloads[w], self._skus[s], config.precision, self.layout(w, s, c), usd_per_replica_hour
        )
        if found is None:
            raise ValueError(f"{self._workloads[w].name} does not fit {self._skus[s].name} as {config}")
        return found

    def bottleneck(self, w: int, s: int, c: int) -> str:
        """What keeps the rate from being higher, in plain words."""
        config = self.configs[c]
        replica = Replica(number(config.tp), number(config.pp), number(1.0))
        return self._core.bottleneck(self._workloads[w], self._skus[s], config.precision, replica)

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no configuration fits; None when one does."""
        kind = self._kind[s]
        if bool(self.fits[w, s].any()):
            return None
        if self._skus[s].gpu not in self._core.gpus:
            return Obstacle.GPU_UNKNOWN
        if not self._formats[w, kind]:
            return Obstacle.PRECISION
        return Obstacle.LATENCY if bool(self._fits_memory[w, kind].any()) else Obstacle.MEMORY
