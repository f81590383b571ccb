"""Model shapes as arrays: parameters, FLOPs and bytes that a transformer asks for.

Every array has the same shape: ``(R,)`` for a stack of R rows; one model has plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from broker.domain.model_shape import Attention, ModelShape
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Places, as_array, number


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of one or more models; parameters are counts.

    ``ffn``: feed-forward width that a token meets, ``expert_ffn`` of one expert (dense models: the same).
    ``layer_params``: matrix parameters that one token meets in an average layer (active experts only),
    ``expert_layer_params`` of it in routed experts. ``params`` = ``dense_params`` + ``expert_params``.
    ``attention_width``: mean of the query·key and value widths over all heads, ``head_width`` of one;
    ``decode_width`` the same against the cache (latent width for MLA, absorbed form). ``kv_elements``: cached
    numbers per token; ``cache_groups``: ranks that can share them without copies. ``windowed_share``: share
    of caching layers that see ``window`` tokens only. ``latent_layers``: those with a latent cache (MLA),
    ``sparse_layers``: those with an index of the cache.
    """

    layers: Array
    hidden: Array
    ffn: Array
    expert_ffn: Array
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
    windowed_share: Array
    latent_layers: Array
    sparse_layers: Array

    @property
    def active_matrix_params(self) -> Array:
        """Matrix parameters that one token meets: layers and head."""
        return self.layers * self.layer_params + self.head_params

    def take(self, indices: Places) -> Shapes:
        """The models at ``indices``, in that order."""
        return Shapes(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})


@lru_cache(maxsize=1024)
def build_shape(model: ModelShape) -> Shapes:
    """Plain numbers of one model."""
    entry = _entry(model)
    return Shapes(**{field.name: number(entry[field.name]) for field in fields(Shapes)})


def stack_shapes(models: Sequence[ModelShape]) -> Shapes:
    """Arrays ``(R,)`` of R models."""
    rows = [_entry(model) for model in models]
    return Shapes(**{field.name: as_array([row[field.name] for row in rows]) for field in fields(Shapes)})


def _entry(model: ModelShape) -> dict[str, float]:
    head = float(model.vocab * model.hidden)
    embedding = head * (1 if model.tie_embeddings else 2)
    expert = float(model.mlp_mats * model.hidden * model.moe_ffn)
    moe_layers = _moe_layers(model)
    routed = min(moe_layers * model.experts * expert, 0.99 * model.total_params)
    active = max(model.active_params - (0.0 if model.tie_embeddings else head) - head, 0.0)
    routed_active = min(moe_layers * model.active_experts * expert, 0.99 * active)
    return {
        "layers": float(model.layers),
        "hidden": float(model.hidden),
        "ffn": float(_ffn_width(model)),
        "expert_ffn": float(model.moe_ffn if model.is_moe else model.ffn),
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
        "moe_layers": float(moe_layers),
        "experts": float(model.experts),
        "active_experts": float(model.active_experts),
        **_attention(model),
    }


def _moe_layers(model: ModelShape) -> int:
    return (model.layers - model.first_k_dense) // model.moe_every if model.is_moe else 0


def _ffn_width(model: ModelShape) -> int:
    """Width of the feed-forward that a token meets: active and shared experts side by side."""
    if not model.is_moe:
        return model.ffn
    return model.moe_ffn * (model.active_experts + model.shared_experts)


def _attention(model: ModelShape) -> dict[str, float]:
    mla = model.attention is Attention.MLA
    scores = model.qk_nope_dim + model.qk_rope_dim if mla else model.head_dim
    values = model.v_head_dim if mla else model.head_dim
    caching = _caching_layers(model)
    full = model.full_attn_layers if model.full_attn_layers is not None else caching
    windowed = 1.0 - min(full, caching) / caching if model.sliding_window else 0.0
    cached = model.kv_lora_rank + model.qk_rope_dim / 2 if mla else (scores + values) / 2
    return {
        "decode_width": model.heads * cached * caching / model.layers,
        "attention_width": model.heads * (scores + values) / 2 * caching / model.layers,
        "head_width": (scores + values) / 2,
        "kv_width": model.kv_elements_per_token / max(1, model.layers),
        "kv_elements": float(model.kv_elements_per_token),
        "cache_groups": 1.0 if mla else float(model.kv_heads),
        "window": float(model.sliding_window or math.inf),
        "windowed_share": windowed,
        "latent_layers": float(model.layers if mla else 0),
        "sparse_layers": float(model.layers if model.index_topk else 0),
    }


def _caching_layers(model: ModelShape) -> int:
    """Layers that keep a cache, told from the cached numbers per token; the others are linear."""
    if model.attention is Attention.MLA:
        per_layer = model.kv_lora_rank + model.qk_rope_dim
    else:
        per_layer = 2 * model.kv_heads * model.head_dim
    count = round(model.kv_elements_per_token / per_layer) if per_layer else model.layers
    return min(max(count, 1), model.layers)


def seen_context(shapes: Shapes, context: Array) -> Array:
    """Mean tokens that a layer attends to at ``context`` tokens: windows cap part of the layers."""
    windowed = xp.minimum(context, shapes.window)
    return (1 - shapes.windowed_share) * context + shapes.windowed_share * windowed


def experts_touched(shapes: Shapes, tokens: Array) -> Array:
    """Experts a layer that ``tokens`` tokens reach: E·(1 − (1 − k/E)^n), even routing."""
    if not xp.any(shapes.experts):
        return xp.zeros_like(tokens)
    experts = xp.maximum(shapes.experts, 1.0)
    missed = xp.power(1.0 - xp.minimum(shapes.active_experts / experts, 1.0), tokens)
    return experts * (1.0 - missed)
