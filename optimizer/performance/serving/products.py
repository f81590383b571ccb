"""Matrix products of a served model: their rates, and the loss with few tokens.

Rates in FLOP/s, times in seconds on one GPU unless stated otherwise.
"""

from __future__ import annotations

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, number
from optimizer.performance.serving.served_model import (
    WIDE,
    ServedModel,
    expert_reach,
    expert_slices,
    once,
    wide_best,
)
from optimizer.performance.shapes import experts_touched, small_kernel_bytes

REFERENCE_BALANCE = 794.5e12 / 3.35e12
PACKED = frozenset({"int3", "int4", "int5", "int6", "w8a16"})
UNITS = frozenset({"fp8", "fp4"})
SMALL = frozenset({"int3", "int4", "fp4"})


@once
def product_rate(served: ServedModel) -> Array:
    """Rate of dense products of many tokens: a share of the best measured rate of the format, lower if
    weights are widened.
    """
    return _usual_rate(served) * _kept(served, served.number_format.dense)


@once
def expert_product_rate(served: ServedModel) -> Array:
    """Rate of the experts' products.

    FP4 experts with 16-bit dense weights (MXFP4 checkpoints) use 8-bit inputs where the GPU multiplies FP4.
    """
    form, usual = served.number_format, _usual_rate(served)
    if form.experts == "fp4" and form.products in WIDE:
        narrow = served.hw.gemm["fp8"] * _share(served)
        usual = xp.where(served.hw.gemm["fp4"] > 0.0, narrow, usual)
    return usual * _kept(served, form.experts) * served.rates.moe_share * expert_reach(served)


@once
def _usual_rate(served: ServedModel) -> Array:
    return served.product_best * _share(served)


@once
def _share(served: ServedModel) -> Array:
    """Share of the best measured rate that the engine's kernels reach; tuned kernels lose nothing on any
    card.
    """
    return served.rates.product_share * xp.maximum(served.hw.product_reach, served.engine.tuned)


def _kept(served: ServedModel, stored: str) -> Array:
    """Share of the rate that remains after unpacking weights."""
    rates = served.rates
    native = number(rates.quantised_compute.get(stored, 1.0))
    unpacked = rates.widened_share * (served.engine.widened if stored in SMALL else 1.0)
    return xp.where(_widened(served, stored) > 0.0, unpacked, native)


def _widened(served: ServedModel, stored: str) -> Array:
    """1 if weights of the format ``stored`` are unpacked to 16 bits before products, else 0.

    That is the case for packed integers and for formats without units on the GPU; local engines multiply
    integers directly.
    """
    if served.number_format.products == "int8":
        return xp.zeros_like(served.replica.tp)
    if stored in PACKED:
        return xp.ones_like(served.replica.tp)
    if stored in UNITS:
        return xp.where(served.hw.gemm[stored] > 0.0, 0.0, 1.0) + xp.zeros_like(served.replica.tp)
    return xp.zeros_like(served.replica.tp)


def filling_tokens(served: ServedModel, tokens: Array) -> Array:
    """Tokens in full tiles whose dense products take as long as those of ``tokens`` tokens in partly filled
    ones:

      √(n·(n + half))
    """
    return xp.sqrt(tokens * (tokens + _dense_half(served)))


@once
def _dense_half(served: ServedModel) -> Array:
    return _tokens_half(served, served.number_format.dense)


@once
def _expert_half(served: ServedModel) -> Array:
    return _tokens_half(served, served.number_format.experts)


def _tokens_half(served: ServedModel, stored: str) -> Array:
    """Number of tokens that fill half of a unit.

    It grows with the GPU's ratio of (best measured) FLOP/s to bytes/s, relative to an H100 in BF16. Kernels
    that widen weights use the smallest tiles.
    """
    balance = served.product_best / served.hw.hbm_bytes_per_s / REFERENCE_BALANCE
    smaller = xp.where(_widened(served, stored) > 0.0, served.rates.widened_tile, 1.0)
    return served.rates.tokens_half * balance * smaller


