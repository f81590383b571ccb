"""Serving estimates of every workload, SKU and configuration at once.

W workloads, S SKUs, C configurations (number format × tensor × pipeline degree × attention ranks).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.confidence import MEDIAN, quantile_factor
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Precision, Serving, ServingEngine
from broker.domain.workloads.model_shape import MixedWeights
from optimizer.performance.arrays import Array, Mask, Places, as_array, stacked
from optimizer.performance.constants.serving import engine_on
from optimizer.performance.hardware.sku_arrays import build_hardware, kinds_of
from optimizer.performance.intervals import NO_ROWS
from optimizer.performance.serving.estimate import (
    LEAST_SURE_SHARE,
    LOW_CONFIDENCE,
    WAYS,
    ServingConfig,
    ServingCore,
    allowed_degrees,
    can_serve,
    format_of,
    has_format,
    lengths_of,
    measurement_for,
    objective_of,
    replica_of,
    runs_engine,
    speculation_of,
    within,
)
from optimizer.performance.serving.queueing import Lengths
from optimizer.performance.serving.served_model import Format, Replica, ServedModel
from optimizer.performance.shapes import stack_shapes

CELLS_AT_ONCE = 6_000


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cases [M] of one number format: indices of workload, kind of SKU and configuration."""

    asked: Places
    kind: Places
    config: Places

    def at(self, places: Places) -> _Cells:
        return _Cells(self.asked[places], self.kind[places], self.config[places])


def _each_of(cells: _Cells) -> Iterator[_Cells]:
    return (_Cells(*one) for one in zip(cells.asked, cells.kind, cells.config, strict=True))


