"""Activation memory of the fullest pipeline stage, and which pipelines a stack supports. Shapes broadcast."""

from __future__ import annotations

from broker.domain.workloads.training_method import Target
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.training.layouts import AS_NEEDED, FULL_RECOMPUTE, SELECTIVE
from optimizer.performance.training.scenario import Scenario

HALF = 2.0
LAYERS_LEFT = 2.0


def stage_layers(scenario: Scenario) -> tuple[Array, Array]:
    """Layers of the first and of the last stage.

    Divided evenly, the first stage has ⌈L/p⌉ and the last ⌊L/p⌋ layers. Stacks that balance cost count the
    output head as layers: every stage gets (L + head/layer)/p, and the last one fewer layers accordingly.
    """
    layers, stages = scenario.shapes.layers, scenario.layouts.pp
    if not scenario.software.balanced_head:
        return xp.ceil(layers / stages), xp.maximum(xp.floor(layers / stages), 1.0)
    first = xp.where(stages > 1.0, xp.clip(xp.ceil(_cost_share(scenario)), 1.0, layers), layers)
    last = xp.where(stages > 1.0, xp.maximum(layers - first * (stages - 1.0), 0.0), layers)
    return first, last


def can_start(scenario: Scenario, micro_batches: Array) -> Mask:
    """Whether every stage has layers and the schedule has enough micro-batches.

    In stacks that balance cost, stages before the last are empty if the head outweighs several of them, and
    1F1B needs m ≥ p − 1 micro-batches. All other stacks run, with a bubble.
    """
    layouts, layers = scenario.layouts, scenario.shapes.layers
    if not scenario.software.balanced_head:
        always: Mask = (layouts.pp >= 1.0) & (layers >= 1.0)
        return always
    share = _cost_share(scenario)
    filled = (share >= 1.0) & (xp.ceil(layers / share) >= layouts.pp - 1.0)
    return (layouts.pp <= 1.0) | (filled & (micro_batches >= layouts.pp - 1.0))


def _cost_share(scenario: Scenario) -> Array:
    """Layers per stage if the head counts by its parameters."""
    shapes = scenario.shapes
    share: Array = (shapes.layers + shapes.head_params / shapes.layer_params) / scenario.layouts.pp
    return share


def activation_bytes(
    scenario: Scenario, micro_batches: Array, interleave: Array, room: Array
) -> tuple[Array, Array, Array]:
    """Activations kept for the backward pass on the fullest stage, with logits [korth, section 4].

    Also returned is the share of layers that are recomputed (with ``AS_NEEDED`` as many as ``room`` bytes
    require), and the bytes of a micro-batch that go to the host. Offloaded activations leave those of two
    layers on the GPU; then ``AS_NEEDED`` rebuilds every layer. In 1F1B the first stage holds min(p, m)
    micro-batches, p + (p − 1)/v if interleaved. The last stage holds one micro-batch, p − (p − 1)/v if
    interleaved, and the logits. With full recomputation a layer is rebuilt after its logits are freed, so the
    larger of the two counts.
    """
    layouts, shapes, memory = scenario.layouts, scenario.shapes, scenario.calibration.memory
    layer, least = layer_bytes(scenario), _checkpoint_bytes(scenario)
    rebuilt = xp.where(layouts.recompute >= FULL_RECOMPUTE, layer, 0.0)
    each = memory.logits_bytes * scenario.software.logits_kept
    logits = each * shapes.vocab * scenario.rank_tokens / layouts.tp
    first, last = stage_layers(scenario)
    ramp = (layouts.pp - 1.0) / interleave
    early = xp.minimum(layouts.pp, micro_batches) * (1.0 + xp.where(interleave > 1.0, ramp / layouts.pp, 0.0))
    late = xp.where(interleave > 1.0, xp.minimum(layouts.pp, micro_batches) - ramp, 1.0)
    end = xp.maximum(rebuilt, logits)
    ahead, behind = early * first, xp.maximum(late, 1.0) * last
    beside = xp.where(layouts.pp > 1.0, rebuilt, end)
    some = xp.where(layouts.recompute == SELECTIVE, scenario.software.selective_kept * layer, layer)
    kept = xp.where(layouts.recompute == FULL_RECOMPUTE, least, some)
    offloads = scenario.run.method.offload_activations
    if offloads:
        kept = xp.where(layouts.recompute == AS_NEEDED, least, kept)
    elif xp.any(layouts.recompute == AS_NEEDED):
        allowed = xp.minimum((room - beside) / ahead, (room - end) / xp.maximum(behind, 1.0))
        kept = xp.where(layouts.recompute == AS_NEEDED, xp.clip(allowed, least, layer), kept)
    moved = first * kept if offloads else xp.zeros_like(kept)
    if offloads:
        ahead, behind = xp.minimum(ahead, LAYERS_LEFT), xp.minimum(behind, LAYERS_LEFT)
    largest: Array = xp.maximum(ahead * kept + beside, behind * kept + end)
    again = xp.where(rebuilt > 0.0, (layer - kept) / xp.maximum(layer - least, 1.0), 0.0)
    return largest, again, moved


