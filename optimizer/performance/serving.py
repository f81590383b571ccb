"""One replica of a served model: what fits, how long a decode step and a prefill take.

Arguments broadcast; bytes are per GPU unless said otherwise, times are seconds. A replica is
tp × pp × dp GPUs; dp ranks (attention data parallelism) share the experts but not the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TypeVar

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, number, smooth_max
from optimizer.performance.calibration import Calibration
from optimizer.performance.constants import Engine, ServingRates
from optimizer.performance.hardware import GIB, Hardware
from optimizer.performance.shapes import Shapes, experts_touched, seen_context
from optimizer.performance.speculation import Speculation

T = TypeVar("T")
INT8 = "int8"
REFERENCE_BALANCE = 794.5e12 / 3.35e12


@dataclass(frozen=True, slots=True)
class Format:
    """Number formats of a served model: of dense weights, experts and cache, and of the products."""

    dense: str
    experts: str
    kv_bytes: Array
    products: str


@dataclass(frozen=True, slots=True)
class Replica:
    """Degrees of one model copy, one entry a case; ``ep`` of the tensor ranks hold whole experts."""

    tp: Array
    pp: Array
    dp: Array
    ep: Array = field(default_factory=lambda: number(1.0))

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

    What does not depend on the load is worked out once (``once``). ``memory_share``: of the card that the
    engine is told to take, its usual share where None.
    """

    shapes: Shapes
    number_format: Format
    replica: Replica
    hw: Hardware
    calibration: Calibration
    engine_class: str | None = None
    speculation: Speculation | None = None
    memory_share: float | None = None

    @cached_property
    def engine(self) -> Engine:
        """The engine's factors; the default class where none is named."""
        return self.calibration.engines[self.engine_class or self.calibration.default_engine]

    @cached_property
    def rates(self) -> ServingRates:
        """The serving constants."""
        return self.calibration.serving

    @cached_property
    def product_best(self) -> Array:
        """The best measured rate of the products' format, or of 16 bit where the GPU lacks it, FLOP/s."""
        if self.number_format.products == INT8:
            return self.rates.int8_factor * wide_best(self.hw)
        own = self.hw.gemm[self.number_format.products]
        return xp.where(own > 0, own, wide_best(self.hw))


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
    shared = xp.minimum(served.replica.tp, served.shapes.cache_groups)
    return served.shapes.kv_elements * served.number_format.kv_bytes / (served.replica.pp * shared)


@once
def cache_tokens(served: ServedModel) -> Array:
    """Tokens that the replica can cache; 0 or less where the weights leave no room.

    cache share·(memory share·memory − workspace − weights) / bytes per token: vLLM takes a share of the card
    and fills it [blis], TensorRT-LLM a share of what the weights leave [trt].
    """
    engine = served.engine
    share = engine.memory_share if served.memory_share is None else served.memory_share
    room = share * served.hw.memory_bytes - served.rates.workspace_gib * GIB
    left = engine.cache_share * (room - weight_bytes_per_gpu(served))
    return left / cache_bytes_per_token(served) * served.replica.dp


def concurrency(served: ServedModel, input_tokens: Array, output_tokens: Array) -> Array:
    """Sequences that the cache holds, seen through windows: at their mean length, input + output/2, or at
    what the engine sets aside for an answer when it starts (``kept_output``)."""
    held = seen_context(served.shapes, input_tokens + served.engine.kept_output * output_tokens)
    fits_one = cache_tokens(served) >= seen_context(served.shapes, input_tokens + output_tokens)
    return xp.where(fits_one, xp.maximum(cache_tokens(served) / held, 1.0), 0.0)


def decode_step(served: ServedModel, batch: Array, context: Array) -> DecodeStep:
    """A step of ``batch`` sequences at mean ``context`` tokens.

    With speculation the time for each token kept: the step that verifies all drafted tokens and the drafts,
    over the tokens that it yields.
    """
    speculation = served.speculation
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
    """A step in which each sequence asks for ``queries`` tokens.

    Roofline of bytes and products (p-norm), bookkeeping of sequences partly beside it, then launches and
    all-reduces. Pipelined replicas pass pp batches in turn, so that a sequence meets the whole model at
    batch/pp. Drafted tokens of a sequence read its cache once.
    """
    rates, replica = served.rates, served.replica
    here = xp.maximum(batch / replica.pp, 1.0)
    mine = xp.maximum(here / replica.dp, 1.0)
    weights = _weight_read_s(served, here * queries)
    seen = mine * seen_context(served.shapes, context)
    cache = seen * _cached_token_read_s(served)
    compute = _decode_products_s(served, here * queries / replica.dp, seen * queries)
    start, moved = _reduce_s(served, mine * queries)
    overhead = _step_overhead_s(served)
    busy = smooth_max(weights + cache, compute, rates.roofline_norm) * served.engine.busy
    host = rates.sequence_s * served.engine.sequence * here * served.engine.overhead
    busy = smooth_max(busy, host, rates.host_norm)
    total = (busy + start + moved + overhead) * slowdown(served)
    return DecodeStep(total, weights, cache, compute, start + moved, overhead)


