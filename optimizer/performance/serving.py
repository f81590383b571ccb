"""One replica of a served model: what fits, how long a decode step and a prefill take.

Arguments broadcast; bytes are per GPU unless said otherwise, times are seconds. A replica is
tp × pp × dp GPUs; dp ranks (attention data parallelism) share the experts but not the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TypeVar

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, number, smooth_max
from optimizer.performance.calibration import Calibration, Engine, ServingRates
from optimizer.performance.hardware import GIB, Hardware
from optimizer.performance.shapes import Shapes, seen_context

T = TypeVar("T")
REFERENCE_BALANCE = 989e12 / 3.35e12


@dataclass(frozen=True, slots=True)
class Format:
    """Number formats of a served model: of dense weights, experts and cache, and of the products."""

    dense: str
    experts: str
    kv_bytes: Array
    products: str


@dataclass(frozen=True, slots=True)
class Replica:
    """Degrees of one model copy, one entry a case."""

    tp: Array
    pp: Array
    dp: Array

    @property
    def gpus(self) -> Array:
        """GPUs of the copy."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step by part; ``total`` is the time between tokens without prefills."""

    total: Array
    weights: Array
    cache: Array
    compute: Array
    links: Array
    overhead: Array


@dataclass(frozen=True, slots=True)
class Prefill:
    """First tokens of one prompt: ``latency`` on an idle replica, ``work`` it takes from decoding."""

    latency: Array
    work: Array


@dataclass(frozen=True)
class ServedModel:
    """Everything that prefill and decode need of a model on a replica on its hardware.

    What does not depend on the load is worked out once (``once``).
    """

    shapes: Shapes
    number_format: Format
    replica: Replica
    hw: Hardware
    calibration: Calibration
    engine_class: str | None = None

    @cached_property
    def engine(self) -> Engine:
        """The engine's factors; the default class where none is named."""
        return self.calibration.engines[self.engine_class or self.calibration.default_engine]

    @cached_property
    def rates(self) -> ServingRates:
        """The serving constants."""
        return self.calibration.serving

    @cached_property
    def product_peak(self) -> Array:
        """Dense rate of the products' format, FLOP/s; formats without units of their own widen to 16 bit."""
        wide = np.maximum(self.hw.peak["bf16"], self.hw.peak["fp16"])
        if self.number_format.products in {"bf16", "fp16"}:
            return wide
        own = self.hw.peak[self.number_format.products]
        return np.where(own > 0, own, wide)


def once(work: Callable[[ServedModel], T]) -> Callable[[ServedModel], T]:
    """``work`` on a served model, remembered with it: loads are searched, what they meet stays the same."""
    name = f"_{work.__name__}"

    @wraps(work)
    def remembered(served: ServedModel) -> T:
        known = served.__dict__
        if name not in known:
            known[name] = work(served)
        found: T = known[name]
        return found

    return remembered


@once
def weight_bytes(served: ServedModel) -> tuple[Array, Array]:
    """Dense and routed-expert weights of the whole model, bytes; embeddings stay in 16 bit."""
    shapes, table = served.shapes, served.rates.weight_bytes
    dense, experts = table[served.number_format.dense], table[served.number_format.experts]
    embedding = shapes.embedding_params * max(dense, served.rates.embedding_bytes)
    inner = (shapes.dense_params - shapes.embedding_params) * dense
    return embedding + inner, shapes.expert_params * experts


@once
def weight_bytes_per_gpu(served: ServedModel) -> Array:
    """Weights of one GPU: dense over tp·pp, experts over all."""
    dense, experts = weight_bytes(served)
    return dense / (served.replica.tp * served.replica.pp) + experts / served.replica.gpus


@once
def cache_bytes_per_token(served: ServedModel) -> Array:
    """Bytes that a cached token takes on each GPU of its tensor group.

    Heads share out up to the count of key-value heads; a latent cache (MLA) is copied to every rank.
    """
    shared = np.minimum(served.replica.tp, served.shapes.cache_groups)
    return served.shapes.kv_elements * served.number_format.kv_bytes / (served.replica.pp * shared)