class ServingTable:
    """Estimates of W×S×C.

    ``requests_per_s`` is the highest rate that is within the objective with the workload's confidence, 0 if a
    case does not fit; ``median_requests_per_s`` is its median. ``low_requests_per_s`` is its P10, for
    services that are not planned by medians. ``mean_share``: the mean time of a batch's requests divided by
    the time that suffices; 1 where medians are planned.
    """

    def __init__(self, core: ServingCore, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> None:
        self._core, self._workloads, self._skus = core, tuple(workloads), tuple(skus)
        wanted = {precision for workload in workloads for precision in workload.precisions}
        routed = any(workload.model.is_moe for workload in workloads)
        self.configs: tuple[ServingConfig, ...] = tuple(
            ServingConfig(precision, tp * pp, tp, pp, dp)
            for precision in Precision
            if precision in wanted
            for tp, pp, dp in WAYS
            if routed or dp == 1
        )
        self._kinds, self._kind = kinds_of(skus)
        shape = (len(workloads), len(self._kinds), len(self.configs))
        rates, medians, lows, starts, share = *(np.zeros(shape) for _ in range(4)), np.ones(shape)
        single = {(c.precision, c.tp): place for place, c in enumerate(self.configs) if c.pp == c.dp == 1}
        self._single = np.asarray([single[c.precision, c.tp] for c in self.configs], dtype=np.intp)
        self._pipelined: Mask = np.asarray([c.pp > 1 for c in self.configs], dtype=np.bool_)
        self._has_ranks: Mask = np.asarray([c.dp > 1 for c in self.configs], dtype=np.bool_)
        self._allowed: Mask = np.zeros(shape[1:], dtype=np.bool_)
        self._fits_memory: Mask = np.zeros(shape, dtype=np.bool_)
        self._formats: Mask = np.zeros(shape[:2], dtype=np.bool_)
        self._tried: NDArray[np.int64] = np.zeros(shape[:2], dtype=np.int64)
        for precision in Precision:
            asked = [w for w, workload in enumerate(workloads) if precision in workload.precisions]
            for alike in self._alike(asked, precision):
                every = self._cells(precision, self._workloads[alike[0]].model.packed_in(precision))
                cells = every if self._workloads[alike[0]].model.is_moe else self._tensor_groups(every)
                for engine, mine in self._by_engine(self._workloads[alike[0]].engine, cells):
                    self._formats[np.asarray(alike)[:, None], np.unique(mine.kind)] = True
                    self._fill(precision, engine, alike, mine, (rates, medians, lows, starts, share))
        self._overlay_measured(rates, medians, lows, share)
        self._drop_needless_pipelines(rates)
        self.requests_per_s: Array = rates[:, self._kind, :]
        self.median_requests_per_s: Array = np.maximum(rates, medians)[:, self._kind, :]
        self.low_requests_per_s: Array = lows[:, self._kind, :]
        self.cold_start_s: Array = starts[:, self._kind, :]
        self.mean_share: Array = share[:, self._kind, :]
        self.fits: Mask = self.requests_per_s > 0
        self._without_room: Mask = np.zeros(self.fits.shape[:2], dtype=np.bool_)

    def withhold(self, without_room: Mask) -> None:
        """Removes configurations [W, S, C] for which hosts have too little disk or memory."""
        self._without_room |= (self.fits & without_room).any(axis=2)
        self.requests_per_s = np.where(without_room, 0.0, self.requests_per_s)
        self.fits = self.requests_per_s > 0

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Number of configurations [W, S] that were compared."""
        return self._tried[:, self._kind]

    def _alike(self, asked: Sequence[int], precision: Precision) -> list[list[int]]:
        """Groups of workloads that can be evaluated together.

        They agree in service or batch, speculative decoding, experts, engine, and packing of weights.
        """
        groups: dict[Hashable, list[int]] = {}
        for w in asked:
            one = self._workloads[w]
            key = isinstance(one, Batch), one.speculation is None, one.model.is_moe, one.engine
            groups.setdefault((*key, one.model.packed_in(precision)), []).append(w)
        return list(groups.values())

    def _by_engine(self, engine: ServingEngine, cells: _Cells) -> Iterator[tuple[str, _Cells]]:
        """The cells of GPUs that the engine supports, by its class of constants there."""
        specs = [self._core.gpus.get(kind.gpu) for kind in self._kinds]
        classes = [engine_on(spec, engine.value) if runs_engine(spec, engine) else "" for spec in specs]
        named = np.asarray(classes)[cells.kind]
        for name in np.unique(named[named != ""]).tolist():
            yield name, cells.at(np.flatnonzero(named == name))

    def _cells(self, precision: Precision, packed: MixedWeights | None) -> _Cells:
        """The configurations of kinds of SKU that compute in ``precision`` (for one workload)."""
        gpus, rates = self._core.gpus, self._core.calibration.serving
        able = [has_format(gpus.get(kind.gpu), precision, rates, packed) for kind in self._kinds]
        mine = [c for c, config in enumerate(self.configs) if config.precision is precision]
        allowed = np.zeros((len(self._kinds), len(mine)), dtype=np.bool_)
        for k, column in product(np.flatnonzero(able).tolist(), range(len(mine))):
            config = self.configs[mine[column]]
            allowed[k, column] = allowed_degrees(self._kinds[k], config.tp, config.pp, config.dp)
        self._allowed[:, mine] |= allowed
        kind, place = np.nonzero(allowed)
        return _Cells(np.zeros_like(kind), kind, np.asarray(mine, dtype=np.intp)[place])

    def _tensor_groups(self, cells: _Cells) -> _Cells:
        """The cells without attention ranks, which are useless in a model without experts."""
        return cells.at(np.flatnonzero(~self._has_ranks[cells.config]))

    def _fill(
        self,
        precision: Precision,
        engine: str,
        asked: Sequence[int],
        cells: _Cells,
        found: tuple[Array, Array, Array, Array, Array],
    ) -> None:
        """Memory of every case first, then the highest rate of those that fit; equal workloads are evaluated
        once. ``found``: rates, their medians and P10, cold starts, and mean shares of time, to be filled.
        """
        rates, medians, lows, starts, share = found
        same: dict[Hashable, list[int]] = {}
        for w in asked:
            same.setdefault(_physics_of(self._core, self._workloads[w]), []).append(w)
        front = np.asarray([group[0] for group in same.values()], dtype=np.intp)
        each = cells.kind.size
        kind, config = np.tile(cells.kind, front.size), np.tile(cells.config, front.size)
        every = _Cells(np.repeat(np.arange(front.size), each), kind, config)
        workloads = [self._workloads[w] for w in front]
        cases = _Cases(self._core, precision, engine, workloads, self._kinds, self.configs)
        limit = np.empty(every.kind.size)
        for part in _parts(every.kind.size):
            some = every.at(part)
            limit[part], start = cases.memory(some)
            where = front[some.asked], some.kind, some.config
            starts[where], self._fits_memory[where] = start, limit[part] >= 1.0
        held = self._fits_memory[front[every.asked], every.kind, self._single[every.config]]
        needed = np.flatnonzero((limit >= 1.0) & ~(held & self._pipelined[every.config]))
        for part in _parts(needed.size):
            some = every.at(needed[part])
            where = front[some.asked], some.kind, some.config
            rates[where], medians[where], lows[where], share[where] = cases.most(some, limit[needed[part]])
        self._tried[front] += np.bincount(cells.kind, minlength=len(self._kinds))
        for group in same.values():
            for array in (*found, self._fits_memory, self._tried):
                array[group[1:]] = array[group[0]]

    def _overlay_measured(self, rates: Array, medians: Array, lows: Array, share: Array) -> None:
        """Replaces the model's rates by the user's own where format and degrees are possible.

        A measurement is that of one tensor group, so configurations with attention ranks get 0.
        """
        for w, workload in enumerate(self._workloads):
            gpus = {measured.gpu for measured in workload.measured}
            sure, mean = self._core.measured_factors(workload)
            low = quantile_factor(self._core.calibration.intervals.measured, LOW_CONFIDENCE)
            for k in (k for k, kind in enumerate(self._kinds) if kind.gpu in gpus):
                spec, known = self._core.gpus.get(self._kinds[k].gpu), self._core.calibration.serving
                for c in np.flatnonzero(self._allowed[k]):
                    if not can_serve(spec, workload, self.configs[c].precision, known):
                        continue
                    size = self.configs[c].gpus_per_replica
                    measured = measurement_for(workload, self._kinds[k].gpu, size)
                    if measured is not None:
                        medians[w, k, c] = 0.0 if self._has_ranks[c] else measured
                        rates[w, k, c] = medians[w, k, c] / sure
                        lows[w, k, c] = medians[w, k, c] / low
                        share[w, k, c] = mean / sure
                        self._fits_memory[w, k, c] |= not self._has_ranks[c]

    def _drop_needless_pipelines(self, rates: Array) -> None:
        """Drops pipelines where one tensor group holds the model; pipelines are for models larger than a
        node.
        """
        rates[self._fits_memory[:, :, self._single] & self._pipelined] = 0.0

    def layout(self, w: int, s: int, c: int) -> Parallelism:
        """The parallel degrees of configuration ``c``, equal for every workload and SKU."""
        return self.configs[c].layout

    def estimate(self, w: int, s: int, c: int, usd_per_replica_hour: float) -> Estimate:
        """The contract's metrics with their intervals. Raises ValueError if the configuration does not
        fit.
        """
        config = self.configs[c]
        found = self._core.estimate(
            self._workloads[w], self._skus[s], config.precision, self.layout(w, s, c), usd_per_replica_hour
        )
        if found is None:
            raise ValueError(f"{self._workloads[w].name} does not fit {self._skus[s].name} as {config}")
        return found

    def bottleneck(self, w: int, s: int, c: int) -> str:
        """What limits the rate, in plain words."""
        config = self.configs[c]
        replica = replica_of(config.layout)
        return self._core.bottleneck(self._workloads[w], self._skus[s], config.precision, replica)

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no configuration fits; None if one does."""
        kind = self._kind[s]
        if bool(self.fits[w, s].any()):
            return None
        if self._without_room[w, s]:
            return Obstacle.DISK
        if self._skus[s].gpu not in self._core.gpus:
            return Obstacle.GPU_UNKNOWN
        if not self._formats[w, kind]:
            return Obstacle.PRECISION
        return Obstacle.LATENCY if bool(self._fits_memory[w, kind].any()) else Obstacle.MEMORY


class _Cases:
    """The physics of cells of workloads with a common number format and class of engine.

    All are services or all batch work, and all or none use speculative decoding.
    """

    def __init__(
        self,
        core: ServingCore,
        precision: Precision,
        engine: str,
        workloads: Sequence[Serving | Batch],
        kinds: Sequence[Sku],
        configs: Sequence[ServingConfig],
    ) -> None:
        self._core, self._precision, self._format = core, precision, _format(workloads[0], precision, core)
        self._engine = engine
        self._workloads, self._batch = workloads, isinstance(workloads[0], Batch)
        self._shapes = stack_shapes([workload.model for workload in workloads])
        self._lengths = [lengths_of(workload) for workload in workloads]
        self._objectives = [objective_of(workload) for workload in workloads]
        self._margins = as_array([core.margin(workload) for workload in workloads])
        drafts = [speculation_of(workload) for workload in workloads]
        self._drafts = [draft for draft in drafts if draft is not None]
        able = [k for k, kind in enumerate(kinds) if kind.gpu in core.gpus]
        self._hw = build_hardware([kinds[k] for k in able], core.gpus, core.calibration)
        self._gpus = [kind.gpu for kind in kinds]
        self._place = np.zeros(len(kinds), dtype=np.intp)
        self._place[able] = np.arange(len(able))
        layouts = [config.layout for config in configs]
        self._tp, self._pp = as_array([d.tp // d.dp for d in layouts]), as_array([d.pp for d in layouts])
        self._dp, self._ep = as_array([d.dp for d in layouts]), as_array([d.ep for d in layouts])

    def memory(self, cells: _Cells) -> tuple[Array, Array]:
        """Limit of sequences in flight, below 1 if memory cannot hold one; and the cold start."""
        served = self._served(cells)
        limit = self._core.limit(served, self._lengths_at(cells), self._margins[cells.asked])
        return limit, self._core.cold_start(served)

    def most(self, cells: _Cells, limit: Array) -> tuple[Array, Array, Array, Array]:
        """Requests/s within the objective with each workload's confidence, their medians and P10; and the
        mean time of requests divided by the time that suffices.
        """
        lengths, objective = self._lengths_at(cells), stacked(self._objectives, cells.asked)
        found = self._core.most_of(self._served(cells), lengths, objective, limit, self._batch)
        rates, share = found.requests_per_s, np.ones(len(cells.asked))
        medians, lows = rates.copy(), rates.copy()
        for asked in np.unique(cells.asked).tolist():
            places = np.flatnonzero(cells.asked == asked)
            workload, some, batch = self._workloads[asked], cells.at(places), found.load.batch[places]
            own = self._own_shifts(workload, some, batch)
            if own is not None:
                rates[places] = medians[places] = self._stretched(some, limit[places], *own)
            if workload.planned_confidence != MEDIAN:
                confidence, least = workload.planned_confidence, LEAST_SURE_SHARE * medians[places]
                times, share[places] = self._factors(workload, some, batch, own, confidence)
                sure = self._stretched(some, limit[places], *times)
                rates[places] = np.where((sure >= least) | self._batch, sure, 0.0)
                if not self._batch:
                    times, _ = self._factors(workload, some, batch, own, LOW_CONFIDENCE)
                    lows[places] = np.maximum(self._stretched(some, limit[places], *times), least)
        return rates, medians, lows, share

    def _own_shifts(
        self, workload: Serving | Batch, cells: _Cells, batch: Array
    ) -> tuple[Array, Array] | None:
        """Factors on the times of tokens and first tokens from own measurements nearby; None without any."""
        own = self._core.own
        if own is None or not own.moves(workload):
            return None
        gpus = [self._gpus[kind] for kind in cells.kind.tolist()]
        token, first = own.log_shifts(workload, self._precision, gpus, self._replica(cells), batch)
        return np.exp(token), np.exp(first)

    def _factors(
        self,
        workload: Serving | Batch,
        cells: _Cells,
        batch: Array,
        shifts: tuple[Array, Array] | None,
        confidence: float,
    ) -> tuple[tuple[Array, Array], Array]:
        """Factors on the times of tokens and first tokens that hold with ``confidence``, ``shifts`` included,
        and the workload's mean time divided by that which suffices.
        """
        gpus, replica, own = (
            [self._gpus[kind] for kind in cells.kind.tolist()],
            self._replica(cells),
            self._core.own,
        )
        near = [NO_ROWS] * len(gpus)
        if own is not None and own.moves(workload):
            near = [
                own.closeness(workload, self._precision, gpu, self._replica(one), batch[m])
                for m, (gpu, one) in enumerate(zip(gpus, _each_of(cells), strict=True))
            ]
        sizes = (replica.tp * replica.pp * replica.dp).tolist()
        each = [
            self._core.factors(workload, self._precision, *one, confidence)
            for one in zip(gpus, sizes, near, strict=True)
        ]
        token, first, share = (as_array(list(column)) for column in zip(*each, strict=True))
        return (token, first) if shifts is None else (token * shifts[0], first * shifts[1]), share

    def _stretched(self, cells: _Cells, limit: Array, token: Array, first: Array) -> Array:
        """Requests/s if tokens take ``token`` and first tokens ``first`` times as long."""
        objective = within(stacked(self._objectives, cells.asked), token, first)
        lengths = self._lengths_at(cells)
        found = self._core.most_of(self._served(cells), lengths, objective, limit, self._batch)
        return found.requests_per_s / token

    def _lengths_at(self, cells: _Cells) -> Lengths:
        return stacked(self._lengths, cells.asked)

    def _replica(self, cells: _Cells) -> Replica:
        place = cells.config
        return Replica(self._tp[place], self._pp[place], self._dp[place], self._ep[place])

    def _served(self, cells: _Cells) -> ServedModel:
        hw, shapes = self._hw.take(self._place[cells.kind]), self._shapes.take(cells.asked)
        return ServedModel(
            shapes,
            self._format,
            self._replica(cells),
            hw,
            self._core.calibration,
            self._engine,
            stacked(self._drafts, cells.asked) if self._drafts else None,
            sequences_told=self._core.sequences_told(self._engine, self._batch),
        )


def _format(workload: Serving | Batch, precision: Precision, core: ServingCore) -> Format:
    return format_of(precision, core.calibration, workload.model.packed_in(precision))


def _physics_of(core: ServingCore, workload: Serving | Batch) -> Hashable:
    """Cache key of a replica's rate: services that differ only in demand or policy are computed once."""
    slo = workload.slo if isinstance(workload, Serving) else None
    lengths = lengths_of(workload)
    tokens = float(lengths.input_tokens), float(lengths.output_tokens)
    measured = workload.measured if core.own is not None and core.own.moves(workload) else ()
    decoding = workload.prefix_cache_hit_share, workload.speculation
    asked = workload.planned_confidence
    return type(workload), workload.model, tokens, slo, workload.precisions, measured, decoding, asked


def _parts(size: int) -> Iterator[Places]:
    places = np.arange(size)
    return (places[start : start + CELLS_AT_ONCE] for start in range(0, size, CELLS_AT_ONCE))
