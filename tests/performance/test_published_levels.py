"""Absolute levels against widely read tables that no constant is fitted to: a core that is off by half shows.

Sources: NVIDIA, TensorRT-LLM docs/source/performance.md, first-token latency of one prompt, v0.5 (2023);
XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README, llama.cpp of May 2024, GeForce cards.
"""

from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.performance.calibration import load_calibration
from optimizer.performance.rows import predict_rows

FIRST_TOKENS_MS = {
    ("H100-SXM-80GB", "fp8"): {
        ("GPT-J-6B", 1): (7, 29),
        ("Llama-2-7B", 1): (7, 36),
        ("Llama-2-70B", 4): (26, 109),
        ("Falcon-180B", 8): (27, 205),
    },
    ("L40S", "fp8"): {("GPT-J-6B", 1): (12, 71), ("Llama-2-7B", 1): (14, 73)},
    ("A100-SXM-80GB", "fp16"): {
        ("GPT-J-6B", 1): (12, 129),
        ("Llama-2-7B", 1): (16, 133),
        ("Llama-2-70B", 4): (47, 377),
        ("Falcon-180B", 8): (61, 509),
    },
}
PROMPTS = (128, 2048)


def predicted(column: str, **cells: str | int) -> float:
    row = {"id": "published", "kind": "serving"} | {name: str(cell) for name, cell in cells.items()}
    found = predict_rows([row], load_calibration(), load_gpus(), load_models())[0]
    return float(found[column])


def test_first_tokens_of_one_prompt_as_nvidia_published_them() -> None:
    ratios = []
    for (gpu, precision), models in FIRST_TOKENS_MS.items():
        for (model, tp), measured in models.items():
            for tokens, latency_ms in zip(PROMPTS, measured, strict=True):
                found = predicted(
                    "pred_ttft_ms_p50",
                    regime="single_stream_ttft",
                    engine="TensorRT-LLM",
                    engine_version="0.5",
                    model=model,
                    weight_precision=precision,
                    gpu=gpu,
                    gpus=tp,
                    tp=tp,
                    isl=tokens,
                    osl=1,
                )
                ratios.append(found / latency_ms)
    off = np.abs(np.log(np.asarray(ratios)))
    assert len(ratios) == 20
    assert np.median(off) < 0.2
    assert off.max() < np.log(1.8)


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