def layer_bytes(scenario: Scenario) -> Array:
    """Activation bytes of one layer and micro-batch without recomputation.

    Tensors of the hidden width (inputs of norms and products) are divided over t only with sequence
    parallelism. Query, key, value and output of attention, the feed-forward and, without flash attention, the
    scores are always divided. For F = 4h [korth, table 2]:

      s·b·(10h + 24h/t + 5·a·s/t), or s·b·(34h + 5·a·s)/t with sequence parallelism

    In FP8 the inputs of products are kept in eight bits if the stack does so; frozen weights need no input of
    the last product, unless it has adapters. DoRA keeps the outputs that it scales. Experts keep what each
    token sent to them.
    """
    shapes, software, tokens = scenario.shapes, scenario.software, scenario.rank_tokens
    memory, layouts = scenario.calibration.memory, scenario.layouts
    eight = scenario.run.number_format in {"fp8", "fp4"} and software.saves_eight_bit > 0.0
    hidden = software.activation_bytes_hidden - (memory.fp8_saved_bytes_hidden if eight else 0.0)
    plain, gated = software.activation_bytes_ffn_plain, software.activation_bytes_ffn_gated
    last = HALF if _last_is_frozen(scenario) else memory.fp8_saved_bytes_ffn if eight else 0.0
    ffn = xp.where(shapes.gated > 0, gated, plain) - last
    attention = HALF * (2.0 * shapes.attention_width + shapes.kv_width)
    routed = memory.routed_bytes_hidden - (memory.fp8_saved_bytes_routed if eight else 0.0)
    experts = routed * shapes.expert_hidden * shapes.active_experts * shapes.moe_layers / shapes.layers
    sliced = attention + ffn * shapes.ffn + experts + memory.state_saved_bytes_width * shapes.state_width
    if scenario.adapters is not None and scenario.has_long_outputs:
        sliced = sliced + HALF * scenario.adapters.out
    if not software.flash_attention:
        scores = memory.score_bytes * shapes.heads * scenario.run.sequence_length
        sliced = sliced + xp.where(layouts.recompute == SELECTIVE, 0.0, scores)
    gathered = xp.where(layouts.pp > 1.0, 0.0, software.gathered_bytes_hidden * (layouts.tp > 1.0))
    size: Array = tokens * (hidden * shapes.hidden / _slices(scenario) + sliced / layouts.tp)
    return size + tokens * gathered * shapes.hidden


def _last_is_frozen(scenario: Scenario) -> bool:
    adapter = scenario.run.method.adapter
    return adapter is not None and Target.DOWN_PROJ not in adapter.matrices


def _checkpoint_bytes(scenario: Scenario) -> Array:
    """The input of a layer, which full recomputation keeps: 2·s·b·h, over t with sequence parallelism."""
    hidden = scenario.calibration.memory.recompute_bytes_hidden * scenario.shapes.hidden
    kept: Array = hidden * scenario.hidden_width * scenario.rank_tokens / _slices(scenario)
    return kept


def _slices(scenario: Scenario) -> Array:
    """Ranks over which tensors of the hidden width are divided."""
    whole = xp.ones_like(scenario.layouts.tp)
    return scenario.layouts.tp if scenario.software.sequence_parallel else whole
