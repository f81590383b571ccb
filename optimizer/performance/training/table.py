"""Training estimates of every workload, SKU and node count at once, each in its best layout.

W workloads, S SKUs, N node counts, L layouts. SKUs that the physics cannot distinguish are computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker.domain.basics.confidence import MEDIAN, MEMORY_LEAST, deviation_of, work_factors
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Training
from optimizer.performance.arrays import Array, Mask, Places, as_array
from optimizer.performance.hardware.sku_arrays import Hardware, build_hardware, kinds_of
from optimizer.performance.intervals import NO_ROWS
from optimizer.performance.training.estimate import (
    Case,
    TrainingCore,
    bottleneck_of,
    can_train,
    held_hours,
    layouts_for,
    measurement_for,
    run_of,
    step_tokens,
)
from optimizer.performance.training.layouts import (
    FULL_RECOMPUTE,
    Layouts,
    recompute_word,
)
from optimizer.performance.training.step import footprint, step

CELLS_AT_ONCE = 24_000
DEGREES = 7


@dataclass(frozen=True, slots=True)
class _Found:
    """Best step time [S, N] and its degrees [S, N, 7] (tp, pp, dp, cp, ep, micro-batch, recomputation).

    ``fits_joined`` [S, N]: whether it would fit with a fabric; ``tried`` [S]: number of layouts compared.
    """

    step_s: Array
    degrees: NDArray[np.int64]
    fits_joined: Mask
    tried: NDArray[np.int64]

    def copied(self) -> _Found:
        """A copy whose step times and degrees may be changed."""
        return replace(self, step_s=self.step_s.copy(), degrees=self.degrees.copy())


class TrainingTable:
    """Estimates of W×S×N.

    ``hours`` (without spot interruptions) suffice with each workload's confidence; inf if the run does not
    fit. ``mean_share``: the mean of the hours after the start-up divided by those that suffice; 1 where
    medians are planned. ``deviation``: the standard deviation of the logarithm of the hours after the
    start-up, on their slow side; 0 where medians are planned.
    """

    def __init__(
        self,
        core: TrainingCore,
        workloads: Sequence[Training],
        skus: Sequence[Sku],
        node_counts: Sequence[int],
    ) -> None:
        self._core, self._workloads, self._skus = core, tuple(workloads), tuple(skus)
        self.node_counts: NDArray[np.int64] = np.asarray(node_counts, dtype=np.int64)
        kinds, self._kind = kinds_of(skus)
        number = {kind: index for index, kind in enumerate(kinds)}
        self._known = [kind for kind in kinds if kind.gpu in core.gpus]
        shape = (len(workloads), len(kinds), len(node_counts))
        hours, self._step_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self._sure, self._share, self._deviation = np.ones(shape), np.ones(shape), np.zeros(shape)
        self._degrees: NDArray[np.int64] = np.ones((*shape, DEGREES), dtype=np.int64)
        self._joined: Mask = np.zeros(shape, dtype=np.bool_)
        self._formats: Mask = np.zeros(shape[:2], dtype=np.bool_)
        self._tried: NDArray[np.int64] = np.zeros(shape[:2], dtype=np.int64)
        if self._known and len(node_counts):
            places = np.asarray([number[kind] for kind in self._known], dtype=np.intp)
            self._fill(places, hours)
        self.hours: Array = hours[:, self._kind, :]
        self.mean_share: Array = self._share[:, self._kind, :]
        self.deviation: Array = self._deviation[:, self._kind, :]
        self.fits: Mask = np.isfinite(self.hours)
        self._without_room: Mask = np.zeros(self.fits.shape[:2], dtype=np.bool_)

    def withhold(self, without_room: Mask) -> None:
        """Removes node counts [W, S, N] for which hosts have too little disk or memory."""
        self._without_room |= (self.fits & without_room).any(axis=2)
        self.hours = np.where(without_room, np.inf, self.hours)
        self.fits = np.isfinite(self.hours)

    def _fill(self, places: Places, hours: Array) -> None:
        hw = build_hardware(self._known, self._core.gpus, self._core.calibration)
        nodes = as_array(self.node_counts)
        searched: dict[Hashable, _Found] = {}
        for w, workload in enumerate(self._workloads):
            has_format = can_train(hw, workload)
            self._formats[w, places] = has_format
            able = np.flatnonzero(has_format)
            if not able.size:
                continue
            key = _physics_of(workload)
            kinds = [self._known[k] for k in able]
            if key not in searched:
                searched[key] = search(self._core, workload, kinds, hw.take(able), nodes)
            found, where = searched[key], places[able]
            measured: Mask = np.zeros(found.step_s.shape, dtype=np.bool_)
            if workload.measured or self._core.own is not None:
                found = found.copied()
                _shift(self._core, workload, kinds, nodes, found)
                for index, kind in enumerate(kinds):
                    measured[index] = _overlay_measured(
                        workload, kind, nodes, hw.nodes_most[able[index]], index, found
                    )
            self._step_s[w, where], self._degrees[w, where] = found.step_s, found.degrees
            self._joined[w, where], self._tried[w, where] = found.fits_joined, found.tried
            per_node = hw.gpus_per_node[able][:, None]
            self._sure[w, where], self._share[w, where], self._deviation[w, where] = _factors(
                self._core, workload, kinds, nodes, found, measured
            )
            median = held_hours(
                workload, found.step_s, nodes, per_node, as_array(0.0), self._core.calibration
            )
            hours[w, where] = self._at_confidence(median, self._sure[w, where])

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Number of layouts [W, S] that were compared, over all node counts that the fabric connects."""
        return self._tried[:, self._kind]

    @property
    def startup_hours(self) -> float:
        """Held hours of each start of a run; ``hours`` contain one."""
        return self._core.calibration.goodput.startup_s / 3600.0

    def hours_at(self, w: int, s: int, n: int, interruptions_per_hour: ArrayLike) -> Array:
        """Hours that suffice with spot interruptions per NODE-hour, in the shape of the rates."""
        median = held_hours(
            self._workloads[w],
            as_array(self._step_s[w, self._kind[s], n]),
            as_array(self.node_counts[n]),
            as_array(self._skus[s].gpus_per_node),
            as_array(interruptions_per_hour),
            self._core.calibration,
        )
        return self._at_confidence(median, as_array(self._sure[w, self._kind[s], n]))

    def hours_at_each(self, w: int, s: Places, n: Places, interruptions_per_hour: Array) -> Array:
        """Hours [M] that suffice for pairs of SKU and node count, each with its own interruptions per
        node-hour.
        """
        per_node = as_array([sku.gpus_per_node for sku in self._skus])
        median = held_hours(
            self._workloads[w],
            self._step_s[w, self._kind[s], n],
            as_array(self.node_counts[n]),
            per_node[s],
            interruptions_per_hour,
            self._core.calibration,
        )
        return self._at_confidence(median, self._sure[w, self._kind[s], n])

    def _at_confidence(self, hours: Array, factor: Array) -> Array:
        return self.startup_hours + (hours - self.startup_hours) * factor

    def layout(self, w: int, s: int, n: int) -> Parallelism:
        """The layout with the least step time."""
        tp, pp, dp, cp, ep, micro, recompute = (int(d) for d in self._degrees[w, self._kind[s], n])
        word = recompute_word(recompute)
        return Parallelism(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, micro_batch=micro, recompute=word)

    def estimate(self, w: int, s: int, n: int, interruptions_per_hour: float = 0.0) -> Estimate:
        """The contract's metrics with their intervals. Raises ValueError if the run does not fit."""
        return self._core.estimate(self._case(w, s, n), interruptions_per_hour)

    def bottleneck(self, w: int, s: int, n: int) -> str:
        """The cause that takes most of a step, in plain words."""
        return bottleneck_of(self._case(w, s, n))

    def obstacle(self, w: int, s: int, among: Mask | None = None) -> Obstacle | None:
        """Why none of the node counts ``among`` [N] fits (default: all); None if one does."""
        counts = np.ones(len(self.node_counts), dtype=np.bool_) if among is None else among
        if bool(self.fits[w, s, counts].any()):
            return None
        if self._without_room[w, s]:
            return Obstacle.DISK
        if self._skus[s].gpu not in self._core.gpus:
            return Obstacle.GPU_UNKNOWN
        if not self._formats[w, self._kind[s]]:
            return Obstacle.PRECISION
        return Obstacle.FABRIC if self._joined[w, self._kind[s], counts].any() else Obstacle.MEMORY

    def _case(self, w: int, s: int, n: int) -> Case:
        found = None
        if self.fits[w, s, n]:
            found = self._core.case(
                self._workloads[w], self._skus[s], int(self.node_counts[n]), self.layout(w, s, n)
            )
        if found is None:
            raise ValueError(f"{self._workloads[w].name} does not fit {self._skus[s].name} there")
        return found


