"""Weights that a quantized checkpoint keeps in 16 bits, from the modules that its configuration leaves out.

Lists name modules one by one (``model.layers.0.mlp.down_proj``), as a word (``self_attn``), as a pattern
(``*self_attn*``) or as an expression (``re:.*self_attn.*``). Expressions are read for their words alone and
never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from broker.domain.workloads.model_shape import Attention, ModelShape

LISTS = ("ignore", "modules_to_not_convert", "exclude_modules", "exclude", "ignored_layers")
MOST_NAMES = 100_000
_LAYER = re.compile(r"\blayers?\W+(\d+)\b")
_WORD = re.compile(r"[a-z0-9_]+")
_SMALL = frozenset(
    {
        "gate",
        "router",
        "norm",
        "conv1d",
        "in_proj_ba",
        "shared_expert_gate",
        "experts",
        "vision_model",
        "visual",
    }
)
"""Modules of hardly any parameters, those of other models, and experts, which no known list leaves out."""
_ATTENTION = frozenset({"self_attn", "attn", "attention", "self_attention", "linear_attn", "qkv_proj"})
_LATENT = frozenset({"q_a_proj", "q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj"})
_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_FEED_FORWARD = frozenset({"mlp", "feed_forward", "ffn"})
_MATRICES = frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3"})
_SHARED = frozenset({"shared_expert", "shared_experts"})


class WideModules:
    """Shares of attention and of feed-forwards that are left out, by layer; None: in every layer."""

    def __init__(self, told: Mapping[str, Any], shape: ModelShape) -> None:
        self._shape = shape
        self._attention: dict[int | None, float] = {}
        self._ffn: dict[int | None, float] = {}
        for name in self._names(told):
            self._note(name)

    @property
    def attention_share(self) -> float:
        """The share of all layers whose attention stays in 16 bits."""
        return self._layers_of(self._attention) / max(self._shape.layers, 1)

    @property
    def params(self) -> float:
        """Parameters that stay in 16 bits, beside embeddings and routed experts."""
        shape = self._shape
        each = shape.all_attention_params / max(shape.caching_layers, 1)
        plain = shape.layers - shape.moe_layers if shape.dense_layers is None else shape.dense_layers
        ffn = shape.mlp_mats * shape.hidden * shape.ffn if plain else 0
        layers = self._layers_of(self._ffn) * (plain / max(shape.layers, 1))
        return self._layers_of(self._attention) * each + layers * ffn

    def _names(self, told: Mapping[str, Any]) -> Iterable[str]:
        listed: list[Any] = next((told[name] for name in LISTS if isinstance(told.get(name), list)), [])
        return (str(name).lower() for name in listed[:MOST_NAMES])

    def _note(self, name: str) -> None:
        text = name.replace("\\", "")
        words = set(_WORD.findall(text.removeprefix("re:")))
        found = _LAYER.search(text)
        layer = int(found[1]) if found is not None else None
        if words & _SMALL or words & _SHARED:
            return
        parts = words & (_ATTENTION | _LATENT | _PROJECTIONS), words & (_FEED_FORWARD | _MATRICES)
        if found is not None and not any(parts):
            parts = {"attn"}, {"mlp"}
        if parts[0]:
            self._attention[layer] = self._attention.get(layer, 0.0) + self._attention_part(parts[0])
        if parts[1]:
            is_part = bool(parts[1] & _MATRICES)
            self._ffn[layer] = self._ffn.get(layer, 0.0) + (1.0 / self._shape.mlp_mats if is_part else 1.0)

    def _attention_part(self, words: set[str]) -> float:
        """The share of a layer's attention that a module has."""
        named = words & _PROJECTIONS
        if not named or self._shape.attention is Attention.MLA:
            return 1.0
        queries, keys = self._shape.heads, self._shape.kv_heads
        whole = 2.0 * (queries + keys)
        return sum((queries if one in ("q_proj", "o_proj") else keys) / whole for one in named)

    def _layers_of(self, shares: Mapping[int | None, float]) -> float:
        """Layers' worth of modules, each layer once at most."""
        everywhere = min(1.0, shares.get(None, 0.0))
        layers = self._shape.layers
        more = (share for layer, share in shares.items() if layer is not None and layer < layers)
        return everywhere * layers + sum(min(1.0 - everywhere, share) for share in more)
