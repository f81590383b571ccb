"""Bytes on one training rank: states, activations, logits, buffers. Shapes broadcast."""

from __future__ import annotations

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.calibration import Calibration
from optimizer.performance.hardware import Hardware
from optimizer.performance.layouts import Layouts
from optimizer.performance.scenario import Scenario
from optimizer.performance.shapes import Shapes


def rank_params(shapes: Shapes, layouts: Layouts) -> tuple[Array, Array]:
    """Dense and expert parameters on the fullest rank: layers over t·p, experts over p·max(t, e).

    The first stage keeps the embedding, the last the head; one stage keeps both.
    """
    ends = np.where(layouts.pp > 1.0, shapes.head_params, shapes.embedding_params) / layouts.tp
    inner = (shapes.dense_params - shapes.embedding_params) / (layouts.tp * layouts.pp)
    experts = shapes.expert_params / (layouts.pp * np.maximum(layouts.tp, layouts.ep))
    return inner + ends, experts


def expert_replicas(layouts: Layouts, dp: Array) -> Array:
    """Ranks that hold copies of the same experts: what expert groups leave of t·c·d."""
    return np.maximum(layouts.tp * layouts.cp * dp / np.maximum(layouts.tp, layouts.ep), 1.0)


def state_bytes(scenario: Scenario, dp: Array) -> Array:
    """Weights, gradients and optimizer: 16-20 B a parameter, of which ZeRO-1 shares the optimizer's part
    and parameter sharding everything (plus two gathered layers). Frozen weights take 2 B."""
    software, layouts = scenario.software, scenario.layouts
    dense, experts = rank_params(scenario.shapes, layouts)
    whole = dense + experts
    mine = dense / (dp * layouts.cp) + experts / expert_replicas(layouts, dp)
    weight_grad = 2.0 if scenario.run.adapters else software.weight_grad_bytes_per_param
    states = 0.0 if scenario.run.adapters else software.optimizer_bytes_per_param
    spread = weight_grad * mine + 4.0 * whole / scenario.shapes.layers
    optimizer = states * np.where(layouts.sharding >= 1.0, mine, whole)
    return optimizer + np.where(layouts.sharding >= 3.0, spread, weight_grad * whole)


def activation_bytes(scenario: Scenario, micro_batches: Array, interleave: Array) -> Array:
    """Kept for the backward pass on the fullest stage, with logits.

    1F1B: the first stage holds min(p, m) micro-batches, more when interleaved by (p−1)/(p·v) [korth].
    """
    shapes, layouts, memory = scenario.shapes, scenario.layouts, scenario.calibration.memory
    per_slice = scenario.rank_tokens / layouts.tp
    layer = _layer_bytes(scenario, per_slice)
    full = layouts.recompute >= 2.0
    kept_of_layer = np.where(full, memory.recompute_bytes_hidden * shapes.hidden * per_slice, layer)
    stage = np.ceil(shapes.layers / layouts.pp) * kept_of_layer
    extra = np.where(interleave > 1.0, (layouts.pp - 1.0) / (layouts.pp * interleave), 0.0)
    held = np.minimum(layouts.pp, micro_batches) * (1.0 + extra)
    logits = memory.logits_bytes * shapes.vocab * per_slice
    first = held * stage + np.where(layouts.pp > 1.0, 0.0, logits)
    kept: Array = np.maximum(first, stage + logits) + np.where(full, layer, 0.0)
    return kept


def _layer_bytes(scenario: Scenario, per_slice: Array) -> Array:
    shapes, software = scenario.shapes, scenario.software
    plain, gated = software.activation_bytes_ffn_plain, software.activation_bytes_ffn_gated
    ffn = np.where(shapes.gated > 0, gated, plain) * shapes.ffn
    size = (software.activation_bytes_hidden * shapes.hidden + ffn) * per_slice
    if software.flash_attention:
        return size
    scores = scenario.calibration.memory.score_bytes * shapes.heads * scenario.run.sequence_length * per_slice
    return size + np.where(scenario.layouts.recompute == 1.0, 0.0, scores)


def peak_bytes(states: Array, activations: Array, calibration: Calibration) -> Array:
    """What the allocator peaks at."""
    return calibration.memory.fixed_bytes + states + activations


def fits(peak: Array, hw: Hardware, calibration: Calibration) -> Mask:
    """Whether the peak, context and communicator buffers and a reserve fit the card."""
    memory = calibration.memory
    return peak + memory.buffer_bytes <= hw.memory_bytes * (1.0 - memory.reserve_share)
