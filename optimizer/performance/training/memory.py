"""Memory of one training rank: states, activations, buffers, and the capacity of a card. Shapes broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.constants.groups import Memory
from optimizer.performance.shapes import Shapes
from optimizer.performance.training.activations import activation_bytes, can_start, stage_layers
from optimizer.performance.training.layouts import Layouts
from optimizer.performance.training.scenario import Scenario

WEIGHT_BYTES, FROZEN_EIGHT_BIT = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The fullest rank, in bytes.

    ``peak``: what the stack's published peaks state, from allocator or driver; ``held``: what the card holds,
    with the allocator's cache, contexts and communicators. ``again``: share of the layers that the backward
    pass recomputes.
    """

    peak: Array
    held: Array
    fits: Mask
    again: Array


def rank_memory(
    scenario: Scenario, dp: Array, micro_batches: Array, interleave: Array, shards: Array | None = None
) -> RankMemory:
    """Memory of a run over ``dp`` data-parallel ranks; ``shards``: ranks that share states (default: all)."""
    memory, software, hw = scenario.calibration.memory, scenario.software, scenario.hw
    states = state_bytes(scenario, dp, shards)
    buffers = buffer_bytes(scenario.layouts, dp, memory)
    card = hw.memory_bytes / scenario.memory_margin
    usable = (memory.recompute_fill * card - buffers) / (1.0 + software.cache_share)
    room = usable - memory.fixed_bytes - states
    activations, again = activation_bytes(scenario, micro_batches, interleave, room)
    allocated = memory.fixed_bytes + states + activations
    held = allocated * (1.0 + software.cache_share) + buffers
    peak = held if software.reports_device else allocated
    return RankMemory(peak, held, (held <= card) & can_start(scenario, micro_batches), again)


def rank_params(shapes: Shapes, layouts: Layouts) -> tuple[Array, Array]:
    """Dense and expert parameters of the fullest rank: layers over t·p, experts over p·max(t, e).

    The first stage holds the embedding and the last the head; a single stage holds both.
    """
    ends = xp.where(layouts.pp > 1.0, shapes.head_params, shapes.embedding_params) / layouts.tp
    inner = (shapes.dense_params - shapes.embedding_params) / (layouts.tp * layouts.pp)
    experts = shapes.expert_params / (layouts.pp * xp.maximum(layouts.tp, layouts.ep))
    return inner + ends, experts


def expert_replicas(layouts: Layouts, dp: Array) -> Array:
    """Ranks that hold replicas of the same experts: t·c·d over the expert group."""
    return xp.maximum(layouts.tp * layouts.cp * dp / xp.maximum(layouts.tp, layouts.ep), 1.0)


def state_bytes(scenario: Scenario, dp: Array, shards: Array | None = None) -> Array:
    """Weights (2 bytes per parameter), gradients (2-4, and FP32 sums of 16-bit ones) and optimizer states
    (12-16).

    Over ``shards`` ranks (default: all data-parallel ones) are sharded: optimizer states from ZeRO-1 on,
    gradients from ZeRO-2 on, weights with ZeRO-3 or FSDP, which gathers one layer ahead. Frozen weights take
    2 bytes, or 1 if products use 8 bits; adapters have few parameters, with states of their own.
    """
    memory, software, sharding = scenario.calibration.memory, scenario.software, scenario.layouts.sharding
    layer, whole, mine = _params(scenario, dp, shards)
    weights = WEIGHT_BYTES * xp.where(sharding >= 3.0, mine, whole)
    gathered = xp.where(sharding >= 3.0, 2.0 * WEIGHT_BYTES * layer, 0.0)
    eight = scenario.run.number_format in {"fp8", "fp4"}
    if scenario.run.adapters:
        trained = memory.adapter_bytes_per_param * xp.where(sharding >= 1.0, mine, whole)
        return (weights + gathered) * (FROZEN_EIGHT_BIT / WEIGHT_BYTES if eight else 1.0) + trained
    copies = memory.fp8_weight_bytes_per_param if eight else 0.0
    gradient = software.weight_grad_bytes_per_param - WEIGHT_BYTES
    if scenario.run.number_format == "bf16":
        gradient += software.accumulation_bytes_per_param
    gradients = gradient * xp.where(sharding >= 2.0, mine, whole)
    reduced = xp.where(sharding >= 2.0, gradient * layer, 0.0)
    optimizer = software.optimizer_bytes_per_param * xp.where(sharding >= 1.0, mine, whole)
    return weights * (1.0 + copies / WEIGHT_BYTES) + gathered + gradients + reduced + optimizer


def _params(scenario: Scenario, dp: Array, shards: Array | None) -> tuple[Array, Array, Array]:
    """Parameters of one layer (or the head if larger), of the fullest rank, and of its shard."""
    shapes, layouts = scenario.shapes, scenario.layouts
    dense, experts = rank_params(shapes, layouts)
    ends = xp.where(layouts.pp > 1.0, shapes.head_params, shapes.embedding_params) / layouts.tp
    fuller = stage_layers(scenario)[0] * layouts.pp / shapes.layers
    dense, experts = ends + (dense - ends) * fuller, experts * fuller
    copies, replicas = dp * layouts.cp, expert_replicas(layouts, dp)
    if shards is not None:
        copies, replicas = xp.minimum(copies, shards), xp.minimum(replicas, shards)
    whole = dense + experts
    one = (whole - ends) * layouts.pp / (shapes.layers * fuller)
    return xp.maximum(one, shapes.head_params / layouts.tp), whole, dense / copies + experts / replicas


def buffer_bytes(layouts: Layouts, dp: Array, memory: Memory) -> Array:
    """CUDA context and libraries, and the buffers of each kind of communicator: t, p, d, c, e."""
    kinds = [layouts.tp > 1.0, layouts.pp > 1.0, dp * layouts.cp > 1.0, layouts.cp > 1.0, layouts.ep > 1.0]
    count: Array = sum((xp.where(kind, 1.0, 0.0) for kind in kinds), start=xp.zeros_like(layouts.tp))
    return memory.context_bytes + memory.communicator_bytes * count
