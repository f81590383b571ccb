"""Names of GPUs, models, formats and regimes as published tables spell them."""

from __future__ import annotations

import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.cells import Unreadable
from optimizer.calibration.tables.names import find_gpu, find_model
from optimizer.calibration.tables.rows import COLUMNS
from optimizer.calibration.tables.serving_words import engine_of, formats_of, regime_of
from optimizer.performance.constants.calibrated import load_calibration

GPUS = {
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "h100-sxm5": "H100-SXM-80GB",
    "H100 NVL": "H100-NVL-94GB",
    "8xH100": "H100-SXM-80GB",
    "A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "A100": "A100-SXM-80GB",
    "GB200 NVL72": "GB200-186GB",
    "AMD Instinct MI300X": "MI300X-192GB",
    "MI355": "MI355X-288GB",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "RTX 6000 Ada Generation": "RTX-6000-Ada",
    "A6000": "RTX-A6000",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Intel Gaudi 3": "Gaudi3-128GB",
    "Google TPU v5e": "TPU-v5e",
    "tpu-v5-lite-podslice": "TPU-v5e",
    "v5p": "TPU-v5p",
    "Trillium": "TPU-v6e",
    "TPU Trillium (v6e)": "TPU-v6e",
    "tpu-v6e-slice": "TPU-v6e",
    "Ironwood": "TPU-v7x",
    "tpu7x": "TPU-v7x",
}
MODELS = {
    "meta-llama/Llama-3.1-70B-Instruct": "Llama-3.1-70B",
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "llama2-70b-chat": "Llama-2-70B",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "Llama-3.3-Nemotron-Super-49B",
    "Llama-4-Maverick-17B-128E-Instruct-FP8": "Llama-4-Maverick",
    "Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
    "Qwen2-7B-Instruct": "Qwen2.5-7B",
    "gpt-oss:20b": "gpt-oss-20b",
    "DeepSeek-V3-0324": "DeepSeek-V3",
    "DeepSeek-V3.1": "DeepSeek-V3",
    "nvidia/DeepSeek-R1-0528-FP4": "DeepSeek-R1",
    "DeepSeek-R1-Distill-Llama-70B": "Llama-3.3-70B",
    "DeepSeek-R1-Distill-Qwen-32B": "Qwen3-32B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
    "Mistral-Large-Instruct-2407": "Mistral-Large-123B",
    "zai-org/GLM-4.6-FP8": "GLM-4.5",
    "bigscience/bloom": "BLOOM-176B",
}


@pytest.mark.parametrize(("text", "name"), GPUS.items())
def test_gpu_names(text: str, name: str) -> None:
    assert find_gpu(text, load_gpus())[0].gpu == name


@pytest.mark.parametrize(("text", "name"), MODELS.items())
def test_model_names(text: str, name: str) -> None:
    found, note = find_model(text, load_models())
    assert found.name == name
    assert name in note, "what was taken is said"


def test_every_name_of_the_catalogue_is_itself() -> None:
    assert all(find_gpu(name, load_gpus()) == (spec, "") for name, spec in load_gpus().items())
    assert all(find_model(name, load_models()) == (shape, "") for name, shape in load_models().items())


@pytest.mark.parametrize("text", ["", "H1000", "X", "L400"])
def test_unknown_gpus_are_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="unknown GPU"):
        find_gpu(text, load_gpus())


def test_the_memory_of_another_column_decides_between_cards() -> None:
    assert find_gpu("A100", load_gpus(), 40.0)[0].gpu == "A100-SXM-40GB"


def test_unknown_models_have_the_shape_of_one_as_large() -> None:
    dense, note = find_model("Nobody-9B", load_models())
    assert (dense.total_params, dense.is_moe) == (9e9, False)
    assert "not a known model" in note
    sparse, _ = find_model("Nobody-80B-A3B", load_models())
    assert (sparse.total_params, sparse.active_params, sparse.is_moe) == (80e9, 3e9, True)
    told, _ = find_model("Nobody", load_models(), total_b=30.0, active_b=3.0)
    assert told.is_moe
    with pytest.raises(Unreadable, match="how large"):
        find_model("Nobody", load_models())


@pytest.mark.parametrize(
    ("cells", "dense", "experts"),
    [
        ({"weight_precision": "FP8 (E4M3)"}, "fp8", "fp8"),
        ({"weight_precision": "AWQ"}, "int4", "int4"),
        ({"weight_precision": "W8A8-INT8"}, "int8", "int8"),
        ({"weight_precision": "int8-w8a16"}, "w8a16", "w8a16"),
        ({"weight_precision": "mxfp4", "model": "gpt-oss-120b"}, "bf16", "fp4"),
        ({"model": "gpt-oss-120b"}, "bf16", "fp4"),
        ({"weight_precision": "mxfp4", "moe_precision": "mxfp4"}, "bf16", "fp4"),
        ({"weight_precision": "fp8", "moe_precision": "mxfp4"}, "fp8", "fp4"),
        ({"model": "DeepSeek-V3"}, "fp8", "fp8"),
        ({"model": "nvidia/DeepSeek-R1-FP4"}, "fp4", "fp4"),
        ({"model": "Llama-3.1-8B"}, "bf16", "bf16"),
    ],
)
def test_number_formats(cells: dict[str, str], dense: str, experts: str) -> None:
    row = {"model": "Mixtral-8x7B"} | cells
    model, _ = find_model(row["model"], load_models())
    found = formats_of(row, model, load_gpus()["H100-SXM-80GB"])
    assert (found.dense, found.experts) == (dense, experts)
    assert bool(found.note) is ("weight_precision" not in cells)


