"""A served model on hardware: formats, parallel degrees, weights and cache of one replica.

Arguments broadcast; bytes are per GPU unless stated otherwise. A replica is tp × pp × dp GPUs; dp ranks
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
    """Speculative decoding, one entry per case.

    ``drafted``: tokens k that a step drafts; ``acceptance``: probability a in [0, 1] that a drafted token is
    accepted if those before it were; ``draft_share``: time of one drafted token relative to a plain step
    (about 1/L and the head for a multi-token prediction layer; by size for a small model).
    """

    drafted: Array
    acceptance: Array
    draft_share: Array

    @property
    def tokens_per_step(self) -> Array:
        """Expected tokens per step, the accepted ones and one of its own:

          (1 − a^(k+1))/(1 − a)

        Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, eq. 1.
        """
        chance = xp.minimum(self.acceptance, 1.0 - 1e-9)
        return (1.0 - xp.power(chance, self.drafted + 1.0)) / (1.0 - chance)


@dataclass(frozen=True, slots=True)
class Format:
    """Number formats of a served model: of dense weights, experts, cache, and products.

    ``expert_bytes``: bytes of an expert's weight if the checkpoint states it; None: those of the format.
    ``wide_params``: dense weights beside embeddings that the checkpoint keeps in 16 bits.
    """

    dense: str
    experts: str
    kv_bytes: Array
    products: str
    expert_bytes: float | None = None
    wide_params: float = 0.0


@dataclass(frozen=True, slots=True)
class Replica:
    """Parallel degrees of one replica, one entry per case; each of ``ep`` groups of its ranks holds whole
    experts.
    """

    tp: Array
    pp: Array
    dp: Array
    ep: Array = field(default_factory=lambda: number(1.0))

    @property
    def gpus(self) -> Array:
        """GPUs of the replica."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class ServedModel:
    """Everything that prefill and decode need of a model on a replica on its hardware.

    What does not depend on the load is computed once (``once``).

    - ``memory_share``: share of the card that the engine takes; None: its usual share. ``memory_told``,
      ``sequences_told``: configured share, and configured limit of sequences in flight per rank; 0 if not
      configured.
    - ``inside`` 1: clients run in the engine's own process.
    - ``early_prompts``, ``early_layer_s``: factor on prompts, and additional time per layer of a decode step,
      in the first releases that supported such a model. ``buffered`` 0: releases without buffers of recurrent
      states.
    - ``beams``: sequences of a beam search: a request decodes as many answers behind one prompt.
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
        """The engine's constants; those of the default class if none is named."""
        return self.calibration.engines[self.engine_class or self.calibration.default_engine]

    @cached_property
    def rates(self) -> ServingRates:
        """The serving constants."""
        return self.calibration.serving

    @cached_property
    def product_best(self) -> Array:
        """Best measured rate of the products' format, or of 16 bits if the GPU lacks it, in FLOP/s.

        It is lower if the engine's kernels use no instructions of the specific GPU.
        """
        own = self.hw.gemm[self.number_format.products]
        best = xp.where(own > 0, own, wide_best(self.hw))
        return best * self.hw.generic_kernel_share if self.engine.generic_kernels else best


def expert_slices(replica: Replica) -> Array:
    """Ranks over which an expert is sliced: tensor and attention ranks share the experts, and each of ``ep``
    groups holds whole ones.
    """
    ranks = replica.tp * replica.dp
    return ranks / xp.minimum(replica.ep, ranks)


RANKS_RESERVED = 8.0  # with more attention ranks than a node has GPUs, users set the share themselves
WIDE = frozenset({"bf16", "fp16"})


def once(work: Callable[[ServedModel], T]) -> Callable[[ServedModel], T]:
    """Caches the result of ``work`` with the served model, as it does not depend on the load."""
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
    """Bytes of the dense and of the routed experts' weights of the whole model; embeddings stay in 16
    bits.
    """
    return stored_bytes(served.shapes, served.number_format, served.rates)


def stored_bytes(shapes: Shapes, form: Format, rates: ServingRates) -> tuple[Array, Array]:
    """The same for a model in a format, independent of a replica."""
    dense, experts = rates.weight_bytes[form.dense], form.expert_bytes
    experts = rates.weight_bytes[form.experts] if experts is None else experts
    wide = shapes.embedding_params + form.wide_params
    return wide * max(dense, rates.embedding_bytes) + (
        shapes.dense_params - wide
    ) * dense, shapes.expert_params * experts


@once
def weight_bytes_per_gpu(served: ServedModel) -> Array:
    """Weights per GPU: dense ones over tp·pp GPUs, experts over all."""
    dense, experts = weight_bytes(served)
    return dense / (served.replica.tp * served.replica.pp) + experts / served.replica.gpus


@once
def cache_bytes_per_token(served: ServedModel) -> Array:
    """Bytes of a cached token on each GPU of its tensor group.

    Heads are divided up to the number of key-value heads; a latent cache (MLA) is copied to every rank.
    """
    kept = served.shapes.kv_elements * served.number_format.kv_bytes
    return (kept + served.shapes.index_bytes) / (served.replica.pp * _cache_shares(served))


