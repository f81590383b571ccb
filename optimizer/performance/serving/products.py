"""Matrix products of a served model: which rate they run at, and what few tokens leave empty.

Rates in FLOP/s, times in seconds on one GPU unless said otherwise.
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
    """Dense products of many tokens: a share of the best measured rate of the format, less where weights
    are widened first."""
    return _usual_rate(served) * _kept(served, served.number_format.dense)


@once
def expert_product_rate(served: ServedModel) -> Array:
    """The same of experts; FP4 ones beside 16-bit weights (MXFP4 checkpoints) meet 8-bit inputs where the GPU
    multiplies FP4."""
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
    """Share of the best measured rate that the engine's kernels reach; tuned ones lag on no card."""
    return served.rates.product_share * xp.maximum(served.hw.product_reach, served.engine.tuned)


def _kept(served: ServedModel, stored: str) -> Array:
    """Share of the rate that unpacking leaves."""
    rates = served.rates
    native = number(rates.quantised_compute.get(stored, 1.0))
    unpacked = rates.widened_share * (served.engine.widened if stored in SMALL else 1.0)
    return xp.where(_widened(served, stored) > 0.0, unpacked, native)


def _widened(served: ServedModel, stored: str) -> Array:
    """1 where weights of the format ``stored`` are unpacked to 16 bits before they are multiplied: packed
    integers, and formats that the GPU has no units for; local engines multiply integers as they are."""
    if served.number_format.products == "int8":
        return xp.zeros_like(served.replica.tp)
    if stored in PACKED:
        return xp.ones_like(served.replica.tp)
    if stored in UNITS:
        return xp.where(served.hw.gemm[stored] > 0.0, 0.0, 1.0) + xp.zeros_like(served.replica.tp)
    return xp.zeros_like(served.replica.tp)


def filling_tokens(served: ServedModel, tokens: Array) -> Array:
    """Tokens whose dense products take as long as those of ``tokens`` that leave tiles empty:
    √(n·(n + half))."""
    return xp.sqrt(tokens * (tokens + _dense_half(served)))


@once
def _dense_half(served: ServedModel) -> Array:
    return _tokens_half(served, served.number_format.dense)


@once
def _expert_half(served: ServedModel) -> Array:
    return _tokens_half(served, served.number_format.experts)


def _tokens_half(served: ServedModel, stored: str) -> Array:
    """Tokens that leave half of a unit empty; they grow with its balance of FLOPs (the best measured) over
    bytes/s, here over that of an H100 in BF16. Kernels that widen weights use the smallest tiles."""
    balance = served.product_best / served.hw.hbm_bytes_per_s / REFERENCE_BALANCE
    smaller = xp.where(_widened(served, stored) > 0.0, served.rates.widened_tile, 1.0)
    return served.rates.tokens_half * balance * smaller


def layer_products_s(
    served: ServedModel, tokens: Array, together: Array, filled: Array, *, lone: bool = False
) -> Array:
    """Products of ``tokens`` tokens in all layers, as one GPU would do them; ``together`` share a step and
    take as long as ``filled`` (``filling_tokens``).

    Dense weights meet all tokens of a step, an expert its own: n·k of them over the experts touched, so that
    ``half`` grows with E′/k. ``lone``: no other attention rank has tokens, and all share the experts' work.
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
    """Dense and expert products of one token of many in all layers, on one GPU."""
    shapes, replica = served.shapes, served.replica
    scale = 2.0 * shapes.layers
    dense = (shapes.layer_params - shapes.expert_layer_params) * _narrow(served, shapes.ffn / replica.tp)
    slice_width = shapes.expert_ffn / expert_slices(replica)
    experts = shapes.expert_layer_params * _narrow(served, slice_width)
    return dense * scale / product_rate(served), experts * scale / expert_product_rate(served)


def _narrow(served: ServedModel, width: Array) -> Array:
    """Factor on products of a slice of ``width``: 1 + half/width, tiles and waves left empty."""
    return 1.0 + served.rates.width_half / xp.maximum(width, 1.0)


@once
def head_token_s(served: ServedModel) -> Array:
    """Products of the head for one token of many, on one GPU."""
    return 2.0 * served.shapes.head_params / product_rate(served)


@once
def decode_attention_s(served: ServedModel) -> Array:
    """Time of one query that meets one cached token, in all layers."""
    shapes = served.shapes
    rate = wide_best(served.hw) * served.rates.decode_attention_share
    return 4.0 * shapes.decode_width * shapes.layers / rate


@once
def prefill_attention_s(served: ServedModel) -> Array:
    """Time of one prompt token that meets one of those before it, in all layers; half of them, causal."""
    rate = wide_best(served.hw) * _share(served)
    return 2.0 * served.shapes.attention_width * served.shapes.layers * served.engine.attention / rate


@once
def small_token_s(served: ServedModel) -> Array:
    """Small kernels of one token in all layers, on each GPU of its tensor group: ``small_share`` of what a
    forward pass of training moves, as inference fuses otherwise. Tensors of the hidden width are whole on
    every rank."""
    shapes, compute, tp = served.shapes, served.calibration.compute, served.replica.tp
    routed = shapes.active_experts * shapes.moe_layers / shapes.layers
    eight_bit = served.number_format.products not in WIDE
    size = shapes.layers * small_kernel_bytes(shapes, compute, tp, routed, eight_bit) / tp
    return served.rates.small_share * size / (served.hw.hbm_bytes_per_s * compute.hbm_share)


@once
def packed_dense_token_s(served: ServedModel) -> Array:
    """Dense products of one token in a full step of prompts."""
    full = xp.full_like(served.replica.tp, served.engine.chunk_tokens)
    return _layer_token_s(served)[0] * (filling_tokens(served, full) / full)


@once
def packed_token_s(served: ServedModel) -> Array:
    """Products of one token in a full step of prompts."""
    full = xp.full_like(served.replica.tp, served.engine.chunk_tokens)
    return layer_products_s(served, xp.ones_like(full), full, filling_tokens(served, full))
