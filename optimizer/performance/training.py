"""Step time of a training run: compute, tensor, context, expert, pipeline and data-parallel traffic.

All functions broadcast over models, kinds of SKU, node counts and layouts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.performance.arrays import Array, Mask
from optimizer.performance.calibration import Calibration, Software
from optimizer.performance.compute import LayerTime, head_forward, layer_forward, rank_tokens
from optimizer.performance.hardware import Hardware
from optimizer.performance.layouts import Layouts
from optimizer.performance.memory import (
    activation_bytes,
    expert_replicas,
    fits,
    peak_bytes,
    rank_params,
    state_bytes,
)
from optimizer.performance.network import all_reduce_s, all_to_all_s, neighbour_s, reduce_scatter_s
from optimizer.performance.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Run:
    """What a step is made of: tokens a sequence, sequences a step, the format of the products.

    ``adapters``: only small adapters are trained (LoRA), so weights have no gradients and no states.
    """

    sequence_length: Array
    sequences: Array
    number_format: str
    adapters: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, seconds. The parts add up to ``total`` (less the straggler and VM factor).

    ``compute``: products and attention; ``memory_bound``: small kernels, launches, optimizer; then what
    stays visible of tensor (and context), expert, pipeline and data-parallel traffic; ``bubble``.
    ``peak_bytes`` is what the allocator peaks at, ``divides`` whether the layout makes sense at all.
    """

    total: Array
    compute: Array
    memory_bound: Array
    tensor: Array
    expert: Array
    pipeline: Array
    data: Array
    bubble: Array
    peak_bytes: Array
    fits: Mask
    divides: Mask

    @property
    def communication(self) -> Array:
        """Visible traffic of all kinds."""
        return self.tensor + self.expert + self.pipeline + self.data


@dataclass(frozen=True, slots=True)
class _Stage:
    """One micro-batch forward and backward on one stage, by part."""

    compute: Array
    memory_bound: Array
    tensor: Array
    expert: Array

    @property
    def total(self) -> Array:
        return self.compute + self.memory_bound + self.tensor + self.expert


def step(
    shapes: Shapes,
    run: Run,
    layouts: Layouts,
    gpus: Array,
    hw: Hardware,
    software: Software,
    calibration: Calibration,
) -> Step:
    """Time and memory of a step on ``gpus`` GPUs in all.

    Fill and drain: (m + (p−1)/v) stage times; gradient and parameter traffic hides behind the end of
    the backward pass; sharded parameters travel with every micro-batch.
    """
    dp, micro, divides = batch_split(shapes, run, layouts, gpus, hw)
    interleave = interleave_of(shapes, layouts, micro, calibration)
    average, fullest = _stages(shapes, run, layouts, hw, software, calibration)
    pipeline = _pipeline(shapes, run, layouts, dp, micro, interleave, hw, software)
    data = np.zeros_like(dp)
    if not run.adapters:
        data = _data(shapes, layouts, dp, micro, fullest.total, hw, software, calibration)
    bubble = (layouts.pp - 1.0) / interleave * average.total
    fixed = _optimizer(shapes, layouts, dp, hw, calibration)
    nodes = np.maximum(gpus / hw.gpus_per_node, 1.0)
    drag = 1.0 + calibration.compute.straggler_per_doubling * np.log2(nodes) + hw.vm_slowdown
    busy = micro * fullest.total
    states = state_bytes(shapes, layouts, dp, calibration, run.adapters)
    kept = activation_bytes(shapes, run.sequence_length, layouts, micro, interleave, software, calibration)
    peak = peak_bytes(states, kept, calibration)
    return Step(
        total=(busy + bubble + pipeline + data + fixed) * drag,
        compute=micro * fullest.compute,
        memory_bound=micro * fullest.memory_bound + fixed,
        tensor=micro * fullest.tensor,
        expert=micro * fullest.expert,
        pipeline=pipeline,
        data=data,
        bubble=bubble,
        peak_bytes=peak,
        fits=fits(peak, hw, calibration),
        divides=divides,
    )


