"""Models whose layers are not all alike: states, latent experts, two sizes of attention, indexed caches.

Published sizes and what engines print of a cache are the judges: a wrong count of any kind of layer shows.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.catalogue import load_models
from broker.models.config import model_from_hf_config

LISTED = (["linear_attention"] * 3 + ["full_attention"]) * 60
GATED_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any) -> Any:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **more,
    }


def nemotron_h(
    pattern: str, hidden: int, heads: int, kv_heads: int, ffn: int, mamba_heads: int, **more: Any
) -> Any:
    return {
        **sizes(len(pattern), hidden, heads, kv_heads, ffn, 131072),
        "model_type": "nemotron_h",
        "hybrid_override_pattern": pattern,
        "head_dim": 128,
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        **more,
    }


NANO_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
SUPER_PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
DENSE_PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
FAMILIES = {
    "Nemotron-H-8B": nemotron_h(DENSE_PATTERN, 4096, 32, 8, 21504, mamba_heads=128),
    "Nemotron-3-Nano-30B-A3B": nemotron_h(
        NANO_PATTERN,
        2688,
        32,
        2,
        1856,
        mamba_heads=64,
        mamba_ssm_cache_dtype="float32",
        n_routed_experts=128,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712,
    ),
    "Nemotron-3-Super": nemotron_h(
        SUPER_PATTERN,
        4096,
        32,
        2,
        2688,
        mamba_heads=128,
        mamba_ssm_cache_dtype="float32",
        n_routed_experts=512,
        num_experts_per_tok=22,
        n_shared_experts=1,
        moe_intermediate_size=2688,
        moe_shared_expert_intermediate_size=5376,
        moe_latent_size=1024,
    ),
    "Qwen3-Next-80B-A3B": sizes(
        48,
        2048,
        16,
        2,
        5120,
        151936,
        model_type="qwen3_next",
        head_dim=256,
        **GATED_DELTA,
        linear_num_value_heads=32,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    "Qwen3.5-27B": {
        "model_type": "qwen3_5",
        "text_config": sizes(
            64,
            5120,
            24,
            4,
            17408,
            248320,
            model_type="qwen3_5_text",
            head_dim=256,
            **GATED_DELTA,
            linear_num_value_heads=48,
            mamba_ssm_dtype="float32",
            layer_types=LISTED[:64],
            attn_output_gate=True,
            num_experts=None,
        ),
    },
    "Granite-4.0-H-Small": sizes(
        40,
        4096,
        32,
        8,
        768,
        100352,
        model_type="granitemoehybrid",
        layer_types=["mamba"] * 36 + ["attention"] * 4,
        num_local_experts=72,
        num_experts_per_tok=10,
        shared_intermediate_size=1536,
        mamba_n_heads=128,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
    )
    | {"tie_word_embeddings": True},
    "Kimi-Linear-48B-A3B": sizes(
        27,
        2304,
        32,
        32,
        9216,
        163840,
        model_type="kimi_linear",
        **LATENT,
        num_experts=256,
        num_experts_per_token=8,
        num_shared_experts=1,
        moe_intermediate_size=1024,
        first_k_dense_replace=1,
        linear_attn_config={
            "kda_layers": list(range(20)),
            "full_attn_layers": list(range(7)),
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    ),
    "MiniMax-Text-01": sizes(
        80,
        6144,
        64,
        8,
        9216,
        200064,
        model_type="minimax_text_01",
        head_dim=128,
        attn_type_list=([0] * 7 + [1]) * 10,
        num_local_experts=32,
        num_experts_per_tok=2,
    ),
    "Jamba-1.5-Mini": sizes(
        32,
        4096,
        32,
        8,
        14336,
        65536,
        model_type="jamba",
        num_experts=16,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=256,
    ),
    "LFM2-8B-A1B": sizes(
        24,
        2048,
        32,
        8,
        7168,
        65536,
        model_type="lfm2_moe",
        layer_types=["conv"] * 18 + ["full_attention"] * 6,
        conv_L_cache=3,
        num_experts=32,
        num_experts_per_tok=4,
        num_dense_layers=2,
        moe_intermediate_size=1792,
    )
    | {"tie_word_embeddings": True},
    "Falcon-H1-34B": sizes(
        72,
        5120,
        20,
        4,
        21504,
        261120,
        model_type="falcon_h1",
        head_dim=128,
        mamba_d_ssm=4096,
        mamba_n_heads=32,
        mamba_d_head=128,
        mamba_d_state=256,
        mamba_n_groups=2,
        mamba_d_conv=4,
    ),
    "Gemma-4-26B-A4B": sizes(
        30,
        2816,
        16,
        8,
        2112,
        262144,
        model_type="gemma4_text",
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=2,
        sliding_window=1024,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    )
    | {"tie_word_embeddings": True},
    "MiMo-V2-Flash": sizes(
        48,
        4096,
        64,
        4,
        16384,
        152576,
        model_type="mimo_v2_flash",
        head_dim=192,
        v_head_dim=128,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        sliding_window=128,
        hybrid_layer_pattern=[0 if i in {0, 5, 11, 17, 23, 29, 35, 41, 47} else 1 for i in range(48)],
        moe_layer_freq=[0] + [1] * 47,
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
    ),
    "DeepSeek-V4-Flash": sizes(
        43,
        4096,
        64,
        1,
        0,
        129280,
        model_type="deepseek_v4",
        hc_mult=4,
        head_dim=512,
        q_lora_rank=1024,
        o_lora_rank=1024,
        o_groups=8,
        compress_ratios=[0, 0, *[4, 128] * 20, 4],
        sliding_window=128,
        index_topk=512,
        index_head_dim=128,
        index_n_heads=64,
        n_routed_experts=256,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=2048,
    ),
}
PUBLISHED_B = {
    "Nemotron-H-8B": (8.1, 8.1),
    "Nemotron-3-Nano-30B-A3B": (31.6, 3.6),
    "Nemotron-3-Super": (120.6, 12.7),
    "Qwen3-Next-80B-A3B": (80, 3.9),
    "Qwen3.5-27B": (27, 27),
    "Granite-4.0-H-Small": (32, 9),
    "Kimi-Linear-48B-A3B": (48, 3.5),
    "MiniMax-Text-01": (456, 45.9),
    "Jamba-1.5-Mini": (52, 12),
    "LFM2-8B-A1B": (8.3, 1.5),
    "Falcon-H1-34B": (33.6, 33.6),
    "Gemma-4-26B-A4B": (25.2, 3.8),
    "MiMo-V2-Flash": (309, 15),
    "DeepSeek-V4-Flash": (284, 13),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_has_the_published_size_and_the_shape_of_the_table(name: str) -> None:
    """Total parameters within 2.5 %, active ones within 6 % (names round, some leave out embeddings)."""
    read = model_from_hf_config(FAMILIES[name], name)
    total, active = PUBLISHED_B[name]
    assert read.total_params / 1e9 == pytest.approx(total, rel=0.025)
    assert read.active_params / 1e9 == pytest.approx(active, rel=0.06)
    named = load_models()[name]
    for field in ("attention", "layers", "kv_elements_per_token", "sliding_window", "full_attn_layers"):
        assert getattr(read, field) == getattr(named, field), field
    for field in ("caching_layers", "moe_layers", "moe_hidden", "dense_layers", "states", "residual_streams"):
        assert getattr(read, field) == getattr(named, field), field
    assert read.index.tokens == named.index.tokens
    assert named.total_params == pytest.approx(read.total_params, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "attention", "states", "experts"),
    [
        pytest.param("Nemotron-H-8B", 4, 24, 0, id="pattern of letters"),
        pytest.param("Nemotron-3-Super", 8, 40, 40, id="pattern with experts"),
        pytest.param("Qwen3-Next-80B-A3B", 12, 36, 48, id="a family's rule"),
        pytest.param("Qwen3.5-27B", 16, 48, 0, id="list of kinds"),
        pytest.param("Kimi-Linear-48B-A3B", 7, 20, 26, id="lists of layers"),
        pytest.param("MiniMax-Text-01", 10, 70, 80, id="switches"),
        pytest.param("Jamba-1.5-Mini", 4, 28, 16, id="period and offset"),
        pytest.param("Falcon-H1-34B", 72, 72, 0, id="side by side"),
    ],
)
def test_layers_are_counted_by_what_they_do(name: str, attention: int, states: int, experts: int) -> None:
    shape = model_from_hf_config(FAMILIES[name], name)
    assert (shape.caching_layers, shape.states.count, shape.moe_layers) == (attention, states, experts)


def test_layers_that_are_mixers_or_feed_forwards_make_half_as_many() -> None:
    """Two all-reduces a layer: 52 layers of which 29 mix tokens and 23 route them are 26."""
    assert model_from_hf_config(FAMILIES["Nemotron-3-Nano-30B-A3B"], "x").layers == 26


def test_blocks_listed_by_name_read_like_letters() -> None:
    kinds = {"M": "mamba", "*": "attention", "E": "moe"}
    plain = FAMILIES["Nemotron-3-Nano-30B-A3B"]
    listed = {**plain, "hybrid_override_pattern": None, "num_hidden_layers": None}
    listed["layers_block_type"] = [kinds[letter] for letter in NANO_PATTERN]
    assert model_from_hf_config(listed, "x") == model_from_hf_config(plain, "x")


def test_states_take_what_engines_set_aside() -> None:
    """Falcon-H1 34B: 2,127,872 bytes a layer; Nemotron-Nano-9B-v2: about 70 MiB a sequence (NVIDIA's sizing
    of its service)."""
    falcon = model_from_hf_config(FAMILIES["Falcon-H1-34B"], "x").states
    assert falcon.state_bytes == 2_127_872
    nano = load_models()["Nemotron-Nano-9B-v2"].states
    assert nano.count * nano.state_bytes / 2**20 == pytest.approx(70, rel=0.02)


def test_an_index_of_the_cache_is_read() -> None:
    config = sizes(61, 7168, 128, 128, 18432, 129280, **LATENT, index_topk=2048, index_head_dim=128)
    read, named = model_from_hf_config(config, "x").index, load_models()["DeepSeek-V3.2"].index
    assert read == named
    assert (read.tokens, read.layers, read.bytes_per_token) == (2048, 61, 61 * 132)
    shared = model_from_hf_config({**config, "indexer_types": ["full"] * 20 + ["shared"] * 41}, "x").index
    assert (shared.layers, shared.bytes_per_token) == (20, 20 * 132)
    assert load_models()["DeepSeek-V3"].index.tokens == 0


def test_two_sizes_of_attention_are_cached_apart() -> None:
    """Gemma 4: 25 windowed layers of 8 × 256, five of 2 × 512; MiMo: values narrower than keys."""
    gemma = model_from_hf_config(FAMILIES["Gemma-4-26B-A4B"], "x")
    assert gemma.kv_elements_per_token == 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512
    mimo = model_from_hf_config(FAMILIES["MiMo-V2-Flash"], "x")
    assert mimo.kv_elements_per_token == 9 * 4 * (192 + 128) + 39 * 8 * (192 + 128)
