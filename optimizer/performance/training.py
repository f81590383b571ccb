"""Step time of a training run: compute, tensor, context, expert, pipeline and data-parallel traffic.

Everything broadcasts over models, kinds of SKU, node counts and layouts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.compute import LayerTime, head_forward, layer_forward
from optimizer.performance.memory import (
    activation_bytes,
    expert_replicas,
    fits,
    peak_bytes,
    rank_params,
    state_bytes,
)
from optimizer.performance.network import all_reduce_s, all_to_all_s, neighbour_s, reduce_scatter_s
from optimizer.performance.scenario import Scenario


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
class Split:
    """A batch over ranks: data-parallel ranks, micro-batches a pipeline, chunks a stage."""

    dp: Array
    micro: Array
    interleave: Array
    divides: Mask


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


def step(scenario: Scenario, gpus: Array) -> Step:
    """Time and memory of a step on ``gpus`` GPUs in all.

    Fill and drain: (m + (p−1)/v) stage times; gradient and parameter traffic hides behind the end of
    the backward pass; sharded parameters travel with every micro-batch.
    """
    hw, split = scenario.hw, split_batch(scenario, gpus)
    average, fullest = _stages(scenario)
    pipeline = _pipeline(scenario, split)
    data = _data(scenario, split, fullest.total)
    bubble = (scenario.layouts.pp - 1.0) / split.interleave * average.total
    fixed = _optimizer(scenario, split.dp)
    nodes = np.maximum(gpus / hw.gpus_per_node, 1.0)
    drag = 1.0 + scenario.compute.straggler_per_doubling * np.log2(nodes) + hw.vm_slowdown
    held = _footprint(scenario, split)
    return Step(
        total=(split.micro * fullest.total + bubble + pipeline + data + fixed) * drag,
        compute=split.micro * fullest.compute,
        memory_bound=split.micro * fullest.memory_bound + fixed,
        tensor=split.micro * fullest.tensor,
        expert=split.micro * fullest.expert,
        pipeline=pipeline,
        data=data,
        bubble=bubble,
        peak_bytes=held.peak_bytes,
        fits=held.fits,
        divides=held.divides,
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a layout asks for before anything is timed: see ``Step``."""

    peak_bytes: Array
    fits: Mask
    divides: Mask


def footprint(scenario: Scenario, gpus: Array) -> Footprint:
    """Memory of a step and whether its layout makes sense, without its time."""
    return _footprint(scenario, split_batch(scenario, gpus))


def _footprint(scenario: Scenario, split: Split) -> Footprint:
    kept = activation_bytes(scenario, split.micro, split.interleave)
    peak = peak_bytes(state_bytes(scenario, split.dp), kept, scenario.calibration)
    return Footprint(peak, fits(peak, scenario.hw, scenario.calibration), split.divides)


def split_batch(scenario: Scenario, gpus: Array) -> Split:
    """How the batch falls onto ranks, and whether that makes sense.

    Sequences that do not divide leave ranks idle at the end of a step: micro-batches round up.
    """
    shapes, layouts, sequences = scenario.shapes, scenario.layouts, scenario.run.sequences
    dp = gpus / layouts.ranks_per_copy
    whole = (dp >= 1.0) & (dp == np.floor(dp)) & (layouts.pp <= shapes.layers)
    dp = np.maximum(np.floor(dp), 1.0)
    micro = np.maximum(np.ceil(sequences / (dp * layouts.micro_batch)), 1.0)
    enough = sequences >= dp * layouts.micro_batch
    ranks_of_experts = np.minimum(dp * layouts.tp * layouts.cp, np.maximum(shapes.experts, 1.0))
    experts = layouts.ep <= np.maximum(ranks_of_experts, 1.0)
    return Split(dp, micro, _interleave(scenario, micro), whole & enough & experts)


def _interleave(scenario: Scenario, micro: Array) -> Array:
    """Chunks a stage: as given, else the most that divide its layers when micro-batches fill the pipeline."""
    layouts = scenario.layouts
    stage = np.ceil(scenario.shapes.layers / layouts.pp)
    best = np.ones_like(stage)
    for chunks in range(2, int(scenario.compute.interleave_most) + 1):
        best = np.where(stage % chunks == 0, float(chunks), best)
    possible = (layouts.pp > 1.0) & (micro % layouts.pp == 0)
    return np.where(layouts.interleave > 0, layouts.interleave, np.where(possible, best, 1.0))


def _stages(scenario: Scenario) -> tuple[_Stage, _Stage]:
    """An average stage (for fill and drain) and the fullest one, which sets the pace.

    The last stage also has the head: it leads where layers divide evenly.
    """
    compute, small = _forward_backward(scenario, layer_forward(scenario))
    host = scenario.software.host_s_per_layer * _host_factor(scenario)
    small = small + np.maximum(host - compute - small, 0.0)
    tensor, expert = _tensor(scenario), _expert(scenario)
    small = small + np.maximum(_rank_floor(scenario) - compute - small - tensor, 0.0)
    head = 3.0 * head_forward(scenario)
    layers = scenario.shapes.layers / scenario.layouts.pp
    body = compute + small + tensor + expert
    last_leads = np.floor(layers) * body + head > np.ceil(layers) * body
    count, with_head = (
        np.where(last_leads, np.floor(layers), np.ceil(layers)),
        np.where(last_leads, head, 0.0),
    )
    share = head / scenario.layouts.pp
    average = _Stage(layers * compute + share, layers * small, layers * tensor, layers * expert)
    return average, _Stage(count * compute + with_head, count * small, count * tensor, count * expert)


