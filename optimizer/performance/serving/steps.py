"""One replica of a served model: time of a decode step and of a prefill.

Arguments broadcast; times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, number, smooth_max
from optimizer.performance.serving.links import shared_token_s, traffic_s
from optimizer.performance.serving.products import (
    PACKED,
    decode_attention_s,
    filling_tokens,
    head_token_s,
    layer_products_s,
    packed_dense_token_s,
    packed_token_s,
    prefill_attention_s,
    small_token_s,
)
from optimizer.performance.serving.served_model import (
    ServedModel,
    expert_reach,
    once,
    read_bytes,
    slowdown,
    weight_bytes,
)
from optimizer.performance.shapes import experts_touched, seen_context


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step by part; ``total`` is the inter-token latency without prefills."""

    total: Array
    weights: Array
    cache: Array
    compute: Array
    links: Array
    overhead: Array


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill of one prompt.

    ``latency``: on an idle replica; ``work``: taken from decoding if every attention rank has a prompt;
    ``rank_wait``: additional time of the other ranks if it is the only one.
    """

    latency: Array
    work: Array
    rank_wait: Array


def decode_step(served: ServedModel, batch: Array, context: Array) -> DecodeStep:
    """A step of ``batch`` requests at mean ``context`` tokens, each with as many sequences as beams.

    With speculative decoding it is the time per accepted token: the verification step and the drafts, over
    the expected tokens per step.
    """
    batch, speculation = batch * served.beams, served.speculation
    if speculation is None:
        return _step(served, batch, context, number(1.0))
    verify = _step(served, batch, context, 1.0 + speculation.drafted)
    plain = _step(served, batch, context, number(1.0)).total
    draft = speculation.drafted * speculation.draft_share * plain
    kept = speculation.tokens_per_step
    return DecodeStep(
        (verify.total + draft) / kept,
        verify.weights / kept,
        verify.cache / kept,
        verify.compute / kept,
        verify.links / kept,
        (verify.overhead + draft) / kept,
    )


def _step(served: ServedModel, batch: Array, context: Array, queries: Array) -> DecodeStep:
    """A step in which each sequence decodes ``queries`` tokens.

    It is the roofline of bytes and products (p-norm), partly overlapped with the host's bookkeeping of
    sequences, plus launches and all-reduces. Pipelined replicas pass pp batches in turn, so a sequence sees
    the whole model at batch/pp. The drafted tokens of a sequence read its cache once.
    """
    rates, replica = served.rates, served.replica
    here = xp.maximum(batch / replica.pp, 1.0)
    mine = xp.maximum(here / replica.dp, 1.0)
    weights = _weight_read_s(served, here * queries)
    small = small_token_s(served) * mine * queries
    overhead, byte, sequence = _same_each_step_s(served)
    seen = mine * seen_context(served.shapes, context)
    cache = mine * read_bytes(served, context) * byte
    compute = _decode_products_s(served, here * queries / replica.dp, seen * queries)
    start, moved = traffic_s(served, mine * queries)
    busy = (
        smooth_max(weights + cache + small, compute, rates.roofline_norm)
        * served.engine.decode_roofline_factor
    )
    busy = smooth_max(busy, sequence * mine, rates.host_norm)
    total = (busy + start + moved + overhead) * slowdown(served)
    total = total + served.shapes.layers * served.early_layer_s
    return DecodeStep(total, weights, cache, compute, start + moved, overhead)


@once
def _same_each_step_s(served: ServedModel) -> tuple[Array, Array, Array]:
    """Launches and hand-overs of a step; time to read a byte of cache; host time of a sequence.

    The host time covers sampling, bookkeeping, and handing a token to a client in the same process.
    """
    engine, rates = served.engine, served.rates
    overhead = launch_s(served) + (served.replica.pp - 1.0) * rates.pipeline_hop_s
    byte = 1.0 / (served.hw.hbm_bytes_per_s * rates.hbm_share_kv)
    sequence = rates.sequence_s * engine.sequence * engine.overhead + engine.stream_s * served.inside
    return overhead, byte, sequence


def _decode_products_s(served: ServedModel, tokens: Array, keys: Array) -> Array:
    """Products of a step with ``tokens`` tokens per rank that attend to ``keys`` cached tokens in total."""
    tokens = xp.maximum(tokens, 1.0 / served.replica.dp)
    filled = filling_tokens(served, tokens)
    others = head_token_s(served) * filled + decode_attention_s(served) * keys
    return (layer_products_s(served, tokens, tokens, filled) + others) / served.replica.tp


@once
def launch_s(served: ServedModel) -> Array:
    """Host time, launches and small kernels of one step, and the starts of expert dispatch."""
    shapes, rates = served.shapes, served.rates
    dispatch = rates.moe_dispatch_s * xp.log2(xp.maximum(served.replica.ep, served.replica.dp))
    in_parts = xp.where(served.hw.fused_experts > 0.0, 1.0, served.engine.moe)
    kernels = rates.moe_layer_s * rates.moe_kernels.get(served.number_format.experts, 1.0) * in_parts
    moe = shapes.moe_layers * (kernels / expert_reach(served) + dispatch)
    layer = rates.layer_s + rates.quantise_layer_s.get(served.number_format.dense, 0.0)
    layers = shapes.layers * layer + shapes.latent_layers * rates.latent_layer_s
    layers = layers + shapes.sparse_layers * rates.indexer_layer_s + shapes.state_layers * rates.state_layer_s
    layers = layers + shapes.mixed_layers * rates.mixed_layer_s
    return (layers + moe + rates.step_s * served.engine.step) * served.engine.overhead


def prefill(served: ServedModel, input_tokens: Array) -> Prefill:
    """First pass over n = ``input_tokens`` tokens with N active parameters, width and L layers:

      2·N·n + 2·n²·width·L FLOPs (causal), or the time to read the weights

    The engine works in chunks of ``chunk_tokens``; each reads the weights and is launched. What a prompt
    takes from decoding is counted in full steps, which prompts share. Attention ranks step together: a lone
    prompt's experts are spread over all of them, everything else stays on its own rank.
    """
    rates, replica, chunk = served.rates, served.replica, served.engine.chunk_tokens
    attended = input_tokens * seen_context(served.shapes, input_tokens)
    rest = head_token_s(served) + attended * prefill_attention_s(served)
    factor = served.engine.prefill / replica.tp
    piece = xp.minimum(input_tokens, chunk)
    pieces = input_tokens / piece
    alone = layer_products_s(served, input_tokens, piece, filling_tokens(served, piece), lone=True)
    packed = (packed_token_s(served) * input_tokens + rest) * factor
    read = _weight_read_s(served, piece) * pieces
    start, moved = traffic_s(served, input_tokens)
    launched = (start + launch_s(served)) * pieces
    slow = slowdown(served) * served.early_prompts
    small = small_token_s(served) * input_tokens
    latency = smooth_max((alone + rest) * factor + small, read, rates.roofline_norm) + moved + launched
    shared = shared_token_s(served) * input_tokens + small
    own = (packed_dense_token_s(served) * input_tokens + rest) * factor + small
    return Prefill(
        latency=latency * slow,
        work=(packed + shared) * slow / (replica.pp * replica.dp),
        rank_wait=own * slow / replica.pp * (1.0 - 1.0 / replica.dp),
    )


def _weight_read_s(served: ServedModel, tokens: Array) -> Array:
    dense, experts = _whole_read_s(served)
    if not xp.any(served.shapes.experts):
        return dense + xp.zeros_like(tokens)
    return dense + experts * experts_touched(served.shapes, tokens)


@once
def _whole_read_s(served: ServedModel) -> tuple[Array, Array]:
    """Time to read the dense weights on each GPU, and one routed expert of every layer."""
    shapes, replica, form = served.shapes, served.replica, served.number_format
    dense, experts = weight_bytes(served)
    lookup = (shapes.embedding_params - shapes.head_params) * served.rates.embedding_bytes
    table = served.rates.read_share
    rate = served.hw.hbm_bytes_per_s * served.hw.hbm_reach * served.rates.hbm_share_weights
    one = experts / xp.maximum(shapes.experts, 1.0) / (replica.tp * replica.dp)
    whole = (dense - lookup) / replica.tp / _read_at(served, form.dense, rate * table[form.dense])
    return whole, one / _read_at(served, form.experts, rate * table[form.experts] * expert_reach(served))


def _read_at(served: ServedModel, number_format: str, bytes_per_s: Array) -> Array:
    """Bytes/s at which weights are read: the memory bandwidth, or the unpacking rate of packed weights if
    that is lower.
    """
    if number_format not in PACKED | {"int8"}:
        return bytes_per_s
    return xp.minimum(bytes_per_s, served.engine.unpacked_bytes_per_s)
