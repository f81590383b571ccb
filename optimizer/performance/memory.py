"""Bytes on one training rank: states, activations, logits, buffers. Arguments broadcast."""

from __future__ import annotations

import numpy as np

from optimizer.performance.arrays import Array, Mask
from optimizer.performance.calibration import Calibration, Software
from optimizer.performance.compute import rank_tokens
from optimizer.performance.hardware import Hardware
from optimizer.performance.layouts import Layouts
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


def state_bytes(
    shapes: Shapes, layouts: Layouts, dp: Array, calibration: Calibration, adapters: bool = False
) -> Array:
    """Weights, gradients and optimizer: 16-20 B a parameter, of which ZeRO-1 shares the optimizer's part
    and parameter sharding everything (plus two gathered layers). Frozen weights take 2 B."""
    memory = calibration.memory
    dense, experts = rank_params(shapes, layouts)
    copies, expert_copies = dp * layouts.cp, expert_replicas(layouts, dp)
    whole, mine = dense + experts, dense / copies + experts / expert_copies
    weight_grad = 2.0 if adapters else memory.weight_grad_bytes_per_param
    states = 0.0 if adapters else memory.optimizer_bytes_per_param
    kept = weight_grad * whole
    spread = weight_grad * mine + 4.0 * whole / shapes.layers
    optimizer = states * np.where(layouts.sharding >= 1.0, mine, whole)
    return optimizer + np.where(layouts.sharding >= 3.0, spread, kept)


def activation_bytes(
    shapes: Shapes,
    sequence_length: Array,
    layouts: Layouts,
    micro_batches: Array,
    interleave: Array,
    software: Software,
    calibration: Calibration,
) -> Array:
    """Kept for the backward pass on the fullest stage, with logits.

    1F1B: the first stage holds min(p, m) micro-batches, more when interleaved by (p−1)/(p·v) [korth].
    """
    tokens = rank_tokens(layouts, sequence_length)
    layer = _layer_bytes(shapes, sequence_length, tokens, layouts, software, calibration)
    boundary = calibration.memory.recompute_bytes_hidden * shapes.hidden * tokens / layouts.tp
    full = layouts.recompute >= 2.0
    per_layer = np.where(full, boundary, layer)
    stage = np.ceil(shapes.layers / layouts.pp) * per_layer
    extra = np.where(interleave > 1.0, (layouts.pp - 1.0) / (layouts.pp * interleave), 0.0)
    held = np.minimum(layouts.pp, micro_batches) * (1.0 + extra)
    logits = calibration.memory.logits_bytes * shapes.vocab * tokens / layouts.tp
    first = held * stage + np.where(layouts.pp > 1.0, 0.0, logits)
    kept: Array = np.maximum(first, stage + logits) + np.where(full, layer, 0.0)
    return kept


def _layer_bytes(
    shapes: Shapes,
    sequence_length: Array,
    tokens: Array,
    layouts: Layouts,
    software: Software,
    calibration: Calibration,
) -> Array:
    plain, gated = software.activation_bytes_ffn_plain, software.activation_bytes_ffn_gated
    ffn = np.where(shapes.gated > 0, gated, plain) * shapes.ffn
    size = (software.activation_bytes_hidden * shapes.hidden + ffn) * tokens / layouts.tp
    if software.flash_attention:
        return size
    scores = calibration.memory.score_bytes * shapes.heads * sequence_length * tokens / layouts.tp
    return size + np.where(layouts.recompute == 1.0, 0.0, scores)


def peak_bytes(states: Array, activations: Array, calibration: Calibration) -> Array:
    """What the allocator peaks at."""
    return calibration.memory.fixed_bytes + states + activations


def fits(peak: Array, hw: Hardware, calibration: Calibration) -> Mask:
    """Whether the peak, context and communicator buffers and a reserve fit the card."""
    memory = calibration.memory
    return peak + memory.buffer_bytes <= hw.memory_bytes * (1.0 - memory.reserve_share)