@once
def cache_tokens(served: ServedModel) -> Array:
    """Tokens that the replica can cache; 0 or less where the weights leave no room.

    (share·memory − workspace − weights) / bytes per token, as vLLM counts blocks [blis].
    """
    room = served.rates.memory_share * served.hw.memory_bytes - served.rates.workspace_gib * GIB
    return (room - weight_bytes_per_gpu(served)) / cache_bytes_per_token(served) * served.replica.dp


def concurrency(served: ServedModel, input_tokens: Array, output_tokens: Array) -> Array:
    """Sequences that the cache holds, seen through windows: at their mean length, input + output/2, or at
    what the engine sets aside for an answer when it starts (``kept_output``)."""
    held = seen_context(served.shapes, input_tokens + served.engine.kept_output * output_tokens)
    fits_one = cache_tokens(served) >= seen_context(served.shapes, input_tokens + output_tokens)
    return np.where(fits_one, np.maximum(cache_tokens(served) / held, 1.0), 0.0)


def decode_step(served: ServedModel, batch: Array, context: Array) -> DecodeStep:
    """A step of ``batch`` sequences at mean ``context`` tokens.

    Roofline of bytes and products (p-norm), bookkeeping of sequences partly beside it, then launches and
    all-reduces. Pipelined replicas pass
    pp batches in turn, so that a sequence meets the whole model at batch/pp.
    """
    shapes, rates, replica, hw = served.shapes, served.rates, served.replica, served.hw
    here = np.maximum(batch / replica.pp, 1.0)
    mine = np.maximum(here / replica.dp, 1.0)
    weights = _weight_read_s(served, here)
    cached = seen_context(shapes, context) * cache_bytes_per_token(served) * replica.pp
    cache = mine * cached / (hw.hbm_bytes_per_s * rates.hbm_share_kv)
    compute = _decode_products_s(served, here / replica.dp, mine * seen_context(shapes, context))
    start, moved = _reduce_s(served, mine)
    overhead = launch_s(served) + (replica.pp - 1.0) * rates.pipeline_hop_s
    slow = hw.serving_slowdown * (1.0 + hw.vm_slowdown)
    busy = smooth_max(weights + cache, compute, rates.roofline_norm) * served.engine.busy
    host = rates.sequence_s * here * served.engine.overhead
    busy = smooth_max(busy, host, rates.host_norm)
    return DecodeStep(
        (busy + start + moved + overhead) * slow, weights, cache, compute, start + moved, overhead
    )


def _decode_products_s(served: ServedModel, tokens: Array, keys: Array) -> Array:
    """Products of a step of ``tokens`` tokens a rank that see ``keys`` cached tokens in all."""
    shapes, rates, hw = served.shapes, served.rates, served.hw
    filled = filling_tokens(served, np.maximum(tokens, 1.0 / served.replica.dp))
    linear = 2.0 * shapes.active_matrix_params * filled / (served.product_peak * product_share(served))
    wide = np.maximum(hw.peak["bf16"], hw.peak["fp16"]) * rates.decode_attention_share
    attention = 4.0 * keys * shapes.decode_width * shapes.layers / wide
    return (linear + attention) / served.replica.tp


@once
def product_share(served: ServedModel) -> Array:
    """Share of peak that products of many tokens reach; grouped products of experts reach less."""
    rates = served.rates
    share = np.where(served.shapes.experts > 0, rates.prefill_share_moe, rates.prefill_share)
    return share * _quantised(served)