def test_models_with_states_are_taken_by_name_only() -> None:
    """Nothing says that an unknown model of their size keeps states."""
    named, note = find_model("Qwen/Qwen3.6-27B-FP8", load_models())
    assert (named.name, named.states.count > 0) == ("Qwen3.6-27B", True)
    assert "taken as Qwen3.6-27B" in note
    for text, size in (("Nobody-27B", None), ("Qwen-27B", None), ("Nemotron-8B", 8.0), ("Someone", 56.3)):
        assert not find_model(text, load_models(), total_b=size)[0].states.count, text


def test_a_card_without_bfloat_serves_half_precision() -> None:
    assert formats_of({}, load_models()["Llama-3.1-8B"], load_gpus()["T4"]).dense == "fp16"


@pytest.mark.parametrize(
    ("cells", "regime"),
    [
        ({"regime": "Offline"}, "offline_max"),
        ({"regime": "online, Poisson"}, "open_loop"),
        ({"request_rate": "4"}, "open_loop"),
        ({"concurrency_or_batch": "16"}, "closed_loop"),
        ({"concurrency_or_batch": "1"}, "single_stream"),
        ({}, "offline_max"),
    ],
)
def test_regimes(cells: dict[str, str], regime: str) -> None:
    assert regime_of(cells)[0] == regime


def test_engines_by_release_and_vendor() -> None:
    def of(release: str, gpu: str = "H100-SXM-80GB", **cells: str) -> str:
        row = {"source": "somebody", "engine": "vLLM", "engine_version": release} | cells
        return engine_of(row, load_gpus()[gpu])

    assert [of(r) for r in ("0.7.3", "2024-01", "v0.6.2", "0.2.7")] == ["vllm_v0"] * 4
    assert [of(r) for r in ("0.2.6", "2023-11", "v0.1.4")] == ["eager"] * 3
    assert [of(r) for r in ("", "0.8.0", "0.19.1rc1", "nightly", "2025-06")] == ["vllm"] * 5
    assert [of(r, "MI300X-192GB") for r in ("0.6.4", "0.9.1")] == ["rocm_v0", "rocm"]
    assert of("0.6.4", "MI300X-192GB", source="rocm-vllm", regime="static_batch") == "rocm", "AMD's tables"


def test_engines_of_tensorrt_are_told_by_their_own_releases() -> None:
    def of(release: str, **cells: str) -> str:
        row = {"source": "somebody", "engine": "TensorRT-LLM", "engine_version": release} | cells
        return engine_of(row, load_gpus()["H100-SXM-80GB"])

    assert [of(r) for r in ("0.14.0", "0.5", "2024-06")] == ["tensorrt_llm_v0"] * 3
    assert [of(r) for r in ("", "0.17.0", "1.0.0rc3", "2025-06")] == ["tensorrt_llm"] * 4
    assert of("0.8.1", regime="decode_pool") == "tensorrt_llm", "the orchestrator's release"
    assert of("0.9.0", regime="static_batch") == "tensorrt_llm", "a session without the batch manager"
    assert of("0.6.2", engine="LMDeploy") == "turbomind", "another engine's release"


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("llama.cpp", "llama_cpp"),
        ("Ollama", "llama_cpp"),
        ("MLC-LLM", "local"),
        ("transformers", "eager"),
        ("Hugging Face Accelerate", "eager"),
        ("NIM", "tensorrt_llm"),
        ("", "vllm"),
    ],
)
def test_engines_by_name(name: str, engine: str) -> None:
    row = {"source": "somebody", "engine": name, "engine_version": "0.1"}
    assert engine_of(row, load_gpus()["H100-SXM-80GB"]) == engine


def test_a_row_in_other_words_is_the_row_in_ours() -> None:
    ours = {"kind": "serving", "id": "1", "regime": "closed_loop", "model": "Llama-3.1-70B", "gpus": "4"}
    ours |= {"weight_precision": "fp8", "gpu": "H100-SXM-80GB", "tp": "4", "isl": "1024", "osl": "256"}
    ours |= {"concurrency_or_batch": "16", "engine": "vLLM"}
    other = ours | {"regime": "", "model": "nvidia/Llama-3.1-70B-Instruct-FP8", "weight_precision": ""}
    other |= {"gpu": "NVIDIA H100 80GB HBM3", "isl": "1,024", "request_rate": "n/a"}
    assert of_numbers(ours) == of_numbers(other)
    blank = predict(other | {"gpus": "", "tp": "", "osl": ""})
    assert blank["fits"] == "true"
    for said in ("count of GPUs", "output length", "regime", "weight precision", "taken as"):
        assert said in blank["note"]


def predict(row: dict[str, str]) -> dict[str, str]:
    return predict_rows([row], load_calibration(), load_gpus(), load_models())[0]


def of_numbers(row: dict[str, str]) -> list[str]:
    found = predict(row)
    return [found[name] for name in COLUMNS if name != "note"]


def test_arrivals_without_end_are_a_burst() -> None:
    row = {"kind": "serving", "regime": "open_loop", "model": "Llama-3.1-8B", "gpu": "H100", "gpus": "1"}
    row |= {"weight_precision": "fp8", "tp": "1", "isl": "512", "osl": "128", "num_requests": "500"}
    endless, fast = predict(row | {"request_rate": "inf"}), predict(row | {"request_rate": "5"})
    burst = predict(row | {"regime": "offline_burst", "concurrency_or_batch": "500"})
    assert endless["pred_ttft_ms_p50"] == burst["pred_ttft_ms_p50"]
    assert float(endless["pred_ttft_ms_p50"]) > 10 * float(fast["pred_ttft_ms_p50"])
    assert "at once" in endless["note"]
