"""Model shapes from Hugging Face ``config.json`` files, whose field names differ by model family.

A missing field has the default of the family's configuration class (for example tied embeddings, or how often
a layer has full attention). Layers with a state instead of a KV cache are read by ``mixers``. Families whose
layers have different sizes, or that have no attention, are not supported and are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker.domain.workloads.model_shape import Attention, CacheIndex, MixedWeights, ModelShape
from broker.models.fields import count, needed
from broker.models.mixers import Mixers, mixers_of
from broker.models.weight_formats import MXFP4_BYTES, PLANNED, format_of_config, format_of_method
from broker.models.wide_modules import WideModules

NESTED = ("text_config", "llm_config", "language_config")
GROUPS = ("attn_config", "ffn_config")
HIDDEN = ("hidden_size", "d_model", "n_embd")
USUAL_INDEX = 128
NO_WINDOW: dict[str, Any] = {"sliding_window": None, "full_attn_layers": None}
NARROW = frozenset({"fp8", "fp4", "int4"})
MOST_OF_IT = 0.5
REFUSED = {
    "state_size": "a state-space model without attention",
    "block_configs": "a model whose blocks differ in size",
    "num_mem_blocks": "a model whose attention blocks are shared by layers",
    "hidden_size_per_layer_input": "a model with embeddings of every layer",
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
        "nemotron_h",
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
        "gemma4",
        "gemma4_text",
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
}
GATED_ATTENTION = frozenset({"qwen3_next"})
KEY_SCALE_BYTES = 4


def model_from_hf_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a ``config.json`` describes, also if the language model is nested in it.

    Raises ValueError, naming the field, if it is missing, is not a number or shows an unsupported family.
    """
    text = _language_model(config)
    for field_name, kind in REFUSED.items():
        if text.get(field_name):
            raise ValueError(f"{field_name}: {kind} is not supported; all layers must have the same shape")
    if text.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder: only decoder-only models are supported")
    mixers = mixers_of(text, needed(text, *HIDDEN))
    if not mixers.attention:
        raise ValueError("layer_types: a model without attention layers is not supported")
    shape = _with_format(_sizes(text, name, mixers), config, text)
    if text.get("compress_ratios"):
        return _compressed(text, shape)
    return shape.with_counted_params()


def _with_format(shape: ModelShape, config: Mapping[str, Any], text: Mapping[str, Any]) -> ModelShape:
    """The shape with the number format of its weights, from ``quantization_config`` or ``torch_dtype``."""
    told = quantization_of(config)
    if told is None:
        kinds = (source.get(key) for source in (text, config) for key in ("torch_dtype", "dtype"))
        kind = next((str(kind) for kind in kinds if kind), "")
        found = format_of_method(kind.removeprefix("torch.").partition("_")[0])
        return replace(shape, published_precision=found if found in ("fp16", "fp8") else "bf16")
    stored = format_of_config(told)
    precision = stored.planned
    if precision is None:
        raise ValueError(f"quantization_config: {stored.name} is no format of a plan ({', '.join(PLANNED)})")
    if text.get("expert_dtype") == "fp4":
        return replace(shape, published_precision="fp4", packed=MixedWeights("fp4", MXFP4_BYTES, precision))
    return replace(
        shape, published_precision=precision, packed=_mixed(shape, told, stored.bytes_each, precision)
    )


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ``quantization_config`` of a ``config.json``, also of a nested language model; None without one."""
    holders = (config, *(config[key] for key in NESTED if isinstance(config.get(key), Mapping)))
    names = ("quantization_config", "compression_config")
    found = (holder.get(name) for holder in reversed(holders) for name in names)
    return next((one for one in found if isinstance(one, Mapping)), None)


def _mixed(
    shape: ModelShape, told: Mapping[str, Any], bytes_each: float, precision: str
) -> MixedWeights | None:
    """The parts of the weights that are left in 16 bits; None where all linear layers are quantized."""
    if precision not in NARROW:
        return None
    wide = WideModules(told, shape)
    if shape.is_moe and wide.attention_share > MOST_OF_IT:
        return MixedWeights(precision, bytes_each, "bf16")
    if not wide.params:
        return None
    return MixedWeights(precision, bytes_each, precision, wide.params)


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's fields as one flat mapping; nested groups of fields (DBRX, MPT) are merged in."""
    nested: Mapping[str, Any] = next((config[key] for key in NESTED if config.get(key)), {})
    text = {**config, **nested}
    text["model_type"] = nested.get("model_type") or config.get("model_type") or ""
    for group in GROUPS:
        inner = text.get(group) or {}
        text = {**{key: value for key, value in inner.items() if key != "model_type"}, **text}
    return text


