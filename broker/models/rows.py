"""Rows of the table of named models (``config/models.csv``)."""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.planning.model_shape import Attention, CacheIndex, MixedWeights, ModelShape, StateLayers

UNEQUAL_LAYERS = 0.05


def model_of(row: Mapping[str, str]) -> ModelShape:
    """The shape that a row of the table of models describes."""
    return ModelShape(
        name=row["model"],
        attention=_known_attention(row["attention"]),
        layers=_count(row["layers"]),
        hidden=_count(row["hidden"]),
        heads=_count(row["heads"]),
        kv_heads=_count(row["kv_heads"]),
        head_dim=_count(row["head_dim"]),
        ffn=_count(row["ffn"]),
        vocab=_count(row["vocab"]),
        total_params=_params(row, "total_params_b"),
        active_params=_params(row, "active_params_b"),
        kv_elements_per_token=_count(row["kv_elems_per_token"]),
        mlp_mats=_count(row["mlp_mats"]),
        experts=_count(row["experts"]),
        active_experts=_count(row["active_experts"]),
        shared_experts=_count(row["shared_experts"]),
        moe_ffn=_count(row["moe_ffn"]),
        moe_hidden=_count(row["moe_hidden"]),
        first_k_dense=_count(row["first_k_dense"]),
        moe_every=max(1, _count(row["moe_every"])),
        dense_layers=_optional(row["dense_layers"]),
        tie_embeddings=row["tie_embeddings"] in {"1", "True", "true"},
        context=_count(row["context"]),
        attention_layers=_optional(row["attention_layers"]),
        attention_params=float(row["attention_params"] or 0.0),
        sliding_window=_count(row["sliding_window"]) or None,
        full_attn_layers=_optional(row["full_attn_layers"]),
        windowed_kv_heads=_count(row["windowed_kv_heads"]),
        windowed_head_dim=_count(row["windowed_head_dim"]),
        q_lora_rank=_count(row["q_lora_rank"]),
        kv_lora_rank=_count(row["kv_lora_rank"]),
        qk_rope_dim=_count(row["qk_rope_dim"]),
        qk_nope_dim=_count(row["qk_nope_dim"]),
        v_head_dim=_count(row["v_head_dim"]),
        cache_compression=float(row["cache_compression"] or 1.0),
        residual_streams=max(1, _count(row["residual_streams"])),
        states=StateLayers(
            count=_count(row["state_layers"]),
            width=_count(row["state_width"]),
            params=_count(row["state_params"]),
            state_bytes=_count(row["state_bytes"]),
        ),
        index=_index(row),
        published_precision=row["published_precision"],
        packed=_packed(row["mixed_weights"]),
        source=row["source"],
    )


def _optional(text: str) -> int | None:
    return _count(text) if text.strip() else None


def _index(row: Mapping[str, str]) -> CacheIndex:
    chosen = _count(row["index_topk"])
    if not chosen:
        return CacheIndex()
    keys, share = float(row["index_bytes_per_token"]), float(row["index_share"])
    return CacheIndex(chosen, _count(row["index_layers"]), keys, share)


def _packed(text: str) -> MixedWeights | None:
    if not text.strip():
        return None
    precision, bytes_each, rest, *wide = text.split()
    return MixedWeights(precision, float(bytes_each), rest, 1e9 * float(wide[0]) if wide else 0.0)


def _params(row: Mapping[str, str], column: str) -> float:
    """Parameters computed from the sizes, or the published count if both differ by 5 % or more.

    They differ for models whose layers have different sizes.
    """
    counted = 1.0 - UNEQUAL_LAYERS < float(row["calc_vs_nominal"]) < 1.0 + UNEQUAL_LAYERS
    return float(row[f"{column}_calc" if counted else column]) * 1e9


def _known_attention(text: str) -> Attention:
    """The kind of attention; a hybrid model has that of its layers with a KV cache."""
    for kind in (Attention.MLA, Attention.GQA, Attention.MQA):
        if kind in text:
            return kind
    return Attention.MHA


def _count(text: str) -> int:
    return int(float(text)) if text.strip() else 0
