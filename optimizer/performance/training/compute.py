"""Time of one transformer layer and of the output head on one GPU: matrix products, attention, small kernels.

Times are seconds for one micro-batch, forward unless stated otherwise; shapes broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array
from optimizer.performance.constants.groups import Compute
from optimizer.performance.shapes import Shapes, seen_context, small_kernel_bytes
from optimizer.performance.training.scenario import Scenario, Trained

USUAL_HEAD = 128.0


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Forward time of one average layer: products, attention, and memory-bound kernels."""

    products: Array
    attention: Array
    elementwise: Array


def product_share(width: Array, rows: Array, compute: Compute) -> Array:
    """Share of the best matrix rate reached by a slice of ``width`` and ``rows``, after losses to partly
    filled tiles and waves.
    """
    return compute.sustained_share / (1.0 + compute.width_half / width + compute.rows_half / rows)


def layer_forward(scenario: Scenario) -> LayerTime:
    """Forward pass of an average layer.

    products: 2·tokens·N_layer/t FLOPs
    attention: 4·tokens·S·width/t FLOPs, half of it with causal kernels
    """
    shapes, compute = scenario.shapes, scenario.compute
    per_slice = scenario.rank_tokens / scenario.layouts.tp
    share = product_share(_slice_width(scenario), _slice_rows(scenario), compute)
    imbalance = 1.0 + (compute.moe_imbalance - 1.0) * _expert_share(shapes)
    rate = scenario.hw.gemm[scenario.run.number_format] * scenario.hw.long_run_share * share
    return LayerTime(
        products=2.0 * per_slice * shapes.layer_params * imbalance / rate,
        attention=_attention(scenario, per_slice),
        elementwise=_elementwise(scenario, per_slice),
    )


def head_forward(scenario: Scenario) -> Array:
    """Output head and loss on the last stage, always in 16 bits: 2·tokens·h·V/t FLOPs, with logits in
    FP32.
    """
    shapes, hw, compute = scenario.shapes, scenario.hw, scenario.compute
    per_slice = scenario.rank_tokens / scenario.layouts.tp
    rate = xp.maximum(hw.gemm["bf16"], hw.gemm["fp16"]) * hw.long_run_share
    share = product_share(shapes.hidden, scenario.rank_tokens, compute)
    moved = scenario.software.logit_bytes_moved * per_slice * shapes.vocab
    return 2.0 * per_slice * shapes.head_params / (rate * share) + moved / (
        hw.hbm_bytes_per_s * compute.hbm_share
    )


def model_flops_per_token(trained: Trained, sequence_length: Array) -> Array:
    """FLOPs per token that the method computes, in the PaLM convention, which ignores the causal half of
    attention:

    6·N + 12·L·S·width

    A frozen base has no gradients of weights, 4·N, and its adapters 6·A. A model that only runs forward adds
    2·N + 4·L·S·width of its own. Recomputation and padding are not counted.
    """
    shapes, adapters, forward = trained.shapes, trained.adapters, trained.forward
    passes = 6.0 if adapters is None else 4.0
    found = passes * shapes.active_matrix_params + 12.0 * _pairs(shapes, sequence_length)
    if adapters is not None:
        found = found + 6.0 * adapters.params * shapes.active_matrix_params / shapes.params
    if forward is not None:
        found = found + 2.0 * forward.active_matrix_params + 4.0 * _pairs(forward, sequence_length)
    return found


def _pairs(shapes: Shapes, sequence_length: Array) -> Array:
    return shapes.layers * seen_context(shapes, sequence_length) * shapes.attention_width


def _expert_share(shapes: Shapes) -> Array:
    return shapes.expert_layer_params / xp.maximum(shapes.layer_params, 1.0)


def _slice_width(scenario: Scenario) -> Array:
    """Typical width of a matrix slice: harmonic mean of feed-forward and attention slices."""
    shapes, layouts = scenario.shapes, scenario.layouts
    experts_apart = (shapes.experts > 0) & (layouts.ep >= layouts.tp)
    one_expert = shapes.ffn / xp.maximum(shapes.active_experts, 1.0)
    ffn = xp.where(experts_apart, one_expert, one_expert / layouts.tp)
    mixer = (shapes.attention_width + shapes.state_width) / layouts.tp
    return 2.0 / (1.0 / ffn + 1.0 / xp.maximum(mixer, 1.0))


def _slice_rows(scenario: Scenario) -> Array:
    """Rows of the products: tokens, or the tokens of one expert."""
    shapes, layouts, tokens = scenario.shapes, scenario.layouts, scenario.rank_tokens
    routed = tokens * layouts.ep * shapes.active_experts / xp.maximum(shapes.experts, 1.0)
    routed = routed / xp.where(layouts.ep >= layouts.tp, layouts.tp, 1.0)
    share = _expert_share(shapes)
    mixed = 1.0 / ((1.0 - share) / tokens + share / xp.maximum(routed, 1.0))
    return xp.where(shapes.experts > 0, mixed, tokens)


def _attention(scenario: Scenario, per_slice: Array) -> Array:
    shapes, hw, compute = scenario.shapes, scenario.hw, scenario.compute
    length = scenario.run.sequence_length
    pairs = per_slice * seen_context(shapes, length) * shapes.attention_width
    peak = xp.maximum(hw.peak["bf16"], hw.peak["fp16"])
    if scenario.software.flash_attention:
        rate = xp.minimum(peak * hw.attention_share, scenario.software.attention_flop_per_s_most)
        block = length / scenario.layouts.cp
        filled = 1.0 / (1.0 + compute.attention_length_half / block)
        return 2.0 * pairs / (rate * _head_share(shapes, compute) * filled)
    moved = compute.softmax_bytes_unfused * per_slice * length * shapes.heads
    return 4.0 * pairs / (peak * compute.attention_share_unfused) + moved / (
        hw.hbm_bytes_per_s * compute.hbm_share
    )


def _head_share(shapes: Shapes, compute: Compute) -> Array:
    """Rate of fused attention at this head width relative to heads of 128; softmax costs the same per score
    at any width.
    """
    return (1.0 + compute.head_half / USUAL_HEAD) / (1.0 + compute.head_half / shapes.head_width)


def _elementwise(scenario: Scenario, per_slice: Array) -> Array:
    """Time of small kernels: bytes per token over memory bandwidth.

    Without sequence parallelism every tensor rank works on whole tensors of the hidden width.
    """
    shapes, compute = scenario.shapes, scenario.compute
    routed = scenario.software.routed_share * shapes.active_experts * shapes.moe_layers / shapes.layers
    whole = scenario.hidden_width * (1.0 if scenario.software.sequence_parallel else scenario.layouts.tp)
    size = small_kernel_bytes(shapes, compute, whole, routed, scenario.run.number_format in {"fp8", "fp4"})
    if scenario.adapters is not None:
        size = size + compute.adapter_bytes_hidden * shapes.hidden * scenario.adapters.width_share
        if scenario.has_long_outputs:
            size = size + compute.dora_bytes_width * scenario.adapters.out
    return per_slice * size / (scenario.hw.hbm_bytes_per_s * compute.hbm_share)