def _forward_backward(scenario: Scenario, forward: LayerTime) -> tuple[Array, Array]:
    """Compute and memory-bound time of a layer, backward twice the forward, plus what is recomputed.

    Adapters need gradients of inputs only: the backward pass then costs one forward.
    """
    software, recompute = scenario.software, scenario.layouts.recompute
    passes = 2.0 if scenario.run.adapters else 3.0
    full = np.where(recompute >= 2.0, 1.0, 0.0)
    again = full if software.flash_attention else np.where(recompute >= 1.0, 1.0, 0.0)
    attention = forward.attention * (1.0 + scenario.compute.attention_backward_factor + again)
    compute = software.slowdown * (forward.products * (passes + full) + attention)
    return compute, software.slowdown * forward.elementwise * (3.0 + full)


def _host_factor(scenario: Scenario) -> Array:
    share = scenario.shapes.moe_layers / scenario.shapes.layers
    return 1.0 + (scenario.compute.moe_host_factor - 1.0) * share


def _rank_floor(scenario: Scenario) -> Array:
    """Least time of a layer and micro-batch where the host waits for every rank of a tensor group."""
    software, layouts = scenario.software, scenario.layouts
    per_rank = np.where(layouts.pp > 1.0, software.pipeline_rank_floor_s, software.rank_floor_s)
    return per_rank * layouts.tp


def _tensor(scenario: Scenario) -> Array:
    """Visible tensor and context traffic of a layer: 4 all-reduces of b·S·h·2 bytes, 6 if recomputed."""
    shapes, layouts, tokens = scenario.shapes, scenario.layouts, scenario.rank_tokens
    times = 4.0 + np.where(layouts.recompute >= 2.0, 2.0, 0.0)
    one = np.ones_like(layouts.tp)
    reduce = all_reduce_s(2.0 * tokens * shapes.hidden, layouts.tp, one, scenario.hw, scenario.network)
    visible = scenario.software.tp_exposed * times * reduce
    if not np.any(layouts.cp > 1.0):
        return visible
    keys = 2.0 * tokens * shapes.kv_width * layouts.cp / layouts.tp
    exchange = reduce_scatter_s(keys, layouts.cp, layouts.tp, scenario.hw, scenario.network)
    return visible + scenario.network.context_exposed * 3.0 * exchange


def _expert(scenario: Scenario) -> Array:
    """Dispatch and combine of an average layer, forward and backward: 4·tokens·k·h·2 bytes (e−1)/e."""
    shapes, layouts = scenario.shapes, scenario.layouts
    if not np.any(layouts.ep > 1.0):
        return np.zeros_like(layouts.ep)
    size = 2.0 * scenario.rank_tokens / layouts.tp * shapes.active_experts * shapes.hidden
    times = 4.0 + np.where(layouts.recompute >= 2.0, 2.0, 0.0)
    each = all_to_all_s(size, layouts.ep, scenario.hw, scenario.network)
    return times * each * shapes.moe_layers / shapes.layers


def _pipeline(scenario: Scenario, split: Split) -> Array:
    """Visible hand-over between stages: b·S·h·2/t bytes each way, per chunk; ramps show in full."""
    layouts = scenario.layouts
    if not np.any(layouts.pp > 1.0):
        return np.zeros_like(layouts.pp)
    size = 2.0 * scenario.rank_tokens * scenario.shapes.hidden / layouts.tp
    one_way = neighbour_s(size, layouts.tp * layouts.cp * split.dp, scenario.hw)
    steady = scenario.software.pp_exposed * split.micro * split.interleave
    return np.where(layouts.pp > 1.0, 2.0 * (steady + layouts.pp - 1.0) * one_way, 0.0)


def _data(scenario: Scenario, split: Split, busy_s: Array) -> Array:
    """Visible gradient and parameter traffic over the data-parallel ranks; ``busy_s`` of a micro-batch."""
    if scenario.run.adapters:
        return np.zeros_like(split.dp)
    network, layouts = scenario.network, scenario.layouts
    traffic = _data_traffic(scenario, split.dp)
    at_end = np.maximum(scenario.software.dp_exposed * traffic, traffic - network.backward_overlap * busy_s)
    if not np.any(layouts.sharding >= 3.0):
        return at_end
    each = np.maximum(traffic - busy_s, 0.0) + network.zero3_serial * np.minimum(traffic, busy_s)
    return np.where(layouts.sharding >= 3.0, split.micro * each, at_end)


def _data_traffic(scenario: Scenario, dp: Array) -> Array:
    """Time of one exchange: gradients out and weights back, twice the weights when they are sharded."""
    network, layouts = scenario.network, scenario.layouts
    dense, experts = rank_params(scenario.shapes, layouts)
    gradients, weights = network.gradient_bytes_per_param, network.parameter_bytes_per_param
    per_param = np.where(layouts.sharding >= 3.0, gradients + 2.0 * weights, gradients + weights)
    per_param = np.where(layouts.sharding < 1.0, 2.0 * gradients, per_param)
    traffic = reduce_scatter_s(per_param * dense, dp * layouts.cp, layouts.tp, scenario.hw, network)
    if not np.any(scenario.shapes.experts > 0):
        return traffic
    inner, ranks = np.maximum(layouts.ep, layouts.tp), expert_replicas(layouts, dp)
    return traffic + reduce_scatter_s(per_param * experts, ranks, inner, scenario.hw, network)


def _optimizer(scenario: Scenario, dp: Array) -> Array:
    """Adam over the rank's share of the states, and the step's fixed time."""
    layouts, compute = scenario.layouts, scenario.compute
    dense, experts = rank_params(scenario.shapes, layouts)
    mine = dense / (dp * layouts.cp) + experts / expert_replicas(layouts, dp)
    moved = compute.optimizer_bytes_per_param * mine / (scenario.hw.hbm_bytes_per_s * compute.hbm_share)
    return compute.step_fixed_s + moved
