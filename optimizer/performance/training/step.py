"""Step time of a training run: compute, and tensor, context, expert, pipeline and data-parallel
communication.

Everything broadcasts over models, kinds of SKU, node counts and layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.domain.workloads.training_method import BASE_BYTES, BF16, Objective
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask, number
from optimizer.performance.hardware.collectives import (
    all_reduce_s,
    all_to_all_s,
    dispatch_once_s,
    neighbour_s,
    reduce_scatter_s,
)
from optimizer.performance.training.compute import LayerTime, head_forward, layer_forward
from optimizer.performance.training.data_parallel import data_s, shard_ranks
from optimizer.performance.training.host import host_s, optimizer_s
from optimizer.performance.training.memory import rank_memory
from optimizer.performance.training.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step in seconds. The parts sum to ``total``, except for the factor of stragglers and
    virtualization.

    ``compute``: products and attention; ``memory_bound``: small kernels and launches; ``tensor`` (with
    context), ``expert``, ``pipeline`` and ``data``: exposed communication; ``bubble``: of the pipeline;
    ``optimizer``: its pass over the states; ``host``: exposed transfers between GPU and host, and the
    optimizer there; ``between``: gradient norm, loss synchronization, input of the next
    batch. ``peak_bytes``: as published peaks state; ``held_bytes``: what the card holds; ``divides``: whether
    the layout is possible at all.
    """

    total: Array
    compute: Array
    memory_bound: Array
    tensor: Array
    expert: Array
    pipeline: Array
    data: Array
    bubble: Array
    optimizer: Array
    host: Array
    between: Array
    peak_bytes: Array
    held_bytes: Array
    fits: Mask
    divides: Mask

    @property
    def communication(self) -> Array:
        """Exposed communication of all kinds."""
        return self.tensor + self.expert + self.pipeline + self.data


@dataclass(frozen=True, slots=True)
class Split:
    """A batch over ranks: data-parallel ranks, micro-batches per pipeline, chunks per stage."""

    dp: Array
    micro: Array
    interleave: Array
    divides: Mask


