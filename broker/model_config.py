"""Model shapes from Hugging Face ``config.json`` files, whatever a family calls its fields.

What a file leaves out has the default of that family's configuration class (tied embeddings, every how many
layers attention sees everything). Families whose layers differ in size, or that keep a state instead of
keys and values, have no shape here and are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker.domain.model_shape import Attention, ModelShape

NESTED = ("text_config", "llm_config", "language_config")
GROUPS = ("attn_config", "ffn_config")
REFUSED = {
    "hybrid_override_pattern": "a state-space hybrid",
    "mamba_d_state": "a state-space hybrid",
    "state_size": "a state-space model",
    "block_configs": "a model whose blocks differ in size",
}
UNGATED = frozenset(
    [
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "phi",
        "RefinedWeb",
        "RefinedWebModel",
        "starcoder2",
    ]
)
TIED = frozenset(
    [
        "bloom",
        "cohere",
        "cohere2",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "mpt",
        "opt",
        "RefinedWeb",
        "RefinedWebModel",
        "starcoder2",
    ]
)
FULL_EVERY = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gpt_oss": 2,
    "llama4": 4,
    "llama4_text": 4,
    "qwen3_next": 4,
}


@dataclass(frozen=True, slots=True)
class _Layers:
    """How many layers keep a cache, and how many of these see the whole context."""

    caching: int
    full: int


def model_from_hf_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a ``config.json`` describes; a nested language model is followed.

    Raises ValueError that names the field which is missing, not a number, or of a family without a shape.
    """
    text = _language_model(config)
    for field_name, kind in REFUSED.items():
        if text.get(field_name):
            raise ValueError(f"{field_name}: {kind} has no shape of equal transformer layers")
    if text.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder: only decoders have a shape here")
    shape = _sizes(text, name)
    layers = _layers(text, shape.layers, shape.sliding_window)
    counted = replace(shape, full_attn_layers=layers.full).with_counted_params()
    kept = counted.kv_elements_per_token // counted.layers * layers.caching
    return replace(counted, kv_elements_per_token=kept)


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's fields, groups of fields (DBRX, MPT) beside the others."""
    nested: Mapping[str, Any] = next((config[key] for key in NESTED if config.get(key)), {})
    text = {**config, **nested}
    text["model_type"] = nested.get("model_type") or config.get("model_type") or ""
    for group in GROUPS:
        inner = text.get(group) or {}
        text = {**{key: value for key, value in inner.items() if key != "model_type"}, **text}
    return text


