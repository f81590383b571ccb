"""Training over every workload, SKU and node count at once, the best layout of each.

W workloads, S SKUs, N node counts, L layouts. SKUs that the physics cannot tell apart are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker.domain.estimate import Estimate, Parallelism
from broker.domain.plan import Obstacle
from broker.domain.sku import Sku
from broker.domain.workload import Training
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.hardware import GIB, Hardware, build_hardware, kind_of
from optimizer.performance.layouts import Layouts, enumerate_layouts
from optimizer.performance.training import step
from optimizer.performance.training_estimate import (
    TRAINABLE,
    Case,
    TrainingCore,
    bottleneck_of,
    held_hours,
    measurement_for,
    step_tokens,
)

CELLS_AT_ONCE = 120_000
DEGREES = 7


@dataclass(frozen=True, slots=True)
class _Found:
    """Best step [S, N], its degrees [S, N, 7] (tp pp dp cp ep micro-batch recompute), and per S whether
    some node count would fit were there a fabric."""

    step_s: Array
    degrees: NDArray[np.int64]
    fits_joined: Mask


class TrainingTable:
    """Estimates of W×S×N; ``hours`` (no spot interruptions) is inf where the run does not fit."""

    def __init__(
        self,
        core: TrainingCore,
        workloads: Sequence[Training],
        skus: Sequence[Sku],
        node_counts: Sequence[int],
    ) -> None:
        self._core, self._workloads, self._skus = core, tuple(workloads), tuple(skus)
        self.node_counts: NDArray[np.int64] = np.asarray(node_counts, dtype=np.int64)
        kinds = list(dict.fromkeys(kind_of(sku) for sku in skus))
        number = {kind: index for index, kind in enumerate(kinds)}
        self._known = [kind for kind in kinds if kind.gpu in core.gpus]
        self._kind = np.asarray([number[kind_of(sku)] for sku in skus], dtype=np.intp)
        shape = (len(workloads), len(kinds), len(node_counts))
        hours, self._step_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self._degrees: NDArray[np.int64] = np.ones((*shape, DEGREES), dtype=np.int64)
        self._joined: Mask = np.zeros(shape[:2], dtype=np.bool_)
        self._formats: Mask = np.zeros(shape[:2], dtype=np.bool_)
        if self._known and len(node_counts):
            places = np.asarray([number[kind] for kind in self._known], dtype=np.intp)
            self._fill(places, hours)
        self.hours: Array = hours[:, self._kind, :]
        self.fits: Mask = np.isfinite(self.hours)

    def _fill(self, places: NDArray[np.intp], hours: Array) -> None:
        hw = build_hardware(self._known, self._core.gpus, self._core.calibration)
        nodes = as_array(self.node_counts)
        for w, workload in enumerate(self._workloads):
            if workload.precision not in TRAINABLE:
                continue
            has_format = hw.peak[workload.precision.value] > 0
            self._formats[w, places] = has_format
            able = np.flatnonzero(has_format)
            if not able.size:
                continue
            kinds = [self._known[k] for k in able]
            found = search(self._core, workload, kinds, hw.take(able), nodes)
            _shift(self._core, workload, kinds, nodes, found)
            for index, kind in enumerate(kinds):
                _overlay_measured(workload, kind, nodes, hw.nodes_most[able[index]], index, found)
            where = places[able]
            self._step_s[w, where], self._degrees[w, where] = found.step_s, found.degrees
            self._joined[w, where] = found.fits_joined
            per_node = hw.gpus_per_node[able][:, None]
            hours[w, where] = held_hours(
                workload, found.step_s, nodes, per_node, as_array(0.0), self._core.calibration
            )

    def hours_at(self, w: int, s: int, n: int, interruptions_per_hour: ArrayLike) -> Array:
        """Held hours at spot interruptions per NODE-hour; the shape of the rates."""
        return held_hours(
            self._workloads[w],
            as_array(self._step_s[w, self._kind[s], n]),
            as_array(self.node_counts[n]),
            as_array(self._skus[s].gpus_per_node),
            as_array(interruptions_per_hour),
            self._core.calibration,
        )

    def layout(self, w: int, s: int, n: int) -> Parallelism:
        """The layout of the least step time."""
        tp, pp, dp, cp, ep, micro, recompute = (int(d) for d in self._degrees[w, self._kind[s], n])
        word = ("none", "selective", "full")[recompute]
        return Parallelism(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, micro_batch=micro, recompute=word)

    def estimate(self, w: int, s: int, n: int, interruptions_per_hour: float = 0.0) -> Estimate:
        """Metrics of the contract with their interval. Raises ValueError where the run does not fit."""
        return self._core.estimate(self._case(w, s, n), interruptions_per_hour)

    def bottleneck(self, w: int, s: int, n: int) -> str:
        """The part that takes most of a step, in plain words."""
        return bottleneck_of(self._case(w, s, n))

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no node count fits; None when one does."""
        if bool(self.fits[w, s].any()):
            return None
        if self._skus[s].gpu not in self._core.gpus:
            return Obstacle.GPU_UNKNOWN
        if not self._formats[w, self._kind[s]]:
            return Obstacle.PRECISION
        return Obstacle.FABRIC if self._joined[w, self._kind[s]] else Obstacle.MEMORY

    def _case(self, w: int, s: int, n: int) -> Case:
        found = None
        if self.fits[w, s, n]:
            found = self._core.case(
                self._workloads[w], self._skus[s], int(self.node_counts[n]), self.layout(w, s, n)
            )
        if found is None:
            raise ValueError(f"{self._workloads[w].name} does not fit {self._skus[s].name} there")
        return found