@dataclass(frozen=True, slots=True)
class _Stage:
    """Forward and backward pass of one micro-batch on one stage, by part."""

    compute: Array
    memory_bound: Array
    tensor: Array
    expert: Array

    @property
    def total(self) -> Array:
        return self.compute + self.memory_bound + self.tensor + self.expert

    def plus(self, other: _Stage) -> _Stage:
        """Both passes, one after the other."""
        return _Stage(
            self.compute + other.compute,
            self.memory_bound + other.memory_bound,
            self.tensor + other.tensor,
            self.expert + other.expert,
        )


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What does not depend on how states are sharded.

    ``pipeline``: hand-over time; ``stalls``: waiting time if hand-overs stall; ``bubble``: stage times of
    fill and drain; ``filled``: idle stage times that can hide communication; ``drag``: factor of slow nodes
    and virtualization.
    """

    split: Split
    nodes: Array
    pipeline: Array
    stalls: Array
    bubble: Array
    filled: Array
    drag: Array


def step(scenario: Scenario, gpus: Array) -> Step:
    """Time and memory of a step on ``gpus`` GPUs in total.

    The pipeline takes m + (p − 1)/v stage times, fill and drain included. Gradient and parameter traffic is
    hidden by the end of the backward pass; sharded parameters are exchanged in every micro-batch.
    """
    computed = scenario.as_computed()
    schedule = _schedule(computed, gpus)
    held = _footprint(scenario, schedule.split)
    return _timed(computed, schedule, held, *_stages(computed, schedule.nodes, held.again))


def steps_by_sharding(scenarios: Sequence[Scenario], gpus: Array) -> list[Step]:
    """The steps of scenarios in plain numbers that differ only in how states are sharded."""
    schedule = _schedule(scenarios[0].as_computed(), gpus)
    stages: dict[float, tuple[_Stage, _Stage]] = {}
    found = []
    for scenario in scenarios:
        held = _footprint(scenario, schedule.split)
        again, computed = float(held.again), scenario.as_computed()
        if again not in stages:
            stages[again] = _stages(computed, schedule.nodes, held.again)
        found.append(_timed(computed, schedule, held, *stages[again]))
    return found


def _schedule(scenario: Scenario, gpus: Array) -> _Schedule:
    split, hw = split_batch(scenario, gpus), scenario.hw
    nodes = xp.maximum(gpus / hw.gpus_per_node, 1.0)
    return _Schedule(
        split=split,
        nodes=nodes,
        pipeline=_pipeline(scenario, split),
        stalls=_stalls(scenario, split),
        bubble=_bubble(scenario, split),
        filled=_filled(scenario, split),
        drag=1.0 + scenario.compute.straggler_per_doubling * xp.log2(nodes) + hw.vm_slowdown,
    )


def _timed(
    scenario: Scenario, schedule: _Schedule, held: Footprint, average: _Stage, fullest: _Stage
) -> Step:
    split, each, pace = schedule.split, average.total, fullest.total
    pipeline = schedule.pipeline + _stalled(scenario, schedule, held)
    bubble = schedule.bubble * each
    data = data_s(scenario, split.dp, split.micro, pace, schedule.filled * each)
    owners = shard_ranks(scenario, split.dp)
    optimizer, between = optimizer_s(scenario, split.dp, owners), number(scenario.compute.step_fixed_s)
    shards = owners * scenario.layouts.cp
    host = host_s(scenario, split.dp, shards, split.micro, pace, held.held_bytes, held.offloaded_bytes)
    return Step(
        total=(split.micro * pace + bubble + pipeline + data + optimizer + host + between) * schedule.drag,
        compute=split.micro * fullest.compute,
        memory_bound=split.micro * fullest.memory_bound,
        tensor=split.micro * fullest.tensor,
        expert=split.micro * fullest.expert,
        pipeline=pipeline,
        data=data,
        bubble=bubble,
        optimizer=optimizer,
        host=host,
        between=between,
        peak_bytes=held.peak_bytes,
        held_bytes=held.held_bytes,
        fits=held.fits,
        divides=held.divides,
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and validity of a layout, before anything is timed: see ``Step``. ``again``: share of layers
    recomputed; ``offloaded_bytes``: activations of a micro-batch that go to the host.
    """

    peak_bytes: Array
    held_bytes: Array
    fits: Mask
    divides: Mask
    again: Array
    offloaded_bytes: Array


def footprint(scenario: Scenario, gpus: Array) -> Footprint:
    """Memory of a step and whether its layout is possible, without its time."""
    return _footprint(scenario, split_batch(scenario, gpus))


def _footprint(scenario: Scenario, split: Split) -> Footprint:
    shards = shard_ranks(scenario, split.dp) * scenario.layouts.cp
    memory = rank_memory(scenario, split.dp, split.micro, split.interleave, shards)
    return Footprint(memory.peak, memory.held, memory.fits, split.divides, memory.again, memory.offloaded)


def split_batch(scenario: Scenario, gpus: Array) -> Split:
    """How the batch is divided over ranks, and whether that is possible.

    If sequences do not divide evenly, ranks idle at the end of a step: micro-batches are rounded up. The two
    answers of a pair (DPO) run together.
    """
    shapes, layouts, sequences = scenario.shapes, scenario.layouts, scenario.run.sequences
    dp = gpus / layouts.ranks_per_copy
    whole = (dp >= 1.0) & (dp == xp.floor(dp)) & (layouts.pp <= shapes.layers)
    dp = xp.maximum(xp.floor(dp), 1.0)
    micro = xp.maximum(xp.ceil(sequences / (dp * layouts.micro_batch)), 1.0)
    enough = sequences >= dp * layouts.micro_batch
    ranks_of_experts = xp.minimum(dp * layouts.tp * layouts.cp, xp.maximum(shapes.experts, 1.0))
    experts = layouts.ep <= xp.maximum(ranks_of_experts, 1.0)
    if scenario.run.method.objective is Objective.DPO:
        enough = enough & (layouts.micro_batch == 2.0 * xp.floor(layouts.micro_batch / 2.0))
    return Split(dp, micro, _interleave(scenario, micro), whole & enough & experts)