@once
def slowdown(served: ServedModel) -> Array:
    """Factor of the vendor's software and of virtualisation on every time."""
    return served.hw.serving_slowdown * (1.0 + served.hw.vm_slowdown)


@once
def _step_overhead_s(served: ServedModel) -> Array:
    return launch_s(served) + (served.replica.pp - 1.0) * served.rates.pipeline_hop_s


@once
def _cached_token_read_s(served: ServedModel) -> Array:
    """Time of reading one cached token in all layers."""
    rate = served.hw.hbm_bytes_per_s * served.rates.hbm_share_kv
    return cache_bytes_per_token(served) * served.replica.pp / rate


def _decode_products_s(served: ServedModel, tokens: Array, keys: Array) -> Array:
    """Products of a step of ``tokens`` tokens a rank that see ``keys`` cached tokens in all."""
    tokens = xp.maximum(tokens, 1.0 / served.replica.dp)
    filled = filling_tokens(served, tokens)
    others = _head_token_s(served) * filled + _decode_attention_s(served) * keys
    return (_layer_products_s(served, tokens, tokens, filled) + others) / served.replica.tp


@once
def _head_token_s(served: ServedModel) -> Array:
    return 2.0 * served.shapes.head_params / product_rate(served)


@once
def _decode_attention_s(served: ServedModel) -> Array:
    """Time of one query that meets one cached token, in all layers."""
    shapes = served.shapes
    rate = wide_best(served.hw) * served.rates.decode_attention_share
    return 4.0 * shapes.decode_width * shapes.layers / rate


@once
def product_rate(served: ServedModel) -> Array:
    """FLOP/s of products of many tokens: a share of the best measured rate of the format."""
    return served.product_best * served.rates.product_share * _quantised(served)


def _layer_products_s(served: ServedModel, tokens: Array, together: Array, filled: Array) -> Array:
    """Products of ``tokens`` tokens in all layers, as one GPU would do them; ``together`` share a step and
    take as long as ``filled`` (``filling_tokens``).

    Dense weights meet all tokens of a step, an expert its own: n·k of them over the experts touched.
    """
    shapes = served.shapes
    dense, experts = _layer_token_s(served)
    if not xp.any(shapes.experts):
        return dense * (filled / together) * tokens
    gathered = together * served.replica.dp
    touched = experts_touched(shapes, gathered) / xp.maximum(shapes.active_experts, 1.0)
    unfilled = filling_tokens(served, gathered, xp.maximum(touched, 1.0)) / gathered
    return (dense * (filled / together) + experts * unfilled) * tokens


@once
def _layer_token_s(served: ServedModel) -> tuple[Array, Array]:
    """Dense and expert products of one token of many in all layers, on one GPU."""
    shapes, replica = served.shapes, served.replica
    scale = 2.0 * shapes.layers / product_rate(served)
    dense = (shapes.layer_params - shapes.expert_layer_params) * _narrow(served, shapes.ffn / replica.tp)
    split = replica.tp / xp.minimum(replica.ep, replica.tp)
    experts = shapes.expert_layer_params * _narrow(served, shapes.expert_ffn / split)
    return dense * scale, experts / served.rates.moe_share * scale


def _narrow(served: ServedModel, width: Array) -> Array:
    """Factor on products of a slice of ``width``: 1 + half/width, tiles and waves left empty."""
    return 1.0 + served.rates.width_half / xp.maximum(width, 1.0)


def filling_tokens(served: ServedModel, tokens: Array, groups: Array | float = 1.0) -> Array:
    """Tokens whose products take as long as those of ``tokens`` that leave tiles empty: √(n·(n + half)).

    ``half`` grows with the ``groups`` that the tokens are spread over.
    """
    return xp.sqrt(tokens * (tokens + _tokens_half(served) * groups))


@once
def _tokens_half(served: ServedModel) -> Array:
    """Tokens that leave half of a unit empty; they grow with its balance of FLOPs (the best measured) over
    bytes/s, here over that of an H100 in BF16."""
    balance = served.product_best / served.hw.hbm_bytes_per_s / REFERENCE_BALANCE
    return served.rates.tokens_half * balance


