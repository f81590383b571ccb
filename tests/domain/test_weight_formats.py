"""Formats of weights in names and in ``quantization_config``, against files and logs that are published."""

from __future__ import annotations

from typing import Any

import pytest

from broker.catalogue import known_model, load_hugging_face_names, load_models, named_format
from broker.domain.planning.workload import Precision
from broker.models.config import model_from_hf_config
from broker.models.weight_formats import format_of_config, without_format
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import weights_gb
from tests.domain.test_model_config import NAMED, llama

GIB = 2**30 / 1e9


@pytest.mark.parametrize(
    ("name", "stem", "found"),
    [
        ("Meta-Llama-3.1-405B-Instruct-FP8", "Meta-Llama-3.1-405B-Instruct", "fp8"),
        ("Llama-3.3-70B-Instruct-FP8-dynamic", "Llama-3.3-70B-Instruct", "fp8"),
        ("Llama-3.1-8B-Instruct-FP8-KV", "Llama-3.1-8B-Instruct", "fp8"),
        ("DeepSeek-R1-0528-NVFP4", "DeepSeek-R1-0528", "fp4"),
        ("Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen2.5-72B-Instruct", "int4"),
        ("Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen2.5-72B-Instruct", "int8"),
        ("Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "Meta-Llama-3.1-70B-Instruct", "int4"),
        ("Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "Meta-Llama-3.1-70B-Instruct", "int8"),
        ("Meta-Llama-3.1-70B-Instruct-FP8-w8a8", "Meta-Llama-3.1-70B-Instruct", "fp8"),
        ("Qwen3-14B-unsloth-bnb-4bit", "Qwen3-14B", "int4"),
        ("Meta-Llama-3-8B-Instruct.Q4_K_M.gguf", "Meta-Llama-3-8B-Instruct", "a format of local engines"),
        ("Llama-3.1-8B-Instruct-FP6", "Llama-3.1-8B-Instruct", "fewer than 8 bits"),
        ("Llama-3-8B-Instruct-1bit-HQQ", "Llama-3-8B-Instruct", "fewer than 8 bits"),
        ("Llama-3.1-8B-Instruct-SmoothQuant", "Llama-3.1-8B-Instruct", "int8"),
        ("Llama-3.1-8B-Instruct-4.0bpw-h6-exl2", "Llama-3.1-8B-Instruct", "a format of local engines"),
        ("Llama-3-8B-Instruct-AQLM-PV-2Bit-1x16", "Llama-3-8B-Instruct", "fewer than 8 bits"),
        ("Llama-3.3-70B-Instruct-UD-Q2_K_XL", "Llama-3.3-70B-Instruct", "a format of local engines"),
        ("Qwen3-235B-A22B-MXFP4_MOE", "Qwen3-235B-A22B", "fp4"),
        ("DeepSeek-V3.1-Terminus-W4AFP8", "DeepSeek-V3.1-Terminus", "int4"),
        ("gemma-3-27b-it-qat-w4a16-ct", "gemma-3-27b-it", "int4"),
        ("Llama-3.2-3B-Instruct-SpinQuant", "Llama-3.2-3B-Instruct", "a format that is not known"),
        ("Mistral-7B-Instruct-v0.3", "Mistral-7B-Instruct-v0.3", None),
        ("Phi-3.5-MoE", "Phi-3.5-MoE", None),
    ],
)
def test_the_end_of_a_name_states_a_format(name: str, stem: str, found: str | None) -> None:
    assert without_format(name) == (stem, found)


def test_no_known_model_loses_its_name() -> None:
    for name in load_models():
        assert (known_model(name), named_format(name)) == (name, None)
    for model, hub in load_hugging_face_names().items():
        assert known_model(hub) == model or "(paper)" in hub


@pytest.mark.parametrize("word", ["abliterated", "quantized", "marlin-24", "fp6-llm", "KTransformers"])
def test_a_word_that_is_not_understood_is_not_cut_off(word: str) -> None:
    assert known_model("meta-llama/Llama-3.1-8B-Instruct") == "Llama-3.1-8B"
    assert known_model(f"x/Llama-3.1-8B-Instruct-{word}") == f"x/Llama-3.1-8B-Instruct-{word}"


@pytest.mark.parametrize(
    ("told", "name", "bytes_each"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8", 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.5 + 2 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", 1.0),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, "int3", 0.375),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4", 0.5),
        ({"quant_algo": "FP8", "quant_method": "modelopt"}, "fp8", 1.0),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", 1.0),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"}}}, "int8", 1.0),
    ],
)
def test_a_configuration_states_format_and_bytes(told: Any, name: str, bytes_each: float) -> None:
    found = format_of_config(told)
    assert (found.name, found.bytes_each) == (name, bytes_each)


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'alchemy' is no known method .*bitsandbytes"):
        format_of_config({"quant_method": "alchemy"})
    config = NAMED["Llama-3.1-70B"] | {"quantization_config": {"quant_method": "gptq", "bits": 3}}
    with pytest.raises(ValueError, match="int3 is no format of a plan"):
        model_from_hf_config(config, "m")


