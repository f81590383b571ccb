"""Shapes from ``config.json``: the fields of each family, against published sizes and the named table."""

from __future__ import annotations

from typing import Any

import pytest

from broker.catalogue import load_models
from broker.domain.workloads.model_shape import Attention
from broker.models.config import model_from_hf_config


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any) -> Any:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


MLA = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
}
NAMED = {
    "Llama-3.1-70B": llama(80, 8192, 64, 8, 28672, 128256),
    "Mistral-7B": llama(
        32,
        4096,
        32,
        8,
        14336,
        32000,
        model_type="mistral",
        sliding_window=None,
        max_position_embeddings=32768,
    ),
    "Mixtral-8x7B": llama(
        32, 4096, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2
    ),
    "Qwen3-30B-A3B": llama(
        48,
        2048,
        32,
        4,
        6144,
        151936,
        model_type="qwen3_moe",
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
        sliding_window=4096,
    ),
    "Gemma-2-9B": {
        **llama(42, 3584, 16, 8, 14336, 256000, model_type="gemma2", head_dim=256, sliding_window=4096),
    },
    "Gemma-3-27B": {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "text_config": llama(
            62, 5376, 32, 16, 21504, 262144, model_type="gemma3_text", head_dim=128, sliding_window=1024
        ),
    },
    "gpt-oss-120b": llama(
        36,
        2880,
        64,
        8,
        2880,
        201088,
        model_type="gpt_oss",
        head_dim=64,
        num_local_experts=128,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 18,
        tie_word_embeddings=False,
    ),
    "Llama-4-Maverick": {
        "model_type": "llama4",
        "text_config": llama(
            48,
            5120,
            40,
            8,
            8192,
            202048,
            model_type="llama4_text",
            head_dim=128,
            intermediate_size_mlp=16384,
            num_local_experts=128,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            attention_chunk_size=8192,
            no_rope_layers=[1, 1, 1, 0] * 12,
        ),
    },
    "Llama-4-Scout": {
        "text_config": llama(
            48,
            5120,
            40,
            8,
            8192,
            202048,
            model_type="llama4_text",
            head_dim=128,
            intermediate_size_mlp=16384,
            num_local_experts=16,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            attention_chunk_size=8192,
        ),
    },
    "DeepSeek-V3": llama(
        61,
        7168,
        128,
        128,
        18432,
        129280,
        model_type="deepseek_v3",
        **MLA,
        q_lora_rank=1536,
        n_routed_experts=256,
        num_experts_per_tok=8,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        first_k_dense_replace=3,
    ),
    "DeepSeek-V2-Lite": llama(
        27,
        2048,
        16,
        16,
        10944,
        102400,
        model_type="deepseek_v2",
        **MLA,
        q_lora_rank=None,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
    ),
    "Falcon-7B": {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "multi_query": True,
        "vocab_size": 65024,
    },
    "Falcon-40B": {
        "model_type": "RefinedWeb",
        "n_layer": 60,
        "hidden_size": 8192,
        "n_head": 128,
        "n_head_kv": 8,
        "vocab_size": 65024,
    },
    "BLOOM-176B": {
        "model_type": "bloom",
        "n_layer": 70,
        "hidden_size": 14336,
        "n_head": 112,
        "vocab_size": 250880,
    },
    "OPT-66B": {
        "model_type": "opt",
        "num_hidden_layers": 64,
        "hidden_size": 9216,
        "num_attention_heads": 72,
        "ffn_dim": 36864,
        "vocab_size": 50272,
    },
    "GPT-J-6B": {
        "model_type": "gptj",
        "n_layer": 28,
        "n_embd": 4096,
        "n_head": 16,
        "vocab_size": 50400,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("name", NAMED)
def test_a_config_gives_the_shape_of_the_named_table(name: str) -> None:
    """What decides time and memory is equal: sizes, cache, windows, layers with experts."""
    read, named = model_from_hf_config(NAMED[name], name), load_models()[name]
    assert read.total_params == pytest.approx(named.total_params, rel=0.002)
    assert read.active_params == pytest.approx(named.active_params, rel=0.002)
    for field in ("attention", "layers", "kv_elements_per_token", "sliding_window", "full_attn_layers"):
        assert getattr(read, field) == getattr(named, field), field
    for field in ("experts", "active_experts", "shared_experts", "moe_ffn", "mlp_mats", "tie_embeddings"):
        assert getattr(read, field) == getattr(named, field), field


@pytest.mark.parametrize(
    ("config", "total_b", "active_b"),
    [
        pytest.param(
            {
                "model_type": "dbrx",
                "d_model": 6144,
                "n_layers": 40,
                "n_heads": 48,
                "vocab_size": 100352,
                "tie_word_embeddings": False,
                "attn_config": {"kv_n_heads": 8, "model_type": ""},
                "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
            },
            132.0,
            36.0,
            id="DBRX",
        ),
        pytest.param(
            llama(
                28,
                3584,
                28,
                4,
                18944,
                151936,
                model_type="qwen2_moe",
                num_experts=64,
                num_experts_per_tok=8,
                moe_intermediate_size=2560,
                shared_expert_intermediate_size=20480,
                decoder_sparse_step=1,
            ),
            57.4,
            14.0,
            id="Qwen2-57B-A14B",
        ),
        pytest.param(
            {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257},
            1.56,
            1.56,
            id="GPT-2 XL",
        ),
        pytest.param(
            llama(40, 6144, 48, 4, 24576, 49152, model_type="starcoder2", sliding_window=4096),
            15.7,
            15.7,
            id="StarCoder2-15B",
        ),
    ],
)
def test_other_families_have_their_published_size(config: Any, total_b: float, active_b: float) -> None:
    shape = model_from_hf_config(config, "x")
    assert shape.total_params / 1e9 == pytest.approx(total_b, rel=0.02)
    assert shape.active_params / 1e9 == pytest.approx(active_b, rel=0.02)


def test_linear_layers_keep_no_cache() -> None:
    config = llama(
        48, 2048, 16, 2, 5120, 151936, model_type="qwen3_next", head_dim=256, full_attention_interval=4
    )
    shape = model_from_hf_config(config, "x")
    assert shape.kv_elements_per_token == 12 * 2 * 2 * 256
    listed = {**config, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    assert model_from_hf_config(listed, "x").kv_elements_per_token == shape.kv_elements_per_token


def test_a_window_without_a_rule_is_every_layers() -> None:
    config = llama(32, 4096, 32, 8, 14336, 32000, model_type="mistral", sliding_window=4096)
    shape = model_from_hf_config(config, "Mistral-7B-v0.1")
    assert (shape.sliding_window, shape.full_attn_layers) == (4096, 0)


def test_a_window_that_is_switched_off_is_none_and_one_of_late_layers_is_counted() -> None:
    off = llama(28, 3584, 28, 4, 18944, 152064, sliding_window=4096, use_sliding_window=False)
    assert model_from_hf_config(off, "x").sliding_window is None
    late = {**off, "use_sliding_window": True, "max_window_layers": 21}
    shape = model_from_hf_config(late, "x")
    assert (shape.sliding_window, shape.full_attn_layers) == (4096, 21)


def test_experts_listed_layer_by_layer_are_counted() -> None:
    config = llama(
        32, 4096, 32, 8, 14336, 32000, num_experts=16, num_experts_per_tok=2, moe_intermediate_size=1024
    )
    every = model_from_hf_config(config, "x")
    some = model_from_hf_config({**config, "moe_layer_freq": [0, 1] * 16}, "x")
    dense = model_from_hf_config({**config, "mlp_only_layers": list(range(16))}, "x")
    assert some.total_params == dense.total_params
    experts = 16 * 3 * 4096 * 1024
    router, ffn = 4096 * 16, 3 * 4096 * 14336
    assert every.total_params - some.total_params == pytest.approx(16 * (experts + router - ffn))


def test_multi_query_groups_of_chat_glm() -> None:
    config = {
        "model_type": "chatglm",
        "num_layers": 40,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "kv_channels": 128,
        "ffn_hidden_size": 13696,
        "padded_vocab_size": 151552,
    }
    shape = model_from_hf_config(config, "x")
    assert (shape.attention, shape.kv_heads) == (Attention.GQA, 2)
    assert shape.total_params / 1e9 == pytest.approx(9.4, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, r"num_hidden_layers \(or n_layers, n_layer, num_layers\) is missing"),
        ({"hidden_size": "big"}, "hidden_size: 'big' is not a number"),
        ({"vocab_size": -1}, "vocab_size: -1 is negative"),
        ({"state_size": 128}, "state_size: a state-space model without attention"),
        ({"num_mem_blocks": 2}, "num_mem_blocks: a model whose attention blocks are shared"),
        ({"hidden_size_per_layer_input": 256}, "a model with embeddings of every layer"),
        ({"hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern: 'X' must be one of"),
        ({"layer_types": ["mamba"] * 2, "mamba_n_heads": 8}, "ssm_state_size .or mamba_d_state. is missing"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types: a model without attention"),
        ({"compress_ratios": [0, 0]}, "compress_ratios: at least one of the ratios"),
        ({"block_configs": [{}]}, "block_configs: a model whose blocks differ"),
        ({"is_encoder_decoder": True}, "only decoder-only models"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
    ],
)
def test_what_has_no_shape_is_refused_by_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_hf_config({**llama(2, 64, 4, 2, 256, 1000), **change}, "x")


def test_a_model_of_unequal_layers_has_its_published_size() -> None:
    """Counting equal layers would say 71 billion."""
    assert load_models()["Llama-3.3-Nemotron-Super-49B"].total_params / 1e9 == pytest.approx(49.9)
