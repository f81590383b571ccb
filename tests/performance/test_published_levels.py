"""Absolute levels against widely read tables that no constant is fitted to: a core that is off by half shows.

Sources: NVIDIA, TensorRT-LLM docs/source/performance.md, first-token latency of one prompt, v0.5 (2023) and
v0.9 (2024);
XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README, llama.cpp of May 2024, GeForce cards.
"""

from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.predictions import predict_rows
from optimizer.performance.constants.calibrated import load_calibration

# By release, GPU and format: tensor degree and milliseconds at 128 and at 2,048 tokens.
FIRST_TOKENS_MS: dict[tuple[str, str, str], dict[str, tuple[tuple[int, float], tuple[int, float]]]] = {
    ("0.5", "H100-SXM-80GB", "fp8"): {
        "GPT-J-6B": ((1, 7), (1, 29)),
        "Llama-2-7B": ((1, 7), (1, 36)),
        "Llama-2-70B": ((4, 26), (4, 109)),
        "Falcon-180B": ((8, 27), (8, 205)),
    },
    ("0.5", "L40S", "fp8"): {"GPT-J-6B": ((1, 12), (1, 71)), "Llama-2-7B": ((1, 14), (1, 73))},
    ("0.5", "A100-SXM-80GB", "fp16"): {
        "GPT-J-6B": ((1, 12), (1, 129)),
        "Llama-2-7B": ((1, 16), (1, 133)),
        "Llama-2-70B": ((4, 47), (4, 377)),
        "Falcon-180B": ((8, 61), (8, 509)),
    },
    ("0.9", "H200-SXM-141GB", "fp8"): {
        "GPT-J-6B": ((1, 5.0), (1, 23.5)),
        "Mistral-7B": ((1, 5.9), (1, 31.7)),
        "Mixtral-8x7B": ((2, 12.1), (2, 87.7)),
        "Llama-2-7B": ((1, 5.7), (1, 30.2)),
        "Llama-2-70B": ((4, 17.8), (4, 103.0)),
        "Falcon-180B": ((4, 36.4), (4, 194.4)),
    },
    ("0.9", "H100-SXM-80GB", "fp8"): {
        "GPT-J-6B": ((1, 5.5), (1, 23.8)),
        "Mistral-7B": ((1, 6.5), (1, 32.4)),
        "Mixtral-8x7B": ((2, 13.4), (2, 89.5)),
        "Llama-2-7B": ((1, 6.3), (1, 30.8)),
        "Llama-2-70B": ((4, 19.6), (8, 85.1)),
        "Falcon-180B": ((4, 41.1), (8, 129.9)),
    },
    ("0.9", "L40S", "fp8"): {
        "GPT-J-6B": ((1, 12.4), (1, 61.7)),
        "Mistral-7B": ((1, 15.4), (1, 87.3)),
        "Mixtral-8x7B": ((4, 19.5), (4, 165.6)),
        "Llama-2-7B": ((1, 14.1), (1, 80.1)),
        "Llama-2-70B": ((8, 70.4), (4, 673.3)),
        "Falcon-180B": ((8, 91.0), (8, 768.8)),
    },
    ("0.9", "A100-SXM-80GB", "fp16"): {
        "GPT-J-6B": ((1, 14.8), (1, 136.4)),
        "Mistral-7B": ((1, 16.3), (1, 139.6)),
        "Mixtral-8x7B": ((2, 23.8), (2, 160.9)),
        "Llama-2-7B": ((1, 16.2), (1, 132.4)),
        "Llama-2-70B": ((4, 45.6), (8, 249.2)),
        "Falcon-180B": ((8, 76.5), (8, 456.0)),
    },
}
PROMPTS = (128, 2048)


def predicted(column: str, **cells: str | int) -> float:
    row = {"id": "published", "kind": "serving"} | {name: str(cell) for name, cell in cells.items()}
    found = predict_rows([row], load_calibration(), load_gpus(), load_models())[0]
    return float(found[column])


@pytest.mark.parametrize(
    ("release", "count", "median", "most"), [("0.5", 20, 0.15, 1.6), ("0.9", 48, 0.2, 2.0)]
)
def test_first_tokens_of_one_prompt_as_nvidia_published_them(
    release: str, count: int, median: float, most: float
) -> None:
    told = [
        (gpu, precision, model, tokens, tp, latency_ms)
        for (version, gpu, precision), models in FIRST_TOKENS_MS.items()
        if version == release
        for model, cells in models.items()
        for tokens, (tp, latency_ms) in zip(PROMPTS, cells, strict=True)
    ]
    ratios = [
        predicted(
            "pred_ttft_ms_p50",
            regime="single_stream_ttft",
            engine="TensorRT-LLM",
            engine_version=release,
            model=model,
            weight_precision=precision,
            gpu=gpu,
            gpus=tp,
            tp=tp,
            isl=tokens,
            osl=1,
        )
        / latency_ms
        for gpu, precision, model, tokens, tp, latency_ms in told
    ]
    off = np.abs(np.log(np.asarray(ratios)))
    assert len(ratios) == count
    assert np.median(off) < median
    assert off.max() < np.log(most)


@pytest.mark.parametrize(
    ("gpu", "prompt_per_s", "answer_per_s"), [("RTX-4090", 6899, 128), ("RTX-3090", 3865, 112)]
)
def test_llama_cpp_on_geforce_cards(gpu: str, prompt_per_s: float, answer_per_s: float) -> None:
    """Llama-3-8B in Q4_K_M, 1,024 tokens of prompt or of answer."""
    cells: dict[str, str | int] = {
        "engine": "llama.cpp",
        "model": "Llama-3-8B",
        "weight_precision": "int4",
        "gpu": gpu,
        "gpus": 1,
        "tp": 1,
    }
    first = predicted("pred_ttft_ms_p50", regime="single_stream_ttft", isl=1024, osl=1, **cells)
    between = predicted("pred_tpot_ms_p50", regime="single_stream", isl=1, osl=1024, **cells)
    assert 1 / 1.7 < 1024e3 / first / prompt_per_s < 1.7
    assert 1 / 1.35 < 1e3 / between / answer_per_s < 1.35
