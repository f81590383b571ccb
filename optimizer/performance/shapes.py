"""Model shapes as arrays: parameters, FLOPs and bytes of a transformer.

All arrays of one object have the same shape: ``(R,)`` for R models; a single model has plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from broker.domain.workloads.model_shape import Attention, ModelShape
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Places, as_array, number
from optimizer.performance.constants.groups import Compute


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of one or more models; parameters are counts.

    - ``ffn``: feed-forward width seen by a token; ``expert_ffn``: of one expert (dense models: the same).
    - ``layer_params``: matrix parameters used by one token in an average layer (active experts only);
      ``expert_layer_params``: those in routed experts. ``params`` = ``dense_params`` + ``expert_params``.
    - ``expert_hidden``: width of the tokens that enter routed experts.
    - ``attention_width``: mean of the query-key and value widths over all heads; ``head_width`` of one head;
      ``decode_width``: the same against the cache (latent width for MLA, absorbed form).
    - ``kv_elements``: cached numbers per token; ``cache_groups``: ranks that can divide them without copies.
    - ``window``: tokens seen by windowed layers, which have the shares ``windowed_cache`` of the cached
      numbers and ``windowed_width`` of the attention.
    - ``latent_layers``: layers with a latent cache (MLA). ``sparse_layers``: layers with an index of
      ``index_bytes`` per cached token, which selects ``chosen`` tokens in the share ``chosen_share`` of the
      cache.
    - ``compressed`` 1: a cached vector represents several tokens.
    - ``mixed_layers``: layers with several copies of the hidden state (hyper-connections).
    - ``state_layers``: layers with recurrent states, ``state_bytes`` per sequence in total; ``state_width``:
      width of the values in them, averaged over all layers.
    """

    layers: Array
    hidden: Array
    ffn: Array
    expert_ffn: Array
    expert_hidden: Array
    vocab: Array
    heads: Array
    gated: Array
    attention_width: Array
    head_width: Array
    kv_width: Array
    layer_params: Array
    expert_layer_params: Array
    head_params: Array
    params: Array
    dense_params: Array
    expert_params: Array
    embedding_params: Array
    moe_layers: Array
    experts: Array
    active_experts: Array
    decode_width: Array
    kv_elements: Array
    cache_groups: Array
    window: Array
    windowed_cache: Array
    windowed_width: Array
    latent_layers: Array
    sparse_layers: Array
    index_bytes: Array
    chosen: Array
    chosen_share: Array
    compressed: Array
    mixed_layers: Array
    state_layers: Array
    state_bytes: Array
    state_width: Array

    @property
    def active_matrix_params(self) -> Array:
        """Matrix parameters used by one token: layers and output head."""
        return self.layers * self.layer_params + self.head_params

    def take(self, indices: Places) -> Shapes:
        """The models at ``indices``, in that order."""
        return Shapes(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})


@lru_cache(maxsize=1024)
def build_shape(model: ModelShape) -> Shapes:
    """The shape of one model, in plain numbers."""
    entry = _entry(model)
    return Shapes(**{field.name: number(entry[field.name]) for field in fields(Shapes)})


def stack_shapes(models: Sequence[ModelShape]) -> Shapes:
    """Arrays ``(R,)`` of R models."""
    rows = [_entry(model) for model in models]
    return Shapes(**{field.name: as_array([row[field.name] for row in rows]) for field in fields(Shapes)})


def _entry(model: ModelShape) -> dict[str, float]:
    head = float(model.vocab * model.hidden)
    embedding = head * (1 if model.tie_embeddings else 2)
    routed = min(model.moe_layers * model.experts * float(model.expert_params), 0.99 * model.total_params)
    active = max(model.active_params - (0.0 if model.tie_embeddings else head) - head, 0.0)
    routed_active = min(model.moe_layers * model.active_experts * float(model.expert_params), 0.99 * active)
    return {
        "layers": float(model.layers),
        "hidden": float(model.hidden),
        "ffn": float(_ffn_width(model)),
        "expert_ffn": float(model.moe_ffn if model.is_moe else model.ffn),
        "expert_hidden": float(model.moe_hidden or model.hidden),
        "vocab": float(model.vocab),
        "heads": float(model.heads),
        "gated": float(model.mlp_mats >= 3),
        "layer_params": active / model.layers,
        "expert_layer_params": routed_active / model.layers,
        "head_params": head,
        "params": model.total_params,
        "dense_params": model.total_params - routed,
        "expert_params": routed,
        "embedding_params": embedding,
        "moe_layers": float(model.moe_layers),
        "experts": float(model.experts),
        "active_experts": float(model.active_experts),
        "compressed": float(model.cache_compression > 1.0),
        "mixed_layers": float(model.layers if model.residual_streams > 1 else 0),
        "state_layers": float(model.states.count),
        "state_bytes": float(model.states.count * model.states.state_bytes),
        "state_width": model.states.count * model.states.width / model.layers,
        **_attention(model),
        **_cache(model),
    }


