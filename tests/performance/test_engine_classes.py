"""What sets classes of engines and their first releases apart."""

from __future__ import annotations

import pytest

from optimizer.calibration.table_constants import load_table_constants
from tests.performance.builders import read, values_of


@pytest.mark.parametrize(
    ("engine", "release", "among"),
    [
        ("SGLang", "0.4.3.post2", True),
        ("SGLang", "0.4.10", False),
        ("SGLang", "0.5.6", False),
        ("vLLM", "0.7.4.dev181", True),
        ("vLLM", "2025-03", True),
        ("vLLM", "2026-03", False),
        ("TensorRT-LLM", "0.17.0.post1", True),
        ("TensorRT-LLM", "1.2.0rc6", False),
        ("vLLM", "", False),
    ],
)
def test_first_releases_with_latent_caches_are_told_by_version_or_month(
    engine: str, release: str, among: bool
) -> None:
    assert (load_table_constants().early_latent("", engine, release) is not None) == among
    cells = {"engine": engine, "engine_version": release, "regime": "single_stream"}
    assert (read(model="DeepSeek-R1", **cells).early is not None) == among
    assert read(model="Llama-3.1-70B", **cells).early is None


def test_first_releases_with_latent_caches_launch_every_layer_whatever_the_batch() -> None:
    """SGLang 0.4.3 and 0.5: DeepSeek-R1 has 61 layers."""
    cells = {"model": "DeepSeek-R1", "gpu": "H200-SXM-141GB", "gpus": "8", "tp": "8", "engine": "SGLang"}
    cells |= {"isl": "512", "osl": "512", "regime": "static_batch", "weight_precision": "fp8"}
    for batch in ("1", "64"):
        asked = cells | {"concurrency_or_batch": batch}
        first, new = (values_of(read(**asked, engine_version=release)) for release in ("0.4.3", "0.5.0"))
        more = first["pred_tpot_ms_p50"] - new["pred_tpot_ms_p50"]
        assert more == pytest.approx(61 * 0.4, rel=1e-3)
        assert first["pred_ttft_ms_p50"] == pytest.approx(2.1 * new["pred_ttft_ms_p50"], rel=1e-3)


def test_a_fixed_batch_that_the_cache_cannot_hold_runs_in_waves() -> None:
    """A 7B with whole heads on A100: 0.5 MiB a cached token, 64 sequences of 4,096 tokens are 137 GB."""
    cells = {"model": "Llama-2-7B", "gpu": "A100-SXM-80GB", "gpus": "1", "tp": "1", "engine": "LMDeploy"}
    cells |= {"isl": "2048", "osl": "2048", "weight_precision": "fp16", "regime": "static_batch"}
    most, half, few = (values_of(read(**cells, concurrency_or_batch=b)) for b in ("64", "32", "16"))
    assert half["pred_ttft_ms_p50"] == pytest.approx(2 * few["pred_ttft_ms_p50"], rel=0.02)
    assert most["pred_ttft_ms_p50"] > 10 * half["pred_ttft_ms_p50"]
    assert most["pred_output_tokens_per_s_total"] < 1.1 * half["pred_output_tokens_per_s_total"]
    assert most["pred_tpot_ms_p50"] < 1.3 * half["pred_tpot_ms_p50"]


def test_packed_weights_are_read_as_fast_as_they_are_unpacked() -> None:
    """llama.cpp, an 8B in 4 bits: 2.1 times the bandwidth of an A6000 makes A100 a third faster."""
    cells = {"model": "Llama-3.1-8B", "gpus": "1", "isl": "16", "osl": "512", "regime": "single_stream"}

    def gain(**said: str) -> float:
        slow, fast = (
            values_of(read(**cells, **said, gpu=gpu))["pred_output_tokens_per_s_total"]
            for gpu in ("RTX-A6000", "A100-SXM-80GB")
        )
        return fast / slow

    assert 1.1 < gain(engine="llama.cpp", weight_precision="q4_k_m") < 1.45
    assert gain(engine="ExLlamaV2", weight_precision="int4") > 1.6
    assert gain(engine="llama.cpp", weight_precision="fp16") > 1.8