def search(
    core: TrainingCore, workload: Training, kinds: Sequence[Sku], hw: Hardware, nodes: Array
) -> _Found:
    """The best layout of each kind and node count; kinds that share a node size share their layouts."""
    found = _Found(
        np.full((len(kinds), nodes.size), np.inf),
        np.ones((len(kinds), nodes.size, DEGREES), dtype=np.int64),
        np.zeros(len(kinds), dtype=np.bool_),
    )
    groups: dict[tuple[int, int], list[int]] = {}
    for index, kind in enumerate(kinds):
        rung = int(np.log2(hw.memory_bytes[index] / GIB))
        groups.setdefault((kind.gpus_per_node, rung), []).append(index)
    for (per_node, rung), members in groups.items():
        layouts = _layouts(workload, per_node, GIB * 2.0**rung, core)
        chunk = max(1, CELLS_AT_ONCE // (nodes.size * layouts.tp.size))
        for start in range(0, len(members), chunk):
            part = np.asarray(members[start : start + chunk], dtype=np.intp)
            _search_part(core, workload, layouts, hw.take(part), nodes, per_node, part, found)
    return found


def _shift(core: TrainingCore, workload: Training, kinds: Sequence[Sku], nodes: Array, found: _Found) -> None:
    """Own measurements move the steps near them, after the layouts are chosen."""
    if core.own is None or not core.own.moves(workload):
        return
    s, n = np.nonzero(np.isfinite(found.step_s))
    if not s.size:
        return
    counts = nodes[n] * as_array([kind.gpus_per_node for kind in kinds])[s]
    gpus = [kinds[index].gpu for index in s.tolist()]
    found.step_s[s, n] *= np.exp(core.own.log_shift(workload, gpus, counts, found.degrees[s, n]))


def _layouts(workload: Training, per_node: int, memory_bytes: float, core: TrainingCore) -> Layouts:
    """Layouts for a node size; pipelines only as deep as weights and gradients may ask, and twice that."""
    model = workload.model
    weights = core.software.weight_grad_bytes_per_param * model.total_params
    need = weights / (min(per_node, 8) * 0.5 * memory_bytes)
    stages = 1 << max(1, int(np.ceil(np.log2(max(need, 1.0)))) + 1)
    experts = model.experts if model.is_moe else 0
    return enumerate_layouts(per_node, model.layers, model.heads, experts, workload.sequence_length, stages)


def _search_part(
    core: TrainingCore,
    workload: Training,
    layouts: Layouts,
    hw: Hardware,
    nodes: Array,
    per_node: int,
    members: NDArray[np.intp],
    found: _Found,
) -> None:
    gpus = (nodes * per_node)[:, None]
    each = step(core.scenario(workload, layouts, hw.across(2)), gpus)
    possible = each.fits & each.divides
    joined = nodes[None, :] <= hw.nodes_most[:, None]
    times = np.where(possible & joined[:, :, None], each.total, np.inf)
    best = np.argmin(times, axis=2)
    found.step_s[members] = np.take_along_axis(times, best[:, :, None], axis=2)[:, :, 0]
    found.fits_joined[members] = possible.any(axis=(1, 2))
    found.degrees[members] = _degrees(layouts, best, gpus[:, 0])


def _degrees(layouts: Layouts, best: NDArray[np.intp], gpus: Array) -> NDArray[np.int64]:
    dp = np.maximum(gpus[None, :] // layouts.ranks_per_copy[best], 1.0)
    parts = (layouts.tp, layouts.pp, None, layouts.cp, layouts.ep, layouts.micro_batch, layouts.recompute)
    columns = [dp if part is None else part[best] for part in parts]
    return np.stack(columns, axis=2).astype(np.int64)


def _overlay_measured(
    workload: Training, kind: Sku, nodes: Array, nodes_most: float, index: int, found: _Found
) -> None:
    """The user's own rate in place of the model's; it also shows that the run fits from that size on."""
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
        if not fits:
            found.degrees[index, n] = (1, 1, gpus, 1, 1, 1, 0)