def test_a_type_of_eight_bits_without_a_method_is_the_format() -> None:
    shape = model_from_hf_config(NAMED["Llama-3.1-70B"] | {"torch_dtype": "float8_e4m3fn"}, "m")
    assert shape.published_precision == "fp8"


def test_fp8_of_the_largest_llama_has_the_size_of_its_file() -> None:
    """vllm#6746 logs 57.75 GiB on each of eight GPUs; as 8 bits throughout they would be 47.7."""
    each = weights_gb(load_models()["Llama-3.1-405B"], Precision.FP8, load_calibration()) / GIB / 8
    assert each == pytest.approx(57.75, rel=0.03)


def test_modules_that_a_file_leaves_out_are_counted() -> None:
    """Meta's list: the attention of every layer, and the feed-forwards of the first and the last."""
    attention = [
        f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(126) for part in ("q", "k", "v", "o")
    ]
    ends = [f"model.layers.{layer}.mlp.{part}_proj" for layer in (0, 125) for part in ("gate", "up", "down")]
    told = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [*attention, *ends, "lm_head"]}
    config = llama(126, 16384, 128, 8, 53248, 128256, quantization_config=told)
    shape = model_from_hf_config(config, "m")
    known = load_models()["Llama-3.1-405B"].packed
    assert shape.packed is not None
    assert known is not None
    by_hand = 126 * 16384 * 128 * 2 * (128 + 8) + 2 * 3 * 16384 * 53248
    assert shape.packed.wide_params == pytest.approx(by_hand)
    assert known.wide_params == pytest.approx(by_hand, rel=0.001)
    assert weights_gb(shape, Precision.FP8, load_calibration()) / GIB / 8 == pytest.approx(57.75, rel=0.03)


def test_a_dense_model_whose_attention_is_left_out_keeps_four_bits_elsewhere() -> None:
    told = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "lm_head"]}
    shape = model_from_hf_config(NAMED["Llama-3.1-70B"] | {"quantization_config": told}, "m")
    ffn, rest = 80 * 3 * 8192 * 28672, 80 * 8192 * 128 * 2 * (64 + 8) + 2 * 128256 * 8192
    assert weights_gb(shape, Precision.FP4, load_calibration()) == pytest.approx(
        (ffn * 0.5625 + rest * 2) / 1e9, rel=0.001
    )


@pytest.mark.parametrize(
    "listed", [["re:(a+)+$"], ["lm_head"], ["re:.*mlp.gate$"], ["model.layers.9999999.mlp"]]
)
def test_lists_of_small_or_strange_modules_change_nothing(listed: list[str]) -> None:
    told = {"quant_method": "fp8", "ignored_layers": listed}
    shape = model_from_hf_config(NAMED["Llama-3.1-70B"] | {"quantization_config": told}, "m")
    assert (shape.published_precision, shape.packed) == ("fp8", None)