@once
def launch_s(served: ServedModel) -> Array:
    """Host time, launches and small kernels of one step, and the starts of expert dispatch."""
    shapes, rates = served.shapes, served.rates
    dispatch = rates.moe_dispatch_s * xp.log2(served.replica.tp * served.replica.dp)
    moe = shapes.moe_layers * (rates.moe_layer_s + dispatch)
    return (shapes.layers * rates.layer_s + moe + rates.step_s) * served.engine.overhead


def prefill(served: ServedModel, input_tokens: Array) -> Prefill:
    """First pass over ``input_tokens``: 2·N·n + 2·n²·width·L FLOPs (causal), or the weights' read time.

    The engine works in pieces of ``chunk_tokens``, each of which reads the weights and is launched. What a
    prompt takes from decoding is counted in full steps: prompts share them.
    """
    rates, replica, chunk = served.rates, served.replica, served.engine.chunk_tokens
    attended = input_tokens * seen_context(served.shapes, input_tokens)
    rest = _head_token_s(served) + attended * _prefill_attention_s(served)
    factor = served.engine.prefill / replica.tp
    piece = xp.minimum(input_tokens, chunk)
    pieces = input_tokens / piece
    alone = _layer_products_s(served, input_tokens, piece, filling_tokens(served, piece))
    packed = (_packed_token_s(served) * input_tokens + rest) * factor
    read = _weight_read_s(served, piece) * pieces
    start, moved = _reduce_s(served, input_tokens)
    launched = (start + launch_s(served)) * pieces
    slow = slowdown(served)
    latency = smooth_max((alone + rest) * factor, read, rates.roofline_norm) + moved + launched
    return Prefill(latency=latency * slow, work=(packed + moved) * slow / (replica.pp * replica.dp))


@once
def _prefill_attention_s(served: ServedModel) -> Array:
    """Time of one prompt token that meets one of those before it, in all layers; half of them, causal."""
    rate = wide_best(served.hw) * served.rates.product_share
    return 2.0 * served.shapes.attention_width * served.shapes.layers * served.engine.attention / rate


@once
def _packed_token_s(served: ServedModel) -> Array:
    """Products of one token in a full step of prompts."""
    full = xp.full_like(served.replica.tp, served.engine.chunk_tokens)
    return _layer_products_s(served, xp.ones_like(full), full, filling_tokens(served, full))


def _weight_read_s(served: ServedModel, tokens: Array) -> Array:
    dense, experts = _whole_read_s(served)
    if not xp.any(served.shapes.experts):
        return dense + xp.zeros_like(tokens)
    return dense + experts * experts_touched(served.shapes, tokens)


@once
def _whole_read_s(served: ServedModel) -> tuple[Array, Array]:
    """Time of reading the dense weights on each GPU, and one routed expert of every layer."""
    shapes, replica, form = served.shapes, served.replica, served.number_format
    dense, experts = weight_bytes(served)
    lookup = (shapes.embedding_params - shapes.head_params) * served.rates.embedding_bytes
    table, rate = served.rates.read_share, served.hw.hbm_bytes_per_s * served.rates.hbm_share_weights
    one = experts / xp.maximum(shapes.experts, 1.0) / (replica.tp * replica.dp * table[form.experts])
    return (dense - lookup) / replica.tp / table[form.dense] / rate, one / rate


def _reduce_s(served: ServedModel, tokens: Array) -> tuple[Array, Array]:
    """Starts and bytes of two all-reduces a layer of tokens·h·2 bytes over tp ranks, and the bytes of
    dispatch and combine between dp ranks: 4·h for each other rank that has an expert of a token."""
    start, moved = _reduce_token_s(served)
    return start, moved * tokens


@once
def _reduce_token_s(served: ServedModel) -> tuple[Array, Array]:
    tp, dp, hw, shapes = served.replica.tp, served.replica.dp, served.hw, served.shapes
    rate = hw.link_raw_bytes_per_s * served.rates.reduce_share
    times = 2.0 * shapes.layers
    moved = times * (2.0 * (tp - 1.0) / tp * 2.0) * shapes.hidden / rate
    if xp.any(dp > 1.0):
        others = (dp - 1.0) * (1.0 - xp.power(1.0 - 1.0 / dp, shapes.active_experts))
        moved = moved + shapes.moe_layers * 4.0 * shapes.hidden * others / rate
    return times * hw.reduce_start_s * xp.log2(tp), moved


def wide_best(hw: Hardware) -> Array:
    """The best measured rate of 16-bit products, FLOP/s."""
    return xp.maximum(hw.gemm["bf16"], hw.gemm["fp16"])


def _quantised(served: ServedModel) -> Array:
    return number(served.rates.quantised_compute.get(served.number_format.dense, 1.0))