def _interleave(scenario: Scenario, micro: Array) -> Array:
    """Chunks per stage: as given, else the largest divisor of its layers if micro-batches fill the
    pipeline.
    """
    layouts = scenario.layouts
    if not xp.any(layouts.pp > 1.0):
        return xp.maximum(layouts.interleave, xp.ones_like(micro))
    stage = xp.ceil(scenario.shapes.layers / layouts.pp)
    best = xp.ones_like(stage)
    for chunks in range(2, int(scenario.compute.interleave_most) + 1):
        best = xp.where(stage % chunks == 0, float(chunks), best)
    possible = (layouts.pp > 1.0) & (micro % layouts.pp == 0)
    return xp.where(layouts.interleave > 0, layouts.interleave, xp.where(possible, best, 1.0))


def _stages(scenario: Scenario, nodes: Array, again: Array) -> tuple[_Stage, _Stage]:
    """An average stage (for fill and drain) and the fullest one, which sets the pace.

    The last stage also has the head, so it is the fullest if layers divide evenly. During fill and drain
    hand-overs go one way only, and ``ramp_waits`` of the host's wait for them is exposed.
    """
    compute, small = _forward_backward(scenario, layer_forward(scenario), again)
    small = small + _base_s(scenario, again)
    host = scenario.software.host_s_per_layer * _host_factor(scenario) + _expert_host(scenario)
    small = small + xp.maximum(host - compute - small, 0.0)
    tensor, expert = _tensor(scenario, again), _expert(scenario, again)
    if scenario.run.hides_dispatch:
        beside = xp.minimum(expert, compute)
        expert = expert - beside + scenario.calibration.network.dispatch_drag * beside
    floor, far = _host_floor(scenario, nodes), _far_ranks_s(scenario)
    waits = xp.maximum(floor - compute - small - tensor, 0.0)
    small = small + far
    head = xp.maximum(3.0 * head_forward(scenario), floor + far)
    layers = scenario.shapes.layers / scenario.layouts.pp
    body = compute + small + waits + tensor + expert
    count, with_head = _fullest(scenario, body, head)
    share = head / scenario.layouts.pp
    ramp, steady = small + scenario.compute.ramp_waits * waits, small + waits
    average = _Stage(layers * compute + share, layers * ramp, layers * tensor, layers * expert)
    fullest = _Stage(count * compute + with_head, count * steady, count * tensor, count * expert)
    if scenario.forward is None:
        return average, fullest
    only = _forward_stage(replace(scenario, shapes=scenario.forward, adapters=None, forward=None))
    return average.plus(only), fullest.plus(only)


def _forward_stage(scenario: Scenario) -> _Stage:
    """A forward pass of one micro-batch on a stage, without gradients: of a reference or a teacher."""
    stages, one, slow = scenario.layouts.pp, layer_forward(scenario), scenario.software.slowdown
    layers, once = scenario.shapes.layers / stages, xp.zeros_like(stages)
    return _Stage(
        layers * slow * (one.products + one.attention) + head_forward(scenario) / stages,
        layers * slow * one.elementwise,
        layers * _tensor(scenario, once) / 2.0,
        layers * _expert(scenario, once) / 2.0,
    )


def _base_s(scenario: Scenario, again: Array) -> Array:
    """Time of a layer and micro-batch for what a frozen base adds, limited by memory bandwidth.

    Weights in another format than products read are written in 16 bits before every pass: forward, backward,
    and where layers are rebuilt. DoRA adds the adapters to the weights beside them and takes the length of
    the rows, forward alone.
    """
    if scenario.adapters is None:
        return xp.zeros_like(again)
    shapes, layouts, size = scenario.shapes, scenario.layouts, xp.zeros_like(again)
    if scenario.run.unpacks_base:
        dense = (shapes.dense_params - shapes.embedding_params) / layouts.tp
        experts = shapes.expert_params / xp.maximum(layouts.tp, layouts.ep)
        moved = BASE_BYTES[scenario.run.base_format] + BF16
        size = size + moved * (2.0 + again) * (dense + experts) / shapes.layers
    if scenario.has_long_outputs:
        beside = scenario.adapters.target_params / shapes.layers / layouts.tp
        size = size + scenario.compute.dora_bytes_per_param * (1.0 + again) * beside
    return size / (scenario.hw.hbm_bytes_per_s * scenario.compute.hbm_share)