def _ffn_width(model: ModelShape) -> int:
    """Feed-forward width seen by a token: active and shared experts together."""
    if not model.is_moe:
        return model.ffn
    return model.moe_ffn * (model.active_experts + model.shared_experts)


def _attention(model: ModelShape) -> dict[str, float]:
    """Attention widths, averaged over all layers."""
    scores, values = model.head_widths
    wide, narrow = sum(model.head_widths), sum(model.windowed_head_widths)
    windowed = model.windowed_layers
    halves = (model.caching_layers - windowed) * wide + windowed * narrow
    width = model.heads * halves / 2 / model.layers / model.cache_compression
    latent = (model.kv_lora_rank + model.qk_rope_dim / 2) * model.heads * model.caching_layers / model.layers
    return {
        "decode_width": latent if model.attention is Attention.MLA else width,
        "attention_width": width,
        "head_width": (scores + values) / 2,
        "windowed_width": windowed * narrow / halves,
        "latent_layers": float(model.caching_layers if model.attention is Attention.MLA else 0),
    }


def _cache(model: ModelShape) -> dict[str, float]:
    """What is cached of a token and a sequence, and how much of it is read."""
    full, narrow = model.kept_elements
    windowed = model.windowed_layers
    in_windows = windowed * narrow
    index = model.index
    return {
        "kv_width": model.kv_elements_per_token / max(1, model.layers),
        "kv_elements": float(model.kv_elements_per_token),
        "cache_groups": 1.0 if model.attention is Attention.MLA else float(model.kv_heads),
        "window": float(model.sliding_window or math.inf),
        "windowed_cache": in_windows / max((model.caching_layers - windowed) * full + in_windows, 1),
        "sparse_layers": float(index.layers),
        "index_bytes": index.bytes_per_token,
        "chosen": float(index.tokens or math.inf),
        "chosen_share": index.share if index.tokens else 0.0,
    }


def cached_context(shapes: Shapes, context: Array) -> Array:
    """Mean number of cached tokens of ``context`` tokens, since windows cap part of them."""
    return context - shapes.windowed_cache * xp.maximum(context - shapes.window, 0.0)


def read_context(shapes: Shapes, context: Array) -> Array:
    """Mean number of cached tokens that a query reads: the cached ones without those that an index skips."""
    left_out = shapes.chosen_share * xp.maximum(context - shapes.chosen, 0.0)
    return cached_context(shapes, context) - left_out


def seen_context(shapes: Shapes, context: Array) -> Array:
    """Mean number of tokens that attention multiplies at ``context`` tokens; windows and indices cap part of
    them.
    """
    windowed = shapes.windowed_width * xp.maximum(context - shapes.window, 0.0)
    return context - windowed - shapes.chosen_share * xp.maximum(context - shapes.chosen, 0.0)


def experts_touched(shapes: Shapes, tokens: Array) -> Array:
    """Experts per layer that ``tokens`` tokens reach with even routing: E·(1 − (1 − k/E)^n)."""
    if not xp.any(shapes.experts):
        return xp.zeros_like(tokens)
    experts = xp.maximum(shapes.experts, 1.0)
    missed = xp.power(1.0 - xp.minimum(shapes.active_experts / experts, 1.0), tokens)
    return experts * (1.0 - missed)


def small_kernel_bytes(
    shapes: Shapes, compute: Compute, whole: Array | float, routed: Array, eight_bit: bool
) -> Array:
    """Bytes per token, average layer and slice of small kernels in a forward pass.

    These are norms, residuals, activation functions, casts and permutation. Tensors of the hidden width count
    ``whole`` times, once for each rank that works on all of them. ``routed``: copies of a token that go to
    experts. ``eight_bit``: products take 8 or 4 bits, with one cast per token and per copy.
    """
    hidden = compute.elementwise_bytes_hidden * shapes.hidden
    copies = shapes.expert_hidden * routed
    if eight_bit:
        hidden = hidden + compute.fp8_cast_bytes_hidden * (shapes.hidden + copies)
    sliced = compute.elementwise_bytes_ffn * shapes.ffn + compute.moe_permute_bytes_hidden * copies
    size: Array = whole * hidden + sliced + compute.state_bytes_width * shapes.state_width
    return size
