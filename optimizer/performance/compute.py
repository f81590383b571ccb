"""Time of one transformer layer and of the head on one GPU: matrix products, attention, small kernels.

Arguments broadcast; times are seconds for one micro-batch, forward unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.performance.arrays import Array
from optimizer.performance.calibration import Calibration, Software
from optimizer.performance.hardware import Hardware
from optimizer.performance.layouts import Layouts
from optimizer.performance.shapes import Shapes, seen_context


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Forward time of one average layer: products, attention, and what only moves memory."""

    products: Array
    attention: Array
    elementwise: Array


def rank_tokens(layouts: Layouts, sequence_length: Array) -> Array:
    """Tokens of one micro-batch on one rank before tensor slicing: b·S/c."""
    return layouts.micro_batch * sequence_length / layouts.cp


def product_share(width: Array, rows: Array, calibration: Calibration) -> Array:
    """Share of the matrix ceiling that a slice of ``width`` and ``rows`` reaches (tile and wave loss)."""
    compute = calibration.compute
    return compute.sustained_share / (1.0 + compute.width_half / width + compute.rows_half / rows)


def layer_forward(
    shapes: Shapes,
    sequence_length: Array,
    number_format: str,
    layouts: Layouts,
    hw: Hardware,
    software: Software,
    calibration: Calibration,
) -> LayerTime:
    """Forward pass of an average layer.

    Products: 2·tokens·N_layer/t FLOPs. Attention: 4·tokens·S·width/t, half of it with causal kernels.
    """
    tokens = rank_tokens(layouts, sequence_length)
    per_slice = tokens / layouts.tp
    share = product_share(_slice_width(shapes, layouts), _slice_rows(shapes, tokens, layouts), calibration)
    imbalance = 1.0 + (calibration.compute.moe_imbalance - 1.0) * _expert_share(shapes)
    products = 2.0 * per_slice * shapes.layer_params * imbalance / (hw.gemm[number_format] * share)
    return LayerTime(
        products=products,
        attention=_attention(shapes, sequence_length, per_slice, hw, software, calibration),
        elementwise=_elementwise(shapes, per_slice, number_format, hw, calibration),
    )


def head_forward(
    shapes: Shapes, sequence_length: Array, layouts: Layouts, hw: Hardware, cal: Calibration
) -> Array:
    """Output head and loss on the last stage, always in 16 bit: 2·tokens·h·V/t FLOPs, logits in FP32."""
    tokens = rank_tokens(layouts, sequence_length)
    rate = np.maximum(hw.gemm["bf16"], hw.gemm["fp16"])
    share = product_share(shapes.hidden, tokens, cal)
    products = 2.0 * tokens * shapes.head_params / layouts.tp / (rate * share)
    moved = 8.0 * tokens * shapes.vocab / layouts.tp
    return products + moved / (hw.hbm_bytes_per_s * cal.compute.hbm_share)


def model_flops_per_token(shapes: Shapes, sequence_length: Array) -> Array:
    """6·N + 12·L·S·width: training FLOPs of the PaLM convention (attention without the causal half)."""
    attention = shapes.layers * seen_context(shapes, sequence_length) * shapes.attention_width
    return 6.0 * shapes.active_matrix_params + 12.0 * attention


def _expert_share(shapes: Shapes) -> Array:
    return shapes.expert_layer_params / np.maximum(shapes.layer_params, 1.0)


def _slice_width(shapes: Shapes, layouts: Layouts) -> Array:
    """Typical width of a matrix slice: harmonic mean of feed-forward and attention slices."""
    experts_apart = (shapes.experts > 0) & (layouts.ep >= layouts.tp)
    one_expert = shapes.ffn / np.maximum(shapes.active_experts, 1.0)
    ffn = np.where(experts_apart, one_expert, one_expert / layouts.tp)
    attention = shapes.attention_width / layouts.tp
    return 2.0 / (1.0 / ffn + 1.0 / np.maximum(attention, 1.0))


def _slice_rows(shapes: Shapes, tokens: Array, layouts: Layouts) -> Array:
    """Rows of the products: tokens, or for experts the tokens that one expert gets."""
    routed = tokens * layouts.ep * shapes.active_experts / np.maximum(shapes.experts, 1.0)
    routed = routed / np.where(layouts.ep >= layouts.tp, layouts.tp, 1.0)
    share = _expert_share(shapes)
    return np.where(
        shapes.experts > 0, 1.0 / ((1 - share) / tokens + share / np.maximum(routed, 1.0)), tokens
    )


def _attention(
    shapes: Shapes,
    sequence_length: Array,
    per_slice: Array,
    hw: Hardware,
    software: Software,
    calibration: Calibration,
) -> Array:
    compute = calibration.compute
    pairs = per_slice * seen_context(shapes, sequence_length) * shapes.attention_width
    peak = np.maximum(hw.peak["bf16"], hw.peak["fp16"])
    if software.flash_attention:
        return 2.0 * pairs / (peak * hw.attention_share)
    scores = per_slice * sequence_length * shapes.heads
    moved = compute.softmax_bytes_unfused * scores / (hw.hbm_bytes_per_s * compute.hbm_share)
    return 4.0 * pairs / (peak * compute.attention_share_unfused) + moved


def _elementwise(
    shapes: Shapes, per_slice: Array, number_format: str, hw: Hardware, calibration: Calibration
) -> Array:
    compute = calibration.compute
    size = compute.elementwise_bytes_hidden * shapes.hidden + compute.elementwise_bytes_ffn * shapes.ffn
    if number_format == "fp8":
        size = size + compute.fp8_cast_bytes_hidden * shapes.hidden
    routed = shapes.active_experts * shapes.moe_layers / shapes.layers
    size = size + compute.moe_permute_bytes_hidden * shapes.hidden * routed
    return per_slice * size / (hw.hbm_bytes_per_s * compute.hbm_share)