def _sizes(text: Mapping[str, Any], name: str, mixers: Mixers) -> ModelShape:
    family = str(text["model_type"])
    hidden = needed(text, *HIDDEN)
    heads = needed(text, "num_attention_heads", "n_heads", "n_head", "num_heads")
    kv_heads, mla = _kv_heads(text, heads), bool(text.get("kv_lora_rank"))
    ffn = count(text, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size") or 4 * hidden
    shape = ModelShape(
        name=name,
        attention=_attention(mla, heads, kv_heads),
        layers=mixers.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=count(text, "head_dim", "attention_head_dim", "kv_channels") or hidden // heads,
        ffn=count(text, "intermediate_size_mlp") or ffn,
        vocab=needed(text, "vocab_size", "padded_vocab_size"),
        total_params=0.0,
        active_params=0.0,
        kv_elements_per_token=0,
        mlp_mats=2 if family in UNGATED else 3,
        dense_layers=mixers.dense,
        tie_embeddings=bool(text.get("tie_word_embeddings", family in TIED)),
        context=_context(text),
        attention_layers=mixers.attention if mixers.states.count else None,
        q_lora_rank=count(text, "q_lora_rank"),
        kv_lora_rank=count(text, "kv_lora_rank"),
        qk_rope_dim=count(text, "qk_rope_head_dim") if mla else 0,
        qk_nope_dim=count(text, "qk_nope_head_dim") if mla else 0,
        v_head_dim=count(text, "v_head_dim"),
        states=mixers.states,
        index=_index(text, mixers.attention),
        residual_streams=count(text, "hc_mult") or 1,
        source="config.json",
    )
    shape = replace(shape, **_experts(text, mixers, ffn))
    return replace(_gated(text, shape), **_windows(text, shape))


def _gated(text: Mapping[str, Any], shape: ModelShape) -> ModelShape:
    """The shape with the additional projection of attention with an output gate."""
    if not text.get("attn_output_gate") and str(text["model_type"]) not in GATED_ATTENTION:
        return shape
    width = shape.head_dim * (3 * shape.heads + 2 * shape.kv_heads)
    return replace(shape, attention_params=float(shape.hidden * width))


def _windows(text: Mapping[str, Any], shape: ModelShape) -> dict[str, Any]:
    """Fields about sliding windows: its size, the number of full layers, and heads if they differ."""
    window = _window(text)
    layers = _full_layers(text, shape.layers, shape.caching_layers, window)
    found: dict[str, Any] = {"sliding_window": window, "full_attn_layers": layers}
    if window and count(text, "global_head_dim"):
        found |= {"windowed_head_dim": shape.head_dim, "windowed_kv_heads": shape.kv_heads}
        found |= {"head_dim": count(text, "global_head_dim")}
        found |= {"kv_heads": count(text, "num_global_key_value_heads") or shape.kv_heads}
    elif window and count(text, "swa_num_key_value_heads"):
        found |= {"windowed_kv_heads": count(text, "swa_num_key_value_heads")}
        found |= {"windowed_head_dim": count(text, "swa_head_dim") or shape.head_dim}
    return found


def _index(text: Mapping[str, Any], layers: int) -> CacheIndex:
    """The index of sparse attention: 8-bit keys and one scale per token, in layers with their own index."""
    chosen = count(text, "index_topk")
    if not chosen:
        return CacheIndex()
    kinds = text.get("indexer_types")
    own = sum(1 for kind in kinds if kind == "full") if isinstance(kinds, list) else layers
    kept = (count(text, "index_head_dim") or USUAL_INDEX) + KEY_SCALE_BYTES
    return CacheIndex(chosen, own, float(own * kept))


def _compressed(text: Mapping[str, Any], shape: ModelShape) -> ModelShape:
    """The shape of a model with a compressed cache (DeepSeek-V4).

    The cache has one vector of a head's width, which is key and value at once, per ``compress_ratios``
    tokens. An index selects from the layers with the smallest ratio. Output projections are grouped and of
    low rank. The additional window of the last tokens is ignored.
    """
    ratios = [ratio for ratio in text["compress_ratios"][: shape.layers] if ratio]
    if not ratios:
        raise ValueError("compress_ratios: at least one of the ratios must be above 0")
    fine, kept = min(ratios), sum(shape.head_dim / ratio for ratio in ratios)
    indexed = ratios.count(fine)
    index, keys = shape.index, count(text, "index_head_dim") or USUAL_INDEX
    queries = shape.q_lora_rank * (shape.hidden + shape.heads * shape.head_dim)
    groups = needed(text, "o_lora_rank") * (
        shape.heads * shape.head_dim + (count(text, "o_groups") or 1) * shape.hidden
    )
    pooled = 2 * shape.hidden * (shape.head_dim + 2 * keys) + shape.q_lora_rank * keys * count(
        text, "index_n_heads"
    )
    own = shape.hidden * shape.head_dim + queries + groups
    attention = own + 2 * shape.hidden * shape.head_dim * len(ratios) / shape.layers
    attention += pooled * indexed / shape.layers
    share = indexed * shape.head_dim / fine / kept
    read = CacheIndex(index.tokens * fine, indexed, indexed * (keys + KEY_SCALE_BYTES) / fine, share)
    counted = replace(shape, attention_params=attention, index=read, **NO_WINDOW).with_counted_params()
    compression = shape.layers * shape.head_dim / kept
    return replace(counted, kv_elements_per_token=round(kept), cache_compression=compression)


def _experts(text: Mapping[str, Any], mixers: Mixers, ffn: int) -> dict[str, Any]:
    """Fields about experts and the layers that have them; empty for a dense model."""
    experts = count(text, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    if experts <= 1 or mixers.moe == 0 or text.get("enable_moe_block") is False:
        return {}
    active = needed(
        text,
        "num_experts_per_tok",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "top_k_experts",
        "experts_per_token",
        "num_experts_per_token",
    )
    width = count(text, "moe_intermediate_size", "expert_ffn_hidden_size") or ffn
    sparse = _sparse_layers(text, mixers.layers) if mixers.moe is None else mixers.moe
    every = count(
        text, "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval", "expert_layer_period"
    )
    leading = count(text, "first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    if sparse is not None:
        leading, every = mixers.layers - sparse, 1
    return {
        "experts": experts,
        "active_experts": active,
        "shared_experts": _shared_experts(text, width, ffn),
        "moe_ffn": width,
        "moe_hidden": count(text, "moe_latent_size"),
        "first_k_dense": leading,
        "moe_every": every or 1,
    }


def _sparse_layers(text: Mapping[str, Any], layers: int) -> int | None:
    """Number of layers with experts if the file lists them; None if it gives a rule."""
    listed = text.get("moe_layer_freq")
    if isinstance(listed, list):
        return sum(1 for has_experts in listed if has_experts)
    named = text.get("mlp_layer_types")
    if isinstance(named, list):
        return sum(1 for kind in named if kind != "dense")
    dense = text.get("mlp_only_layers")
    return layers - len(dense) if dense else None


def _shared_experts(text: Mapping[str, Any], width: int, ffn: int) -> int:
    """Shared experts, in widths of a routed expert.

    Llama 4 has one without stating it; Gemma 4 has a plain feed-forward in addition to its experts.
    """
    wide = count(
        text,
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    if wide:
        return max(1, round(wide / width))
    told = count(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if text.get("enable_moe_block"):
        return max(1, round(ffn / width))
    return told or (1 if str(text["model_type"]).startswith("llama4") else 0)


def _context(text: Mapping[str, Any]) -> int:
    """The longest sequence in tokens: the stated one or, with YaRN, the extended one if that is longer.

    As in vLLM (``_get_and_verify_max_len``) the extended length is ``factor`` times the original length.
    """
    told = count(text, "max_position_embeddings", "n_positions", "max_seq_len")
    scaling = text.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return told
    kind = scaling.get("rope_type") or scaling.get("type")
    first, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if kind != "yarn" or not isinstance(first, int) or not isinstance(factor, int | float):
        return told
    return max(told, int(first * factor))


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    named = count(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    if text.get("multi_query_attention"):
        return needed(text, "multi_query_group_num")
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
    return count(text, "sliding_window", "sliding_window_size", "attention_chunk_size") or None


def _full_layers(text: Mapping[str, Any], layers: int, caching: int, window: int | None) -> int:
    """Number of full-attention layers among the caching ones, from a list or a rule in the file."""
    if window is None:
        return caching
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum(1 for kind in kinds if str(kind) == "full_attention")
    switches = text.get("hybrid_layer_pattern")
    if isinstance(switches, list):
        return sum(1 for windowed in switches if not windowed)
    rotary = text.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        return sum(1 for has_rope in rotary if not has_rope)
    every = count(text, "sliding_window_pattern") or FULL_EVERY.get(str(text["model_type"]), 0)
    if text.get("use_sliding_window"):
        return min(layers, count(text, "max_window_layers"))
    return layers // every if every else 0