def _fullest(scenario: Scenario, body: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the stage that sets the pace, and the head's time in it.

    With evenly divided layers the last stage has the head in addition. It hands over on one side only and so
    has slack: ``head_leads`` of the head counts. Stacks that balance cost give that stage fewer layers.
    """
    layers, stages = scenario.shapes.layers, scenario.layouts.pp
    alone = stages == 1.0
    last, others = xp.floor(layers / stages), xp.ceil(layers / stages)
    if scenario.software.balanced_head:
        even = xp.floor((layers - (stages - 1.0) * head / body) / stages)
        last = xp.where(alone, last, xp.maximum(even, 0.0))
        others = xp.ceil((layers - last) / xp.maximum(stages - 1.0, 1.0))
    shown = head * xp.where(alone, 1.0, scenario.software.head_leads)
    leads = alone | (last * body + shown > others * body)
    return xp.where(leads, last, others), xp.where(leads, shown, 0.0)


def _forward_backward(scenario: Scenario, forward: LayerTime, rebuilt: Array) -> tuple[Array, Array]:
    """Compute and memory-bound time of a layer: the backward pass takes twice the forward one, plus the share
    ``rebuilt``.

    Adapters need gradients of inputs only, so the backward pass takes one forward.
    """
    software, recompute = scenario.software, scenario.layouts.recompute
    passes = 3.0 if scenario.adapters is None else 2.0
    again = rebuilt if software.flash_attention else xp.where(recompute == 1.0, 1.0, rebuilt)
    attention = forward.attention * (1.0 + scenario.compute.attention_backward_factor + again)
    part = xp.where(recompute == 1.0, software.selective_again, rebuilt * software.full_again)
    compute = software.slowdown * (forward.products * (passes + part) + attention)
    return compute, software.slowdown * forward.elementwise * (3.0 + part)


def _host_factor(scenario: Scenario) -> Array:
    share = scenario.shapes.moe_layers / scenario.shapes.layers
    return 1.0 + (scenario.compute.moe_host_factor - 1.0) * share


def _expert_host(scenario: Scenario) -> Array:
    """Host time of an average layer's local experts, which are prepared one by one."""
    shapes, layouts = scenario.shapes, scenario.layouts
    local = scenario.software.routed_share * shapes.experts / xp.maximum(layouts.ep, 1.0)
    return scenario.compute.expert_host_s * local * shapes.moe_layers / shapes.layers


def _host_floor(scenario: Scenario, nodes: Array) -> Array:
    """Least time of a layer and micro-batch in which the host waits for the ranks of a tensor group.

    Pipeline hand-over between nodes delays every rank's collectives, which adds a share per rank.
    """
    software, layouts = scenario.software, scenario.layouts
    alone = xp.where(layouts.tp > scenario.hw.link_domain, 0.0, software.tensor_floor_s)
    piped = xp.where((layouts.pp > 1.0) & (nodes > 1.0), software.pipeline_rank_floor_s * layouts.tp, 0.0)
    return xp.where(layouts.tp > 1.0, alone + piped, 0.0)


def _far_ranks_s(scenario: Scenario) -> Array:
    """Waiting time of a layer and micro-batch for the ranks of a tensor group that spans nodes, besides its
    traffic.
    """
    ranks = scenario.layouts.tp
    return xp.where(ranks > scenario.hw.link_domain, scenario.software.far_rank_s * ranks, 0.0)


def _tensor(scenario: Scenario, again: Array) -> Array:
    """Exposed tensor and context communication of a layer: 4 all-reduces of b·S·h·2 bytes, 6 with
    recomputation.
    """
    shapes, layouts, tokens = scenario.shapes, scenario.layouts, scenario.rank_tokens
    times = 4.0 + 2.0 * again
    one = xp.ones_like(layouts.tp)
    reduce = all_reduce_s(2.0 * tokens * shapes.hidden, layouts.tp, one, scenario.hw, scenario.network)
    visible = scenario.software.tp_exposed * times * reduce
    if not xp.any(layouts.cp > 1.0):
        return visible
    keys = 2.0 * tokens * shapes.kv_width * layouts.cp / layouts.tp
    exchange = reduce_scatter_s(keys, layouts.cp, layouts.tp, scenario.hw, scenario.network)
    return visible + scenario.network.context_exposed * 3.0 * exchange


def _expert(scenario: Scenario, again: Array) -> Array:
    """Dispatch and combine of an average layer, forward and backward:

      4·tokens·k·h·2 bytes·(e − 1)/e

    where h is the width of the tokens that enter experts.
    """
    shapes, layouts = scenario.shapes, scenario.layouts
    if not xp.any(layouts.ep > 1.0):
        return xp.zeros_like(layouts.ep)
    size = 2.0 * scenario.rank_tokens / layouts.tp * shapes.active_experts * shapes.expert_hidden
    times = 4.0 + 2.0 * again
    if scenario.run.number_format in {"fp8", "fp4"}:
        size = size * scenario.compute.fp8_dispatch_share
    if scenario.run.dispatches_once:
        each = dispatch_once_s(size, shapes.active_experts, layouts.ep, scenario.hw)
    else:
        each = all_to_all_s(size, layouts.ep, scenario.hw, scenario.network)
    return times * scenario.software.routed_share * each * shapes.moe_layers / shapes.layers


def _pipeline(scenario: Scenario, split: Split) -> Array:
    """Exposed hand-over between stages: b·S·h·2/t bytes each way per chunk; fully exposed during fill and
    drain.
    """
    layouts = scenario.layouts
    if not xp.any(layouts.pp > 1.0):
        return xp.zeros_like(layouts.pp)
    size = 2.0 * scenario.rank_tokens * scenario.shapes.hidden / layouts.tp
    one_way = neighbour_s(size, layouts.tp * layouts.cp * split.dp, scenario.hw)
    steady = scenario.software.pp_exposed * split.micro * split.interleave
    return xp.where(layouts.pp > 1.0, 2.0 * (steady + layouts.pp - 1.0) * one_way, 0.0)


def _bubble(scenario: Scenario, split: Split) -> Array:
    """Pipeline bubble in stage times: (p − 1)/v for 1F1B, (p − 1)/3 for zero-bubble schedules, which run
    weight gradients in the gaps [Qi et al., Zero Bubble Pipeline Parallelism, 2024].
    """
    ramp = scenario.layouts.pp - 1.0
    return ramp / 3.0 if scenario.run.zero_bubble else ramp / split.interleave


def _filled(scenario: Scenario, split: Split) -> Array:
    """Stage times during which interleaved chunks with finished gradients wait for the others.

    The last min(p, m) micro-batches pass chunk after chunk, so (v − 1)/v of their time can hide
    communication.
    """
    layouts = scenario.layouts
    rounds = xp.minimum(layouts.pp, split.micro)
    return xp.where(layouts.pp > 1.0, rounds * (1.0 - 1.0 / split.interleave), 0.0)


def _stalls(scenario: Scenario, split: Split) -> Array:
    """Total waiting time of hand-overs that stall for ``stall_s`` each.

    A micro-batch has two blocking hand-overs with two stages, four with more; fill and drain add
    ``ramp_stalls``.
    """
    stages = scenario.layouts.pp
    ramps = scenario.compute.ramp_stalls * (stages - 1.0)
    hand_overs = xp.minimum(2.0 * (stages - 1.0), 4.0) * (split.micro + ramps)
    return scenario.software.stall_s * hand_overs


def _stalled(scenario: Scenario, schedule: _Schedule, held: Footprint) -> Array:
    """Cost of stalls between nodes, where they are observed:

    - on at least ``stall_nodes`` nodes with data parallelism;
    - in tensor groups of at least ``stall_ranks`` ranks;
    - with an optimizer that is shared by at least ``stall_ranks`` ranks on as many nodes;
    - on cards that are overfull, whose allocator frees and reallocates at every hand-over.
    """
    software, layouts, nodes = scenario.software, scenario.layouts, schedule.nodes
    if software.stall_s == 0.0:
        return xp.zeros_like(schedule.stalls)
    full = held.held_bytes > scenario.calibration.memory.stall_fill * scenario.hw.memory_bytes
    many = (nodes >= software.stall_nodes) & (schedule.split.dp > 1.0)
    shared = (layouts.sharding >= 1.0) & (xp.minimum(schedule.split.dp, nodes) >= software.stall_ranks)
    wide = shared | (layouts.tp >= software.stall_ranks)
    return xp.where((nodes > 1.0) & (many | wide | full), schedule.stalls, 0.0)
