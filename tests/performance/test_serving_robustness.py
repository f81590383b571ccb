"""Any plausible row gets a finite answer that physics allows: rows drawn at random over every GPU and model.

Spellings of engines and formats as people write them; prompts of 1 to 131,072 tokens, 1 to 2,048 clients.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.rows import read_rows
from optimizer.calibration.tables.serving_reading import ServingRow
from optimizer.performance.constants.calibrated import load_calibration

ROWS = 1500
ENGINES = """vLLM|vllm 0.6.3|VLLM-V1|SGLang|SGLang|TensorRT-LLM|trtllm|TRT-LLM PyTorch|llama.cpp|llama.cpp
Ollama|LMDeploy|vLLM|NIM|DeepSpeed-MII|MLC-LLM|vLLM|Triton + TensorRT|ROCm vLLM|vLLM|vLLM|"""
FORMATS = """fp16|bf16|FP8|fp8_e4m3|fp8_e5m2|int8|w8a8|W4A16|awq|GPTQ-Int4|q4_k_m|Q5_K_M|q6_k|q3_k_s|Q8_0|8bit
nvfp4|mxfp4|fp4|w4afp8|int4-awq|bitsandbytes-4bit|bf16/fp8|"""
CACHES = ("", "fp8", "fp16", "int8", "auto", "bf16", "fp8_e5m2")
REGIMES = (
    "closed_loop",
    "open_loop",
    "static_batch",
    "single_stream",
    "offline_max",
    "single_stream_ttft",
    "offline_burst",
    "open_loop_slo",
    "",
)
LOADED = ("closed_loop", "static_batch", "offline_burst", "")
CLIENTS = (1, 2, 3, 4, 8, 15, 16, 17, 32, 64, 128, 256, 512, 1024, 2048)
LEAST_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "w8a16": 1.0, "int8": 1.0, "int6": 0.8, "int5": 0.68}
FOUR_BITS = 0.43
ROUNDING = 0.9
LEAST_KEPT = 0.95  # who runs out of cache gives the engine more of the card
COLUMNS = ("output_tokens_per_s_total", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95")


def words(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


def drawn(seed: int, count: int) -> Iterator[dict[str, str]]:
    rng = random.Random(seed)
    gpus, models = sorted(load_gpus()), sorted(load_models())
    for index in range(count):
        tp, regime = rng.choice((1, 1, 2, 4, 8, 16)), rng.choice(REGIMES)
        row = {
            "id": str(index),
            "kind": "serving",
            "regime": regime,
            "engine": rng.choice(words(ENGINES)),
            "engine_version": rng.choice(("", "0.6.3", "1.0.0", "nightly", "v0.8.5.post1", "2024-05")),
            "model": rng.choice(models),
            "weight_precision": rng.choice(words(FORMATS)),
            "kv_precision": rng.choice(CACHES),
            "gpu": rng.choice(gpus),
            "gpus": str(tp * rng.choice((1, 1, 2))),
            "tp": str(tp),
            "pp": rng.choice(("", "1", "1", "2")),
            "dp": rng.choice(("", "", "1", "2", "8")),
            "ep": rng.choice(("", "", "1", "8")),
            "isl": str(rng.choice((1, 16, 128, 1000, 4096, 8192, 32768, 131072))),
            "osl": str(rng.choice((1, 2, 16, 128, 1024, 8192))),
        }
        if regime in LOADED:
            row["concurrency_or_batch"] = str(rng.choice(CLIENTS))
        if regime.startswith("open"):
            row["request_rate"] = rng.choice(("0.01", "0.5", "2", "10", "100", "inf"))
        if rng.random() < 0.3:
            row["num_requests"] = str(rng.choice((1, 10, 100, 1000)))
        yield row


@cache
def answers() -> tuple[tuple[dict[str, str], ServingRow, dict[str, float]], ...]:
    rows, calibration = list(drawn(7, ROWS)), load_calibration()
    read = read_rows(rows, calibration, load_gpus(), load_models())
    assert not read.unreadable
    found = predict_rows(rows, calibration, load_gpus(), load_models())
    return tuple((row, read.serving[i], numbers(found[i])) for i, row in enumerate(rows))


def numbers(cells: Mapping[str, str]) -> dict[str, float]:
    return {name: float(cells[f"pred_{name}"]) for name in COLUMNS if cells.get(f"pred_{name}")}


def test_every_row_has_its_figures() -> None:
    for row, read, found in answers():
        wanted = {COLUMNS[0]} if read.regime == "offline" else set(COLUMNS)
        assert wanted <= set(found), row
        assert all(0.0 < value < float("inf") for value in found.values()), row
        if "ttft_ms_p95" in found:
            assert found["ttft_ms_p95"] >= found["ttft_ms_p50"], row


def peak_flops(spec: GpuSpec) -> float:
    """The highest rate of any format, integers at four times 16 bit included."""
    wide = max(spec.bf16_tflops or 0.0, spec.fp16_tflops or 0.0)
    return 1e12 * max(4.0 * wide, spec.fp8_tflops or 0.0, spec.fp4_tflops or 0.0)


def matrix_params(model: ModelShape) -> float:
    active = model.active_params if model.is_moe else model.total_params
    return max(active - model.vocab * model.hidden * (1 if model.tie_embeddings else 2), 1.0)


def test_no_token_comes_faster_than_its_weights_are_read() -> None:
    for row, read, found in answers():
        if "tpot_ms_p50" in found:
            width = min(LEAST_BYTES.get(name, FOUR_BITS) for name in (read.dense, read.experts))
            read_s = matrix_params(read.model) * width / (load_gpus()[read.sku.gpu].hbm_gbyte_s * 1e9)
            least_ms = 1e3 * read_s / (read.tp * read.dp)
            assert found["tpot_ms_p50"] >= ROUNDING * least_ms, row


def test_no_replica_computes_beyond_its_peak() -> None:
    for row, read, found in answers():
        gpus = read.tp * read.pp * read.dp
        seconds = 2.0 * matrix_params(read.model) / (peak_flops(load_gpus()[read.sku.gpu]) * gpus)
        prompt = read.input_tokens * (1.0 - read.client.cached_share)
        if "ttft_ms_p50" in found:
            assert found["ttft_ms_p50"] >= 1e3 * seconds * prompt, row
        most = read.copies / seconds / (1.0 + prompt / read.output_tokens)
        assert found[COLUMNS[0]] <= most, row


@pytest.mark.parametrize("source", ["", "inferencemax", "accelmark"])
def test_more_clients_never_answer_sooner_nor_give_less(source: str) -> None:
    """Answers of at least 128 tokens to prompts of at most 8,192; beyond that a prompt's own wait decides
    whether it is served beside others at all."""
    singles = [row for row in drawn(3, 150) if row["regime"] in {"closed_loop", "static_batch"}]
    for row in singles:
        row.pop("num_requests", None)
        row |= {"pp": "", "dp": "", "ep": "", "gpus": row["tp"]}
        row |= {"osl": str(max(int(row["osl"]), 128)), "isl": str(min(int(row["isl"]), 8192))}
    rows = [{**row, "source": source, "concurrency_or_batch": str(c)} for row in singles for c in CLIENTS]
    found = predict_rows(rows, load_calibration(), load_gpus(), load_models())
    assert len(singles) > 20
    for start in range(0, len(rows), len(CLIENTS)):
        for fewer, more in pairwise(numbers(cells) for cells in found[start : start + len(CLIENTS)]):
            for name in ("tpot_ms_p50", "ttft_ms_p50", "output_tokens_per_s_total"):
                assert more[name] >= fewer[name] * LEAST_KEPT, (name, rows[start])
