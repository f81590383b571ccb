"""Step time of a training run: compute, tensor, context, expert, pipeline and data-parallel traffic.

Everything broadcasts over models, kinds of SKU, node counts and layouts alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from optimizer.performance.training.memory import expert_replicas, rank_memory, rank_params
from optimizer.performance.training.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, seconds. The parts add up to ``total`` (less the straggler and VM factor).

    ``compute``: products and attention; ``memory_bound``: small kernels and launches; then what stays
    visible of tensor (and context), expert, pipeline and data-parallel traffic; ``bubble``; ``optimizer``:
    Adam over the states; ``between``: gradient norm, loss synchronisation, the next batch's input.
    ``peak_bytes`` is what published peaks show, ``held_bytes`` what the card holds, ``divides`` whether the
    layout makes sense at all.
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
    between: Array
    peak_bytes: Array
    held_bytes: Array
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


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What a step takes from its layout however states are sharded: hand-over, what it waits where it stalls
    (``stalls``), and stage times that fill and drain cost (``bubble``) or leave idle (``filled``); ``drag``:
    slow nodes and virtualisation."""

    split: Split
    nodes: Array
    pipeline: Array
    stalls: Array
    bubble: Array
    filled: Array
    drag: Array


def step(scenario: Scenario, gpus: Array) -> Step:
    """Time and memory of a step on ``gpus`` GPUs in all.

    Fill and drain: (m + (p−1)/v) stage times; gradient and parameter traffic hides behind the end of
    the backward pass; sharded parameters travel with every micro-batch.
    """
    schedule = _schedule(scenario, gpus)
    held = _footprint(scenario, schedule.split)
    return _timed(scenario, schedule, held, *_stages(scenario, schedule.nodes, held.again))