def _physics_of(workload: Training) -> Hashable:
    """Cache key of a step: runs that differ only in tokens, dates or policy share their search."""
    sequences = float(run_of(workload).sequences)
    asked = max(workload.planned_confidence, MEMORY_LEAST)
    run = (workload.sequence_length, sequences, workload.precision, workload.software)
    return workload.model, workload.training_method, *run, asked


def search(
    core: TrainingCore, workload: Training, kinds: Sequence[Sku], hw: Hardware, nodes: Array
) -> _Found:
    """The best layout of each kind and node count. Kinds with equal node size and equal presence of a fabric
    are searched together.
    """
    found = _Found(
        np.full((len(kinds), nodes.size), np.inf),
        np.ones((len(kinds), nodes.size, DEGREES), dtype=np.int64),
        np.zeros((len(kinds), nodes.size), dtype=np.bool_),
        np.zeros(len(kinds), dtype=np.int64),
    )
    groups: dict[tuple[int, bool], list[int]] = {}
    for index, kind in enumerate(kinds):
        groups.setdefault((kind.gpus_per_node, kind.fabric is None), []).append(index)
    for (per_node, _), members in groups.items():
        group = np.asarray(members, dtype=np.intp)
        pairs, part = _pairs(workload, per_node, nodes), hw.take(group)
        blocks = -(-pairs.count.size * group.size // CELLS_AT_ONCE)
        for counts in np.array_split(np.arange(nodes.size), min(nodes.size, max(1, blocks))):
            few = pairs.take(np.flatnonzero((pairs.count >= counts[0]) & (pairs.count <= counts[-1])))
            _search_block(core, workload, part, few, group, found)
    return found


def _shift(core: TrainingCore, workload: Training, kinds: Sequence[Sku], nodes: Array, found: _Found) -> None:
    """Corrects step times by own measurements nearby, after the layouts are chosen."""
    if core.own is None or not core.own.moves(workload):
        return
    s, n = np.nonzero(np.isfinite(found.step_s))
    if not s.size:
        return
    counts = nodes[n] * as_array([kind.gpus_per_node for kind in kinds])[s]
    gpus = [kinds[index].gpu for index in s.tolist()]
    found.step_s[s, n] *= np.exp(core.own.log_shift(workload, gpus, counts, found.degrees[s, n]))


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs [P] of a node count and a layout that divides its GPUs, ordered by node count.

    ``count``: index of the node count; ``nodes`` and ``gpus``: their number; ``before``: how many pairs back
    the same pair without recomputation stands.
    """

    count: Places
    nodes: Array
    gpus: Array
    layouts: Layouts
    before: Places

    def take(self, indices: Places) -> _Pairs:
        """The pairs at ``indices``."""
        return _Pairs(
            self.count[indices],
            self.nodes[indices],
            self.gpus[indices],
            self.layouts.take(indices),
            self.before[indices],
        )


def _pairs(workload: Training, per_node: int, nodes: Array) -> _Pairs:
    """Every node count with the layouts that are possible on that many nodes of ``per_node`` GPUs."""
    layouts = layouts_for(workload, per_node)
    gpus = nodes * per_node
    count, layout = np.nonzero(gpus[:, None] % layouts.ranks_per_copy == 0)
    place = count * layouts.tp.size + layout
    before = np.arange(place.size) - np.searchsorted(place, place - layouts.recompute_offset[layout])
    return _Pairs(count, nodes[count], gpus[count], layouts.take(layout), before)


def _search_block(
    core: TrainingCore, workload: Training, hw: Hardware, pairs: _Pairs, members: Places, found: _Found
) -> None:
    """Memory of each kind [K] and pair first, which costs little; then times, only of pairs that fit
    somewhere.
    """
    across = hw.across(1)
    held = footprint(core.scenario(workload, pairs.layouts, across), pairs.gpus)
    fits = np.broadcast_to(held.fits & held.divides, (members.size, pairs.count.size))
    joined = pairs.nodes <= hw.nodes_most[:, None]
    found.tried[members] += joined.sum(axis=1)
    kind, pair = np.nonzero(fits)
    found.fits_joined[members[kind], pairs.count[pair]] = True
    possible = fits & joined
    # Where a layout fits without recomputation, recomputation only takes time.
    possible = possible & ~(possible[:, np.arange(pairs.count.size) - pairs.before] & (pairs.before > 0))
    kept = np.flatnonzero(possible.any(axis=0))
    if not kept.size:
        return
    pairs = pairs.take(kept)
    each = step(core.scenario(workload, pairs.layouts, across), pairs.gpus)
    times = np.where(possible[:, kept], each.total, np.inf)
    counts, first = np.unique(pairs.count, return_index=True)
    least = np.minimum.reduceat(times, first, axis=1)
    lengths = np.diff([*first, kept.size])
    fastest = np.where(times == np.repeat(least, lengths, axis=1), np.arange(kept.size), kept.size - 1)
    best = np.minimum.reduceat(fastest, first, axis=1)
    where = members[:, None], counts
    found.step_s[where] = least
    found.degrees[where] = _degrees(pairs, best)


def _degrees(pairs: _Pairs, best: Places) -> NDArray[np.int64]:
    layouts = pairs.layouts
    dp = pairs.gpus // layouts.ranks_per_copy
    words = np.minimum(layouts.recompute, FULL_RECOMPUTE)
    parts = (layouts.tp, layouts.pp, dp, layouts.cp, layouts.ep, layouts.micro_batch, words)
    return np.stack([part[best] for part in parts], axis=2).astype(np.int64)


def _factors(
    core: TrainingCore,
    workload: Training,
    kinds: Sequence[Sku],
    nodes: Array,
    found: _Found,
    measured: Mask,
) -> tuple[Array, Array, Array]:
    """The hours that suffice divided by the median [S, N], the mean hours divided by those, and the deviation
    of the logarithm.
    """
    shape = found.step_s.shape
    sure, share, deviation = np.ones(shape), np.ones(shape), np.zeros(shape)
    if workload.planned_confidence == MEDIAN:
        return sure, share, deviation
    is_own = core.own is not None and core.own.moves(workload)
    for s, n in zip(*np.nonzero(np.isfinite(found.step_s)), strict=True):
        near, count = NO_ROWS, float(nodes[n] * kinds[s].gpus_per_node)
        if is_own and not measured[s, n] and core.own is not None:
            near = core.own.closeness(workload, kinds[s].gpu, count, found.degrees[s, n][None, :])
        hours = core.sides(workload, kinds[s].gpu, count, bool(measured[s, n]), near)["hours"]
        most, mean = work_factors(hours.over, hours.under, workload.planned_confidence)
        sure[s, n], share[s, n], deviation[s, n] = most, mean / most, deviation_of(hours.over)
    return sure, share, deviation


def _overlay_measured(
    workload: Training, kind: Sku, nodes: Array, nodes_most: float, index: int, found: _Found
) -> Mask:
    """Replaces the model's step time by the user's, and tells where [N]; a measurement also shows that the
    run fits from that size on.
    """
    replaced: Mask = np.zeros(len(nodes), dtype=np.bool_)
    for n, count in enumerate(nodes):
        gpus = int(count) * kind.gpus_per_node
        measured = measurement_for(workload, kind.gpu, gpus)
        if measured is None or count > nodes_most:
            continue
        fits = bool(np.isfinite(found.step_s[index, n]))
        if not fits and gpus < measured.gpus:
            continue
        found.step_s[index, n] = step_tokens(workload) / (
            (measured.tokens_per_s or 0.0) / measured.gpus * gpus
        )
        replaced[n] = True
        if not fits:
            found.degrees[index, n] = (1, 1, gpus, 1, 1, 1, 0)
    return replaced
