"""Memory of one training rank: states, activations, buffers, and the capacity of a card. Shapes broadcast."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.domain.workloads.training_method import BF16, FP32, PLAIN, Offload, OptimizerName
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.constants.groups import Memory
from optimizer.performance.shapes import Shapes
from optimizer.performance.training.activations import activation_bytes, can_start, stage_layers
from optimizer.performance.training.layouts import Layouts
from optimizer.performance.training.scenario import Scenario

WEIGHT_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The fullest rank, in bytes.

    ``peak``: what the stack's published peaks state, from allocator or driver; ``held``: what the card holds,
    with the allocator's cache, contexts and communicators. ``again``: share of the layers that the backward
    pass recomputes. ``offloaded``: activations of a micro-batch that go to the host and come back.
    """

    peak: Array
    held: Array
    fits: Mask
    again: Array
    offloaded: Array


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
    activations, again, offloaded = activation_bytes(scenario, micro_batches, interleave, room)
    stepping = _stepping_bytes(scenario, dp, shards) - _passing_bytes(scenario, dp, shards)
    allocated = memory.fixed_bytes + states + xp.maximum(activations, stepping)
    held = allocated * (1.0 + software.cache_share) + buffers
    peak = held if software.reports_device else allocated
    return RankMemory(peak, held, (held <= card) & can_start(scenario, micro_batches), again, offloaded)


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
    (``TrainingMethod``; 12-16 for AdamW in mixed precision).

    Over ``shards`` ranks (default: all data-parallel ones) are sharded: optimizer states from ZeRO-1 on,
    gradients from ZeRO-2 on, weights with ZeRO-3 or FSDP, which gathers one layer ahead. A frozen base has
    weights alone, in its own format. What is offloaded is not counted, except for two layers of streamed
    weights and the gradients of one layer. Moments in paged memory need no room: they move.
    """
    sharding, method = scenario.layouts.sharding, scenario.run.method
    _, whole, mine = _params(scenario, dp, shards)
    states = _forward_bytes(scenario, dp, shards) + _passing_bytes(scenario, dp, shards)
    if method.optimizer.offload is not Offload.ALL:
        states = states + _weight_bytes(scenario) * xp.where(sharding >= 3.0, mine, whole)
    if scenario.adapters is not None:
        return states + _adapter_state_bytes(scenario) * trained_of_rank(scenario, dp, shards)
    if method.optimizer.offload is not Offload.NONE:
        return states
    gradients = gradient_bytes(scenario) * xp.where(sharding >= 2.0, mine, whole)
    return states + gradients + _optimizer_bytes(scenario) * xp.where(sharding >= 1.0, mine, whole)


def _passing_bytes(scenario: Scenario, dp: Array, shards: Array | None) -> Array:
    """What a rank has of other ranks or of the host while layers run: weights of two layers, gradients of
    one.
    """
    sharding, offload = scenario.layouts.sharding, scenario.run.method.optimizer.offload
    layer = _params(scenario, dp, shards)[0]
    ahead = xp.where((sharding >= 3.0) | (offload is Offload.ALL), 2.0 * _weight_bytes(scenario) * layer, 0.0)
    if scenario.adapters is not None:
        return ahead
    apart = (sharding >= 2.0) | (offload is not Offload.NONE)
    return ahead + xp.where(apart, gradient_bytes(scenario) * layer, 0.0)


def trained_of_rank(scenario: Scenario, dp: Array, shards: Array | None = None) -> Array:
    """Trained parameters whose states a rank has; adapters are spread as the weights beside them are."""
    _, whole, mine = _params(scenario, dp, shards)
    share = xp.where(scenario.layouts.sharding >= 1.0, mine, whole)
    if scenario.adapters is None:
        return share
    return scenario.adapters.params / scenario.shapes.params * share


def streamed_bytes(scenario: Scenario, dp: Array, shards: Array | None = None) -> Array:
    """Weights that a rank reads from the host in one pass, where these are offloaded."""
    _, whole, mine = _params(scenario, dp, shards)
    return _weight_bytes(scenario) * xp.where(scenario.layouts.sharding >= 3.0, mine, whole)


def gradient_bytes(scenario: Scenario) -> float:
    """Bytes of a trained weight's gradient, with FP32 sums where the stack has them."""
    if scenario.run.method.is_pure:
        return BF16
    gradient = scenario.software.weight_grad_bytes_per_param - WEIGHT_BYTES
    summed = scenario.run.number_format == "bf16"
    return gradient + (scenario.software.accumulation_bytes_per_param if summed else 0.0)


def _weight_bytes(scenario: Scenario) -> Array | float:
    """Bytes of a weight in a GPU's memory."""
    if scenario.adapters is not None:
        return scenario.base_bytes
    eight = scenario.run.has_eight_bit_products
    return WEIGHT_BYTES + (scenario.calibration.memory.fp8_weight_bytes_per_param if eight else 0.0)


def _optimizer_bytes(scenario: Scenario) -> float:
    """Master copy and moments of a parameter: the stack's figure for AdamW in mixed precision, less what the
    method does without. Without master copies there are no buffers for them.
    """
    method = scenario.run.method
    moments = 0.0 if method.optimizer.name is OptimizerName.PAGED_ADAMW8BIT else method.moment_bytes
    if method.is_pure:
        return moments
    return scenario.software.optimizer_bytes_per_param + moments - PLAIN.moment_bytes


def _adapter_state_bytes(scenario: Scenario) -> float:
    """Weights, gradients and moments of a parameter of adapters, which are small enough for FP32."""
    method = scenario.run.method
    return 2.0 * (BF16 if method.is_pure else FP32) + method.moment_bytes


def _forward_bytes(scenario: Scenario, dp: Array, shards: Array | None) -> Array:
    """Weights of the model that only runs forward (reference or teacher), in 16 bits."""
    if scenario.forward is None or not scenario.holds_forward_weights:
        return xp.zeros_like(dp)
    layer, whole, mine = _params(replace(scenario, shapes=scenario.forward), dp, shards)
    sharded = scenario.layouts.sharding >= 3.0
    return WEIGHT_BYTES * xp.where(sharded, mine + 2.0 * layer, whole)


def _stepping_bytes(scenario: Scenario, dp: Array, shards: Array | None) -> Array:
    """Memory that the optimizer takes while it steps, when no activations are left: PyTorch's AdamW over
    lists of tensors holds the square roots of all second moments, in the format of the weights.
    """
    method = scenario.run.method
    plain = method.optimizer.name is OptimizerName.ADAMW and method.optimizer.offload is Offload.NONE
    if not method.is_pure or not plain:
        return xp.zeros_like(dp)
    return scenario.calibration.memory.stepping_bytes_per_param * trained_of_rank(scenario, dp, shards)


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