def batch_split(
    shapes: Shapes, run: Run, layouts: Layouts, gpus: Array, hw: Hardware
) -> tuple[Array, Array, Mask]:
    """Data-parallel ranks, micro-batches a pipeline, and whether both make sense.

    Sequences that do not divide leave ranks idle at the end of a step: micro-batches round up.
    """
    dp = gpus / layouts.ranks_per_copy
    whole = (dp >= 1.0) & (dp == np.floor(dp)) & (layouts.pp <= shapes.layers)
    dp = np.maximum(np.floor(dp), 1.0)
    micro = np.ceil(run.sequences / (dp * layouts.micro_batch))
    enough = run.sequences >= dp * layouts.micro_batch
    experts = (layouts.ep == 1.0) | (
        (layouts.ep <= dp * layouts.tp * layouts.cp) & (layouts.ep <= np.maximum(shapes.experts, 1.0))
    )
    return dp, np.maximum(micro, 1.0), whole & enough & experts


def interleave_of(shapes: Shapes, layouts: Layouts, micro: Array, calibration: Calibration) -> Array:
    """Chunks a stage: as given, else the most that divide its layers when micro-batches fill the pipeline."""
    stage = np.ceil(shapes.layers / layouts.pp)
    best = np.ones_like(stage)
    for chunks in range(2, int(calibration.compute.interleave_most) + 1):
        best = np.where(stage % chunks == 0, float(chunks), best)
    possible = (layouts.pp > 1.0) & (micro % layouts.pp == 0)
    chosen = np.where(possible, best, 1.0)
    return np.where(layouts.interleave > 0, layouts.interleave, chosen)


def _stages(
    shapes: Shapes, run: Run, layouts: Layouts, hw: Hardware, software: Software, calibration: Calibration
) -> tuple[_Stage, _Stage]:
    """An average stage (for fill and drain) and the fullest one, which sets the pace."""
    forward = layer_forward(
        shapes, run.sequence_length, run.number_format, layouts, hw, software, calibration
    )
    compute, small = _forward_backward(forward, run, layouts, software, calibration)
    host = software.host_s_per_layer * _host_factor(shapes, calibration)
    small = small + np.maximum(host - compute - small, 0.0)
    tensor = _tensor(shapes, run, layouts, hw, software, calibration)
    expert = _expert(shapes, run, layouts, hw, calibration)
    head = 3.0 * head_forward(shapes, run.sequence_length, layouts, hw, calibration)
    one = layouts.pp == 1.0
    layers = shapes.layers / layouts.pp
    most = np.ceil(layers)
    on_last = np.floor(layers)
    body = compute + small + tensor + expert
    last_leads = one | (on_last * body + head > most * body)
    count, with_head = np.where(last_leads, on_last, most), np.where(last_leads, head, 0.0)
    average = _Stage(layers * compute + head / layouts.pp, layers * small, layers * tensor, layers * expert)
    return average, _Stage(count * compute + with_head, count * small, count * tensor, count * expert)


def _forward_backward(
    forward: LayerTime, run: Run, layouts: Layouts, software: Software, calibration: Calibration
) -> tuple[Array, Array]:
    """Compute and memory-bound time of a layer, backward twice the forward, plus what is recomputed.

    Adapters need gradients of inputs only: the backward pass then costs one forward.
    """
    passes = 2.0 if run.adapters else 3.0
    full = np.where(layouts.recompute >= 2.0, 1.0, 0.0)
    again = full if software.flash_attention else np.where(layouts.recompute >= 1.0, 1.0, 0.0)
    attention = forward.attention * (1.0 + calibration.compute.attention_backward_factor + again)
    compute = software.slowdown * (forward.products * (passes + full) + attention)
    return compute, software.slowdown * forward.elementwise * (3.0 + full)


def _host_factor(shapes: Shapes, calibration: Calibration) -> Array:
    share = shapes.moe_layers / shapes.layers
    return 1.0 + (calibration.compute.moe_host_factor - 1.0) * share