def layer_products_s(
    served: ServedModel, tokens: Array, together: Array, filled: Array, *, lone: bool = False
) -> Array:
    """Time of the products of ``tokens`` tokens in all layers on one GPU.

    ``together``: tokens that share a step; they take as long as ``filled`` tokens in full tiles
    (``filling_tokens``). Dense weights are multiplied with all tokens of a step, an expert only with its own:
    n·k over the experts touched, so that ``half`` grows with E′/k. ``lone``: no other attention rank has
    tokens, and all share the experts' work.
    """
    shapes, ranks, alone = served.shapes, served.replica.dp, number(1.0)
    busy, shared_by = (alone, ranks) if lone else (ranks, alone)
    dense, experts = _layer_token_s(served)
    if not xp.any(shapes.experts):
        return dense * (filled / together) * tokens
    gathered = together * busy
    groups = xp.maximum(experts_touched(shapes, gathered) / xp.maximum(shapes.active_experts, 1.0), 1.0)
    unfilled = xp.sqrt(1.0 + _expert_half(served) * groups / gathered)
    return (dense * (filled / together) + experts * unfilled / shared_by) * tokens


@once
def _layer_token_s(served: ServedModel) -> tuple[Array, Array]:
    """Time of the dense and expert products of one token among many in all layers, on one GPU."""
    shapes, replica = served.shapes, served.replica
    scale = 2.0 * shapes.layers
    dense = (shapes.layer_params - shapes.expert_layer_params) * _narrow(served, shapes.ffn / replica.tp)
    slice_width = shapes.expert_ffn / expert_slices(replica)
    experts = shapes.expert_layer_params * _narrow(served, slice_width)
    return dense * scale / product_rate(served), experts * scale / expert_product_rate(served)


def _narrow(served: ServedModel, width: Array) -> Array:
    """Factor on the time of products of a slice of ``width``, for partly filled tiles and waves: 1 +
    half/width.
    """
    return 1.0 + served.rates.width_half / xp.maximum(width, 1.0)


@once
def head_token_s(served: ServedModel) -> Array:
    """Time of the output head's products for one token among many, on one GPU."""
    return 2.0 * served.shapes.head_params / product_rate(served)


@once
def decode_attention_s(served: ServedModel) -> Array:
    """Time of one query attending to one cached token, in all layers."""
    shapes = served.shapes
    rate = wide_best(served.hw) * served.rates.decode_attention_share
    return 4.0 * shapes.decode_width * shapes.layers / rate


@once
def prefill_attention_s(served: ServedModel) -> Array:
    """Time of one prompt token attending to one earlier token, in all layers; half of the pairs, as attention
    is causal.
    """
    rate = wide_best(served.hw) * _share(served)
    return 2.0 * served.shapes.attention_width * served.shapes.layers * served.engine.attention / rate


@once
def small_token_s(served: ServedModel) -> Array:
    """Time of one token's small kernels in all layers, on each GPU of its tensor group.

    It is ``small_share`` of the bytes that a forward pass of training moves, since inference fuses kernels
    differently. Every rank works on whole tensors of the hidden width.
    """
    shapes, compute, tp = served.shapes, served.calibration.compute, served.replica.tp
    routed = shapes.active_experts * shapes.moe_layers / shapes.layers
    eight_bit = served.number_format.products not in WIDE
    size = shapes.layers * small_kernel_bytes(shapes, compute, tp, routed, eight_bit) / tp
    return served.rates.small_share * size / (served.hw.hbm_bytes_per_s * compute.hbm_share)


@once
def packed_dense_token_s(served: ServedModel) -> Array:
    """Time of one token's dense products in a full step of prompts."""
    full = xp.full_like(served.replica.tp, served.engine.chunk_tokens)
    return _layer_token_s(served)[0] * (filling_tokens(served, full) / full)


@once
def packed_token_s(served: ServedModel) -> Array:
    """Time of one token's products in a full step of prompts."""
    full = xp.full_like(served.replica.tp, served.engine.chunk_tokens)
    return layer_products_s(served, xp.ones_like(full), full, filling_tokens(served, full))