def _sizes(text: Mapping[str, Any], name: str) -> ModelShape:
    family = str(text["model_type"])
    layers = _needed(text, "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    hidden = _needed(text, "hidden_size", "d_model", "n_embd")
    heads = _needed(text, "num_attention_heads", "n_heads", "n_head", "num_heads")
    kv_heads, mla = _kv_heads(text, heads), bool(text.get("kv_lora_rank"))
    ffn = _count(text, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size") or 4 * hidden
    experts = _experts(text, layers, ffn)
    return ModelShape(
        name=name,
        attention=_attention(mla, heads, kv_heads),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(text, "head_dim", "attention_head_dim", "kv_channels") or hidden // heads,
        ffn=_count(text, "intermediate_size_mlp") or ffn,
        vocab=_needed(text, "vocab_size", "padded_vocab_size"),
        total_params=0.0,
        active_params=0.0,
        kv_elements_per_token=0,
        mlp_mats=2 if family in UNGATED else 3,
        tie_embeddings=bool(text.get("tie_word_embeddings", family in TIED)),
        context=_count(text, "max_position_embeddings", "n_positions", "max_seq_len") or 131072,
        sliding_window=_window(text),
        q_lora_rank=_count(text, "q_lora_rank"),
        kv_lora_rank=_count(text, "kv_lora_rank"),
        qk_rope_dim=_count(text, "qk_rope_head_dim") if mla else 0,
        qk_nope_dim=_count(text, "qk_nope_head_dim") if mla else 0,
        v_head_dim=_count(text, "v_head_dim") if mla else 0,
        index_topk=_count(text, "index_topk"),
        source="config.json",
        **experts,
    )


def _experts(text: Mapping[str, Any], layers: int, ffn: int) -> dict[str, int]:
    """Experts and the layers that have them; none for a dense model."""
    count = _count(text, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    if count <= 1:
        return {}
    active = _needed(
        text, "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts", "experts_per_token"
    )
    width = _count(text, "moe_intermediate_size", "expert_ffn_hidden_size") or ffn
    sparse = _sparse_layers(text, layers)
    every = _count(text, "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval") or 1
    leading = _count(text, "first_k_dense_replace", "moe_layer_start_index")
    if sparse is not None:
        leading, every = layers - sparse, 1
    return {
        "experts": count,
        "active_experts": active,
        "shared_experts": _shared_experts(text, width),
        "moe_ffn": width,
        "first_k_dense": leading,
        "moe_every": every,
    }


def _sparse_layers(text: Mapping[str, Any], layers: int) -> int | None:
    """Layers with experts where the file lists them one by one; None where a rule says it."""
    listed = text.get("moe_layer_freq")
    if isinstance(listed, list):
        return sum(1 for has_experts in listed if has_experts)
    named = text.get("mlp_layer_types")
    if isinstance(named, list):
        return sum(1 for kind in named if kind != "dense")
    dense = text.get("mlp_only_layers")
    return layers - len(dense) if dense else None


def _shared_experts(text: Mapping[str, Any], width: int) -> int:
    """Experts that every token meets, in widths of a routed one; Llama 4 has one and does not say so."""
    count = _count(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if count:
        return count
    wide = _count(text, "shared_expert_intermediate_size", "shared_intermediate_size")
    if wide:
        return max(1, round(wide / width))
    return 1 if str(text["model_type"]).startswith("llama4") else 0


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    named = _count(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    if text.get("multi_query_attention"):
        return _needed(text, "multi_query_group_num")
    return named or heads


def _attention(mla: bool, heads: int, kv_heads: int) -> Attention:
    if mla:
        return Attention.MLA
    if kv_heads == 1:
        return Attention.MQA
    return Attention.MHA if kv_heads == heads else Attention.GQA


def _window(text: Mapping[str, Any]) -> int | None:
    if text.get("use_sliding_window") is False:
        return None
    return _count(text, "sliding_window", "sliding_window_size", "attention_chunk_size") or None


def _layers(text: Mapping[str, Any], layers: int, window: int | None) -> _Layers:
    """Layers that cache and layers that see all: listed one by one, by a rule, or all alike."""
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        cached = [kind for kind in kinds if "attention" in str(kind) and "linear" not in str(kind)]
        whole = sum(1 for kind in cached if window is None or str(kind) == "full_attention")
        return _Layers(len(cached), whole)
    rotary = text.get("no_rope_layers")
    if window and isinstance(rotary, list) and rotary:
        return _Layers(layers, sum(1 for has_rope in rotary if not has_rope))
    family = str(text["model_type"])
    every = _count(text, "sliding_window_pattern", "full_attention_interval") or FULL_EVERY.get(family, 0)
    if family == "qwen3_next":
        return _Layers(layers // every, layers // every)
    if window is None:
        return _Layers(layers, layers)
    if text.get("use_sliding_window"):
        return _Layers(layers, min(layers, _count(text, "max_window_layers")))
    return _Layers(layers, layers // every if every else 0)


def _needed(text: Mapping[str, Any], *names: str) -> int:
    found = _count(text, *names)
    if not found:
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ValueError(f"{names[0]}{others} is missing")
    return found


def _count(text: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that holds a number above 0 (the largest of a list); 0 without one."""
    for field_name in names:
        value = text.get(field_name)
        if isinstance(value, list) and value:
            value = max(value)
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float):
            raise ValueError(f"{field_name}: {value!r} is not a number")
        if value < 0:
            raise ValueError(f"{field_name}: {value!r} is below 0")
        if value:
            return int(value)
    return 0