@once
def _cache_shares(served: ServedModel) -> Array:
    """Ranks of a tensor group over which a cached token is divided."""
    return xp.minimum(served.replica.tp, served.shapes.cache_groups)


def read_bytes(served: ServedModel, context: Array) -> Array:
    """Bytes that a decode step reads and writes for a sequence of ``context`` tokens, on each GPU that works
    on it.

    That is the cache as far as an index selects it, the index, and recurrent states in both directions.
    """
    shapes = served.shapes
    seen = read_context(shapes, context) * shapes.kv_elements * served.number_format.kv_bytes
    shared = (seen + context * shapes.index_bytes) / _cache_shares(served)
    return shared + 2.0 * shapes.state_bytes / served.replica.tp


@once
def cache_tokens(served: ServedModel) -> Array:
    """Tokens that the replica can cache; at most 0 if the weights leave no room.

      cache share·(memory share·memory − workspace − weights) / bytes per token

    Recurrent states take part of it (``concurrency``). vLLM takes a share of the card and fills it [blis];
    TensorRT-LLM takes a share of what the weights leave [trt]. The workspace includes sampling for all
    possible sequences in flight: their logits, sorted, with sums. SGLang reserves more for each attention
    rank unless its share is configured.
    """
    return cache_room(served) / cache_bytes_per_token(served) * served.replica.dp


@once
def cache_room(served: ServedModel) -> Array:
    """Bytes of each GPU for keys, values and recurrent states."""
    return served.engine.cache_share * (_engine_bytes(served) - _set_aside(served))


def holds_one(served: ServedModel, tokens: Array, margin: Array) -> Mask:
    """Whether a rank can hold one sequence of ``tokens`` tokens if all other memory is ``margin`` times the
    prediction.

    The engine then gets the largest share of the card that it can be given.
    """
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
    """Bytes of each GPU besides the cache: weights, workspace, sampling."""
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
    """Sequences that the cache holds, windows included if the engine caches no more than these.

    A sequence needs its prompt and half of its answer, or what the engine reserves at its start
    (``kept_output``). ``met_output_tokens``: mean answer of those in flight, which exceeds ``output_tokens``
    if lengths vary. The beams of a request share its prompt.
    """
    kept = served.beams * served.engine.kept_output * met_output_tokens
    at_most = _sequences(served, input_tokens + kept)
    fits_one = _sequences(served, input_tokens + served.beams * output_tokens) >= 1.0
    return xp.where(fits_one, xp.maximum(at_most * served.replica.dp, 1.0), 0.0)


def _sequences(served: ServedModel, context: Array) -> Array:
    """Sequences of ``context`` tokens that fit a rank: in one pool, or in the fuller of two if the engine
    keeps recurrent states separately.
    """
    room, share = cache_room(served), served.engine.state_share
    together = room / held_bytes(served, context)
    if share == 0.0:
        return together
    cached = (1.0 - share) * room / _cached_bytes(served, context)
    apart = xp.minimum(cached, share * room / xp.maximum(_states_held(served), 1.0))
    return xp.where(served.shapes.state_layers > 0.0, apart, together)


def held_bytes(served: ServedModel, context: Array) -> Array:
    """Bytes that a sequence of ``context`` tokens holds on each GPU of its rank: cache and states."""
    return _cached_bytes(served, context) + _states_held(served)


def _cached_bytes(served: ServedModel, context: Array) -> Array:
    cached = cached_context(served.shapes, context)
    whole = cached + served.engine.windows_whole * (context - cached)
    return whole * cache_bytes_per_token(served)


@once
def _states_held(served: ServedModel) -> Array:
    """Bytes of a sequence's recurrent states on each GPU of its tensor group; heads are divided."""
    state = served.shapes.state_bytes / (served.replica.pp * served.replica.tp)
    engine, buffers = served.engine, served.hw.state_buffers * served.buffered
    return (engine.state_copies + engine.state_buffers * buffers) * state


@once
def sequences_most(served: ServedModel) -> Array:
    """The engine's limit of sequences per rank if latency does not matter."""
    engine = served.engine
    usual = engine.batch_most * xp.where(served.hw.large > 0.0, 1.0, engine.batch_share_small)
    fewer = xp.minimum(usual, engine.batch_most_compressed / served.replica.dp)
    usual = xp.where(served.shapes.compressed > 0.0, fewer, usual)
    return xp.where(served.sequences_told > 0.0, served.sequences_told, usual)


@once
def slowdown(served: ServedModel) -> Array:
    """Factor on every time: vendor software, engines with third-party kernels on the GPU, and
    virtualization.
    """
    foreign = served.hw.non_native_slowdown if served.engine.non_native_backend else number(1.0)
    return served.hw.serving_slowdown * foreign * (1.0 + served.hw.vm_slowdown)


@once
def expert_reach(served: ServedModel) -> Array:
    """Relative efficiency of an expert's reads, products and launches."""
    reach = number(1.0) if served.number_format.experts in WIDE else served.hw.narrow_experts
    return reach + xp.zeros_like(served.replica.tp)


def wide_best(hw: Hardware) -> Array:
    """The best measured rate of 16-bit products, FLOP/s."""
    return xp.maximum(hw.gemm["bf16"], hw.gemm["fp16"])