def _tensor(
    shapes: Shapes, run: Run, layouts: Layouts, hw: Hardware, software: Software, calibration: Calibration
) -> Array:
    """Visible tensor and context traffic of a layer: 4 all-reduces of b·S·h·2 bytes, 6 if recomputed."""
    tokens = rank_tokens(layouts, run.sequence_length)
    again = np.where(layouts.recompute >= 2.0, 2.0, 0.0)
    one = np.ones_like(layouts.tp)
    reduce = all_reduce_s(2.0 * tokens * shapes.hidden, layouts.tp, one, hw, calibration.network)
    visible = software.tp_exposed * (4.0 + again) * reduce
    if not np.any(layouts.cp > 1.0):
        return visible
    keys = 2.0 * tokens * shapes.kv_width * layouts.cp / layouts.tp
    exchange = reduce_scatter_s(keys, layouts.cp, layouts.tp, hw, calibration.network)
    return visible + calibration.network.context_exposed * 3.0 * exchange


def _expert(shapes: Shapes, run: Run, layouts: Layouts, hw: Hardware, calibration: Calibration) -> Array:
    """Dispatch and combine of an average layer, forward and backward: 4·tokens·k·h·2 bytes (e−1)/e."""
    if not np.any(layouts.ep > 1.0):
        return np.zeros_like(layouts.ep)
    tokens = rank_tokens(layouts, run.sequence_length) / layouts.tp
    size = 2.0 * tokens * shapes.active_experts * shapes.hidden
    again = np.where(layouts.recompute >= 2.0, 2.0, 0.0)
    each = all_to_all_s(size, layouts.ep, hw, calibration.network)
    return (4.0 + again) * each * shapes.moe_layers / shapes.layers


def _pipeline(
    shapes: Shapes,
    run: Run,
    layouts: Layouts,
    dp: Array,
    micro: Array,
    interleave: Array,
    hw: Hardware,
    software: Software,
) -> Array:
    """Visible hand-over between stages: b·S·h·2/t bytes each way, per chunk; ramps show in full."""
    if not np.any(layouts.pp > 1.0):
        return np.zeros_like(layouts.pp)
    size = 2.0 * rank_tokens(layouts, run.sequence_length) * shapes.hidden / layouts.tp
    one_way = neighbour_s(size, layouts.tp * layouts.cp * dp, hw)
    times = np.where(
        layouts.pp > 1.0, 2.0 * (software.pp_exposed * micro * interleave + layouts.pp - 1.0), 0.0
    )
    return np.where(times > 0, times * one_way, 0.0)


def _data(
    shapes: Shapes,
    layouts: Layouts,
    dp: Array,
    micro: Array,
    busy_s: Array,
    hw: Hardware,
    software: Software,
    calibration: Calibration,
) -> Array:
    """Visible gradient and parameter traffic over the data-parallel ranks."""
    network = calibration.network
    dense, experts = rank_params(shapes, layouts)
    gradients, weights = network.gradient_bytes_per_param, network.parameter_bytes_per_param
    per_param = np.where(layouts.sharding >= 3.0, gradients + 2.0 * weights, gradients + weights)
    per_param = np.where(layouts.sharding < 1.0, 2.0 * gradients, per_param)
    inner = layouts.tp * layouts.cp
    traffic = reduce_scatter_s(per_param * dense, dp * layouts.cp, layouts.tp, hw, network)
    if np.any(shapes.experts > 0):
        spread = np.maximum(layouts.ep, inner)
        traffic = traffic + reduce_scatter_s(
            per_param * experts, expert_replicas(layouts, dp), spread, hw, network
        )
    hidden = traffic - network.backward_overlap * busy_s
    at_end = np.maximum(software.dp_exposed * traffic, hidden)
    if not np.any(layouts.sharding >= 3.0):
        return at_end
    each = np.maximum(traffic - busy_s, 0.0) + network.zero3_serial * np.minimum(traffic, busy_s)
    return np.where(layouts.sharding >= 3.0, micro * each, at_end)


def _optimizer(shapes: Shapes, layouts: Layouts, dp: Array, hw: Hardware, calibration: Calibration) -> Array:
    """Adam over the rank's share of the states, and the step's fixed time."""
    dense, experts = rank_params(shapes, layouts)
    mine = dense / (dp * layouts.cp) + experts / expert_replicas(layouts, dp)
    compute = calibration.compute
    moved = compute.optimizer_bytes_per_param * mine / (hw.hbm_bytes_per_s * compute.hbm_share)
    return compute.step_fixed_s + moved
