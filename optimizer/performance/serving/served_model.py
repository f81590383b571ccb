"""What is served, on what: formats, degrees, weights and cache of one replica.

Arguments broadcast; bytes are per GPU unless said otherwise. A replica is tp × pp × dp GPUs; dp ranks
(attention data parallelism) share the experts but not the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TypeVar

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask, number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.serving import Engine, ServingRates
from optimizer.performance.hardware.sku_arrays import GIB, Hardware
from optimizer.performance.shapes import Shapes, cached_context, read_context

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft and acceptance, one entry a case.

    ``drafted``: tokens k that a step drafts; ``acceptance``: chance a in [0, 1] that a drafted token is
    kept, given that those before it were; ``draft_share``: time of one drafted token over a plain step's
    (a multi-token prediction layer about 1/L and the head, a small model by its size).
    """

    drafted: Array
    acceptance: Array
    draft_share: Array

    @property
    def tokens_per_step(self) -> Array:
        """Tokens that a step yields on average, (1 − a^(k+1))/(1 − a): the kept ones and one of its own.

        Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, eq. 1.
        """
        chance = xp.minimum(self.acceptance, 1.0 - 1e-9)
        return (1.0 - xp.power(chance, self.drafted + 1.0)) / (1.0 - chance)


@dataclass(frozen=True, slots=True)
class Format:
    """Number formats of a served model: of dense weights, experts and cache, and of the products.

    ``expert_bytes``: of one weight of an expert, where a checkpoint says; None: as the format has it.
    """

    dense: str
    experts: str
    kv_bytes: Array
    products: str
    expert_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """Degrees of one model copy, one entry a case; ``ep`` groups of its ranks hold whole experts."""

    tp: Array
    pp: Array
    dp: Array
    ep: Array = field(default_factory=lambda: number(1.0))

    @property
    def gpus(self) -> Array:
        """GPUs of the copy."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class ServedModel:
    """Everything that prefill and decode need of a model on a replica on its hardware.

    What does not depend on the load is worked out once (``once``). ``memory_share``: of the card that the
    engine takes, its usual share where None. ``memory_told`` and ``sequences_told``: share, and sequences in
    flight on a rank at most, that it is told; 0 where it is not.
    ``inside``: 1 where clients run in the engine's own process. ``early_prompts``: factor on the prompts of
    a release that was among the first for such a model, ``early_layer_s``: what a layer of its decode steps
    takes more; ``buffered``: 0 in releases that keep no buffers of states. ``beams``: sequences that search
    for one answer: a request decodes as so many, each with an answer of its own behind the same prompt.
    """

    shapes: Shapes
    number_format: Format
    replica: Replica
    hw: Hardware
    calibration: Calibration
    engine_class: str | None = None
    speculation: Speculation | None = None
    memory_share: float | None = None
    inside: Array = field(default_factory=lambda: number(0.0))
    early_prompts: Array = field(default_factory=lambda: number(1.0))
    early_layer_s: Array = field(default_factory=lambda: number(0.0))
    buffered: Array = field(default_factory=lambda: number(1.0))
    memory_told: Array = field(default_factory=lambda: number(0.0))
    sequences_told: Array = field(default_factory=lambda: number(0.0))
    beams: Array = field(default_factory=lambda: number(1.0))

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
        """The best measured rate of the products' format, or of 16 bit where the GPU lacks it, FLOP/s; less
        where the engine's kernels use no instruction of the GPU's own."""
        own = self.hw.gemm[self.number_format.products]
        best = xp.where(own > 0, own, wide_best(self.hw))
        return best * self.hw.generic_kernel_share if self.engine.generic_kernels else best


def expert_slices(replica: Replica) -> Array:
    """Ranks that an expert is cut over: tensor and attention-parallel ranks share the experts, of which each
    of ``ep`` groups holds whole ones."""
    ranks = replica.tp * replica.dp
    return ranks / xp.minimum(replica.ep, ranks)


RANKS_RESERVED = 8.0  # beyond a node's worth of attention ranks, users set the share themselves
WIDE = frozenset({"bf16", "fp16"})


def once(work: Callable[[ServedModel], T]) -> Callable[[ServedModel], T]:
    """``work`` on a served model, remembered with it: loads are searched, what they meet stays the same."""
    name = f"_{work.__name__}"

    @wraps(work)
    def remembered(served: ServedModel) -> T:
        known = served.__dict__
        try:
            found: T = known[name]
        except KeyError:
            found = known[name] = work(served)
        return found

    return remembered


@once
def weight_bytes(served: ServedModel) -> tuple[Array, Array]:
    """Dense and routed-expert weights of the whole model, bytes; embeddings stay in 16 bit."""
    return stored_bytes(served.shapes, served.number_format, served.rates)


def stored_bytes(shapes: Shapes, form: Format, rates: ServingRates) -> tuple[Array, Array]:
    """The same of a model in a format, wherever it is served."""
    dense, experts = rates.weight_bytes[form.dense], form.expert_bytes
    experts = rates.weight_bytes[form.experts] if experts is None else experts
    embedding = shapes.embedding_params * max(dense, rates.embedding_bytes)
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
    kept = served.shapes.kv_elements * served.number_format.kv_bytes
    return (kept + served.shapes.index_bytes) / (served.replica.pp * _cache_shares(served))


@once
def _cache_shares(served: ServedModel) -> Array:
    """Ranks of a tensor group that share a cached token."""
    return xp.minimum(served.replica.tp, served.shapes.cache_groups)


def read_bytes(served: ServedModel, context: Array) -> Array:
    """Bytes that a decode step reads, and writes, of a sequence of ``context`` tokens on each GPU that works
    on it: its cache as far as an index lets through, the index, and its states there and back."""
    shapes = served.shapes
    seen = read_context(shapes, context) * shapes.kv_elements * served.number_format.kv_bytes
    shared = (seen + context * shapes.index_bytes) / _cache_shares(served)
    return shared + 2.0 * shapes.state_bytes / served.replica.tp


@once
def cache_tokens(served: ServedModel) -> Array:
    """Tokens that the replica can cache; 0 or less where the weights leave no room.

    cache share·(memory share·memory − workspace − weights) / bytes per token; states of sequences take theirs
    of it (``concurrency``). vLLM takes a share of the card
    and fills it [blis], TensorRT-LLM a share of what the weights leave [trt]. A workspace has room for
    sampling all sequences that the engine may have in flight: their logits, sorted, with sums; SGLang sets
    more aside for each attention rank, unless it is told its share.
    """
    return cache_room(served) / cache_bytes_per_token(served) * served.replica.dp


@once
def cache_room(served: ServedModel) -> Array:
    """Bytes of each GPU that hold keys, values and states."""
    return served.engine.cache_share * (_engine_bytes(served) - _set_aside(served))


def holds_one(served: ServedModel, tokens: Array, margin: float) -> Mask:
    """Whether a rank has room for one sequence of ``tokens`` where all that stands beside the cache takes
    ``margin`` times as much as is predicted, and the engine is then given the most of the card that it can
    be."""
    most = xp.maximum(_engine_bytes(served), served.rates.memory_share_most * served.hw.memory_bytes)
    room = most - margin * _set_aside(served)
    return served.engine.cache_share * room >= held_bytes(served, tokens)


@once
def _engine_bytes(served: ServedModel) -> Array:
    """Bytes of each GPU that the engine takes."""
    usual = served.engine.memory_share if served.memory_share is None else served.memory_share
    share = xp.where(served.memory_told > 0.0, served.memory_told, usual)
    return share * served.hw.memory_bytes


@once
def _set_aside(served: ServedModel) -> Array:
    """Bytes of each GPU beside the cache: weights, workspace, room for sampling."""
    engine = served.engine
    told = served.memory_told > 0.0
    sampling = engine.sampling_bytes * served.shapes.vocab * sequences_most(served)
    ranks = xp.where(served.replica.dp > 1.0, xp.minimum(served.replica.dp, RANKS_RESERVED), 0.0)
    ranks = xp.where(told, 0.0, ranks)
    workspace = (engine.workspace_gib + engine.rank_workspace_gib * ranks * served.hw.large) * GIB
    return workspace + sampling + weight_bytes_per_gpu(served)


def concurrency(
    served: ServedModel, input_tokens: Array, output_tokens: Array, met_output_tokens: Array
) -> Array:
    """Sequences that the cache holds, through windows where the engine caches no more: the prompt and half of
    the answer, or what the engine sets aside for one when it starts (``kept_output``).
    ``met_output_tokens``: mean answer of those in flight, as long as ``output_tokens`` or, where answers
    vary, longer. The beams of a request share its prompt."""
    kept = served.beams * served.engine.kept_output * met_output_tokens
    at_most = _sequences(served, input_tokens + kept)
    fits_one = _sequences(served, input_tokens + served.beams * output_tokens) >= 1.0
    return xp.where(fits_one, xp.maximum(at_most * served.replica.dp, 1.0), 0.0)


def _sequences(served: ServedModel, context: Array) -> Array:
    """Sequences of ``context`` tokens that a rank has room for: in one pool, or in two where the engine keeps
    states apart and the fuller one decides."""
    room, share = cache_room(served), served.engine.state_share
    together = room / held_bytes(served, context)
    if share == 0.0:
        return together
    cached = (1.0 - share) * room / _cached_bytes(served, context)
    apart = xp.minimum(cached, share * room / xp.maximum(_states_held(served), 1.0))
    return xp.where(served.shapes.state_layers > 0.0, apart, together)


def held_bytes(served: ServedModel, context: Array) -> Array:
    """Bytes that a sequence of ``context`` tokens holds on each GPU of its rank: cache, states."""
    return _cached_bytes(served, context) + _states_held(served)


def _cached_bytes(served: ServedModel, context: Array) -> Array:
    cached = cached_context(served.shapes, context)
    whole = cached + served.engine.windows_whole * (context - cached)
    return whole * cache_bytes_per_token(served)


@once
def _states_held(served: ServedModel) -> Array:
    """Bytes of the states that a sequence takes on each GPU of its tensor group: heads share out."""
    state = served.shapes.state_bytes / (served.replica.pp * served.replica.tp)
    engine, buffers = served.engine, served.hw.state_buffers * served.buffered
    return (engine.state_copies + engine.state_buffers * buffers) * state


@once
def sequences_most(served: ServedModel) -> Array:
    """Sequences that the engine takes on a rank at most, where latency does not matter."""
    engine = served.engine
    usual = engine.batch_most * xp.where(served.hw.large > 0.0, 1.0, engine.batch_share_small)
    fewer = xp.minimum(usual, engine.batch_most_compressed / served.replica.dp)
    usual = xp.where(served.shapes.compressed > 0.0, fewer, usual)
    return xp.where(served.sequences_told > 0.0, served.sequences_told, usual)


@once
def slowdown(served: ServedModel) -> Array:
    """Factor of the vendor's software, of engines that are guests on a GPU and of virtualisation on every
    time."""
    foreign = served.hw.non_native_slowdown if served.engine.non_native_backend else number(1.0)
    return served.hw.serving_slowdown * foreign * (1.0 + served.hw.vm_slowdown)


@once
def expert_reach(served: ServedModel) -> Array:
    """What an expert's reads, products and launches reach of those elsewhere."""
    reach = number(1.0) if served.number_format.experts in WIDE else served.hw.narrow_experts
    return reach + xp.zeros_like(served.replica.tp)


def wide_best(hw: Hardware) -> Array:
    """The best measured rate of 16-bit products, FLOP/s."""
    return xp.maximum(hw.gemm["bf16"], hw.gemm["fp16"])