def steps_by_sharding(scenarios: Sequence[Scenario], gpus: Array) -> list[Step]:
    """The steps of scenarios in plain numbers that differ in how states are sharded only."""
    schedule = _schedule(scenarios[0], gpus)
    stages: dict[float, tuple[_Stage, _Stage]] = {}
    found = []
    for scenario in scenarios:
        held = _footprint(scenario, schedule.split)
        again = float(held.again)
        if again not in stages:
            stages[again] = _stages(scenario, schedule.nodes, held.again)
        found.append(_timed(scenario, schedule, held, *stages[again]))
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
    optimizer, between = _optimizer(scenario, split.dp), number(scenario.compute.step_fixed_s)
    return Step(
        total=(split.micro * pace + bubble + pipeline + data + optimizer + between) * schedule.drag,
        compute=split.micro * fullest.compute,
        memory_bound=split.micro * fullest.memory_bound,
        tensor=split.micro * fullest.tensor,
        expert=split.micro * fullest.expert,
        pipeline=pipeline,
        data=data,
        bubble=bubble,
        optimizer=optimizer,
        between=between,
        peak_bytes=held.peak_bytes,
        held_bytes=held.held_bytes,
        fits=held.fits,
        divides=held.divides,
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a layout asks for before anything is timed: see ``Step``. ``again``: share of layers rebuilt."""

    peak_bytes: Array
    held_bytes: Array
    fits: Mask
    divides: Mask
    again: Array


def footprint(scenario: Scenario, gpus: Array) -> Footprint:
    """Memory of a step and whether its layout makes sense, without its time."""
    return _footprint(scenario, split_batch(scenario, gpus))


def _footprint(scenario: Scenario, split: Split) -> Footprint:
    shards = shard_ranks(scenario, split.dp) * scenario.layouts.cp
    memory = rank_memory(scenario, split.dp, split.micro, split.interleave, shards)
    return Footprint(memory.peak, memory.held, memory.fits, split.divides, memory.again)


def split_batch(scenario: Scenario, gpus: Array) -> Split:
    """How the batch falls onto ranks, and whether that makes sense.

    Sequences that do not divide leave ranks idle at the end of a step: micro-batches round up.
    """
    shapes, layouts, sequences = scenario.shapes, scenario.layouts, scenario.run.sequences
    dp = gpus / layouts.ranks_per_copy
    whole = (dp >= 1.0) & (dp == xp.floor(dp)) & (layouts.pp <= shapes.layers)
    dp = xp.maximum(xp.floor(dp), 1.0)
    micro = xp.maximum(xp.ceil(sequences / (dp * layouts.micro_batch)), 1.0)
    enough = sequences >= dp * layouts.micro_batch
    ranks_of_experts = xp.minimum(dp * layouts.tp * layouts.cp, xp.maximum(shapes.experts, 1.0))
    experts = layouts.ep <= xp.maximum(ranks_of_experts, 1.0)
    return Split(dp, micro, _interleave(scenario, micro), whole & enough & experts)


def _interleave(scenario: Scenario, micro: Array) -> Array:
    """Chunks a stage: as given, else the most that divide its layers when micro-batches fill the pipeline."""
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

    The last stage also has the head: it leads where layers divide evenly. While a pipeline fills or drains
    hand-overs go one way only, and ``ramp_waits`` of what the host waits for them shows.
    """
    compute, small = _forward_backward(scenario, layer_forward(scenario), again)
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
    return average, _Stage(count * compute + with_head, count * steady, count * tensor, count * expert)


def _fullest(scenario: Scenario, body: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the stage that sets the pace, and the head's time in it.

    Layers shared out evenly leave the head on top of the last stage, which hands over on one side only and
    so has slack: ``head_leads`` of the head counts. Stacks that balance cost give that stage fewer layers.
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
    """Compute and memory-bound time of a layer, backward twice the forward, plus the share ``rebuilt``.

    Adapters need gradients of inputs only: the backward pass then costs one forward.
    """
    software, recompute = scenario.software, scenario.layouts.recompute
    passes = 2.0 if scenario.run.adapters else 3.0
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
    """Least time of a layer and micro-batch where the host waits for the ranks of a tensor group.

    Hand-over between nodes holds up every rank's collectives: such pipelines add their own share a rank.
    """
    software, layouts = scenario.software, scenario.layouts
    alone = xp.where(layouts.tp > scenario.hw.link_domain, 0.0, software.tensor_floor_s)
    piped = xp.where((layouts.pp > 1.0) & (nodes > 1.0), software.pipeline_rank_floor_s * layouts.tp, 0.0)
    return xp.where(layouts.tp > 1.0, alone + piped, 0.0)


def _far_ranks_s(scenario: Scenario) -> Array:
    """What a layer and micro-batch waits for the ranks of a tensor group over nodes, beside its traffic."""
    ranks = scenario.layouts.tp
    return xp.where(ranks > scenario.hw.link_domain, scenario.software.far_rank_s * ranks, 0.0)


def _tensor(scenario: Scenario, again: Array) -> Array:
    """Visible tensor and context traffic of a layer: 4 all-reduces of b·S·h·2 bytes, 6 if recomputed."""
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
    """Dispatch and combine of an average layer, forward and backward: 4·tokens·k·h·2 bytes (e−1)/e, where h
    is the width of tokens that experts meet."""
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
    """Visible hand-over between stages: b·S·h·2/t bytes each way, per chunk; ramps show in full."""
    layouts = scenario.layouts
    if not xp.any(layouts.pp > 1.0):
        return xp.zeros_like(layouts.pp)
    size = 2.0 * scenario.rank_tokens * scenario.shapes.hidden / layouts.tp
    one_way = neighbour_s(size, layouts.tp * layouts.cp * split.dp, scenario.hw)
    steady = scenario.software.pp_exposed * split.micro * split.interleave
    return xp.where(layouts.pp > 1.0, 2.0 * (steady + layouts.pp - 1.0) * one_way, 0.0)


def _bubble(scenario: Scenario, split: Split) -> Array:
    """Stage times that fill and drain cost: (p−1)/v for 1F1B, (p−1)/3 for zero-bubble schedules, which run
    weight gradients in the gaps [Qi et al., Zero Bubble Pipeline Parallelism, 2024]."""
    ramp = scenario.layouts.pp - 1.0
    return ramp / 3.0 if scenario.run.zero_bubble else ramp / split.interleave


def _filled(scenario: Scenario, split: Split) -> Array:
    """Stage times during which interleaved chunks whose gradients are ready wait for the others: the last
    min(p, m) micro-batches pass chunk after chunk, so that (v−1)/v of their time covers traffic."""
    layouts = scenario.layouts
    rounds = xp.minimum(layouts.pp, split.micro)
    return xp.where(layouts.pp > 1.0, rounds * (1.0 - 1.0 / split.interleave), 0.0)


def _stalls(scenario: Scenario, split: Split) -> Array:
    """Hand-overs that wait for ``stall_s`` each, all of them together.

    A micro-batch passes two blocking hand-overs with two stages, four with more; ramps show ``ramp_stalls``.
    """
    stages = scenario.layouts.pp
    ramps = scenario.compute.ramp_stalls * (stages - 1.0)
    hand_overs = xp.minimum(2.0 * (stages - 1.0), 4.0) * (split.micro + ramps)
    return scenario.software.stall_s * hand_overs


def _stalled(scenario: Scenario, schedule: _Schedule, held: Footprint) -> Array:
    """What stalls cost where they are seen between nodes: from ``stall_nodes`` of them on, in tensor groups
    of ``stall_ranks``, with an optimizer that as many ranks share on as many nodes, and on cards that are
    more than full, whose allocator frees and asks again at every hand-over."""
    software, layouts, nodes = scenario.software, scenario.layouts, schedule.nodes
    if software.stall_s == 0.0:
        return xp.zeros_like(schedule.stalls)
    full = held.held_bytes > scenario.calibration.memory.stall_fill * scenario.hw.memory_bytes
    many = (nodes >= software.stall_nodes) & (schedule.split.dp > 1.0)
    shared = (layouts.sharding >= 1.0) & (xp.minimum(schedule.split.dp, nodes) >= software.stall_ranks)
    wide = shared | (layouts.tp >= software.stall_ranks)
    return xp.where((nodes > 1.0) & (many | wide | full), schedule.stalls, 0.0)


def _optimizer(scenario: Scenario, dp: Array) -> Array:
    """Adam over the rank's share of the states: reads and writes of HBM. Adapters have next to none."""
    if scenario.run.adapters:
        return xp.zeros_like(dp)
    layouts, compute = scenario.layouts, scenario.compute
    dense, experts = rank_params(scenario.shapes, layouts)
    owners = shard_ranks(scenario, dp)
    mine = dense / (owners * layouts.cp) + experts / expert_replicas(layouts, owners)
    moved: Array = compute.optimizer_bytes_per_param * mine
    return moved / (scenario.hw.hbm_bytes_per_s * compute.hbm_share)