def filling_tokens(served: ServedModel, tokens: Array) -> Array:
    """Tokens whose products take as long as those of ``tokens`` that leave tiles empty: √(n·(n + half)).

    ``half`` grows with the unit's balance of FLOPs over bytes/s, here over that of an H100 in BF16.
    """
    shapes, rates = served.shapes, served.rates
    half = np.where(shapes.experts > 0, rates.tokens_half_moe, rates.tokens_half)
    balance = served.product_peak / served.hw.hbm_bytes_per_s / REFERENCE_BALANCE
    return np.sqrt(tokens * (tokens + half * balance))


@once
def launch_s(served: ServedModel) -> Array:
    """Host time, launches and small kernels of one step, and the starts of expert dispatch."""
    shapes, rates = served.shapes, served.rates
    dispatch = rates.moe_dispatch_s * np.log2(served.replica.tp * served.replica.dp)
    moe = shapes.moe_layers * (rates.moe_layer_s + dispatch)
    return (shapes.layers * rates.layer_s + moe + rates.step_s) * served.engine.overhead


def prefill(served: ServedModel, input_tokens: Array) -> Prefill:
    """First pass over ``input_tokens``: 2·N·n + 2·n²·width·L FLOPs (causal), or the weights' read time."""
    shapes, rates, replica, hw = served.shapes, served.rates, served.replica, served.hw
    linear = 2.0 * input_tokens * shapes.layers * shapes.layer_params + 2.0 * shapes.head_params
    seen = seen_context(shapes, input_tokens)
    quadratic = 2.0 * input_tokens * seen * shapes.attention_width * shapes.layers
    wide = np.maximum(hw.peak["bf16"], hw.peak["fp16"]) * rates.prefill_share
    rate = served.product_peak * product_share(served)
    alone = linear * filling_tokens(served, input_tokens) / input_tokens
    factor = served.engine.prefill / replica.tp
    compute = (alone / rate + quadratic / wide) * factor
    read = _weight_read_s(served, input_tokens)
    start, moved = _reduce_s(served, input_tokens)
    slow = hw.serving_slowdown * (1.0 + hw.vm_slowdown)
    latency = (smooth_max(compute, read, rates.roofline_norm) + start + moved + launch_s(served)) * slow
    packed = (linear / rate + quadratic / wide) * factor
    return Prefill(latency=latency, work=(packed + moved) * slow / (replica.pp * replica.dp))


def experts_touched(shapes: Shapes, tokens: Array) -> Array:
    """Experts a layer that ``tokens`` tokens reach: E·(1 − (1 − k/E)^n), even routing."""
    experts = np.maximum(shapes.experts, 1.0)
    missed = np.power(1.0 - np.minimum(shapes.active_experts / experts, 1.0), tokens)
    return experts * (1.0 - missed)


def _weight_read_s(served: ServedModel, tokens: Array) -> Array:
    dense, experts = weight_bytes(served)
    lookup = served.shapes.embedding_params - served.shapes.head_params
    read = (dense - lookup * served.rates.embedding_bytes) / served.replica.tp
    touched = experts_touched(served.shapes, tokens) / np.maximum(served.shapes.experts, 1.0)
    table, form = served.rates.read_share, served.number_format
    read = read / table[form.dense]
    read = read + experts * touched / (served.replica.tp * served.replica.dp * table[form.experts])
    return read / (served.hw.hbm_bytes_per_s * served.rates.hbm_share_weights)


def _reduce_s(served: ServedModel, tokens: Array) -> tuple[Array, Array]:
    """Two all-reduces a layer of tokens·h·2 bytes over tp ranks: their starts, their bytes; none for one."""
    tp, hw, rates = served.replica.tp, served.hw, served.rates
    size = 2.0 * tokens * served.shapes.hidden
    moved = 2.0 * (tp - 1.0) / tp * size / (hw.link_raw_bytes_per_s * rates.reduce_share)
    times = 2.0 * served.shapes.layers
    return times * hw.reduce_start_s * np.log2(tp) + np.zeros_like(moved), times * moved


def _quantised(served: ServedModel) -> Array:
    return number(served.rates.quantised_compute.get(served.number_format.dense, 1.0))
