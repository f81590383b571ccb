"""What users of benchmark tools reported: sources that no constant was fitted to.

``fixtures/performance/reported_*.csv``, gathered on 22 to 24 November 2026 from issues, pull requests, labs'
and vendors' pages: mostly whole runs of ShareGPT or of drawn lengths that send everything at once. The forms
of finite runs, workspaces and first releases were chosen after a look at the first of them. All their
figures: ``python -m tests.bench.reported``.
"""

from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_models
from optimizer.calibration.tables.names import known_model
from tests.bench.calibration.bundled import bundled_rows
from tests.performance.outside import (
    STEP,
    Figure,
    cache_figures,
    collective_figures,
    rows_of,
    serving_figures,
    training_figures,
)

RATES, GAPS, FIRST = "output tokens/s", "time per output token", "time to first token"
LATENT = ("DeepSeek-V", "DeepSeek-R1", "Kimi", "GLM-5")


def of(metric: str, regime: str) -> list[Figure]:
    """Without models with latent caches, whose first releases were slow in ways of their own."""
    return [
        f
        for f in serving_figures("reported_serving")
        if f.metric == metric
        and f.row["regime"] == regime
        and ("Distill" in f.row["model"] or not f.row["model"].startswith(LATENT))
    ]


def off(found: list[Figure]) -> float:
    return float(np.median(np.abs([f.ratio - 1.0 for f in found])))


def test_no_row_of_the_fits_is_here() -> None:
    fitted = {row["source_detail"] for row in bundled_rows() if row.get("source_detail")}
    assert not fitted & {row["source_detail"] for row in rows_of("reported_serving")}
    assert len(serving_figures("reported_serving")) > 450


@pytest.mark.parametrize(
    ("metric", "regime", "most"),
    [
        (RATES, "offline_max", 0.22),
        (RATES, "closed_loop", 0.15),
        (RATES, "single_stream", 0.17),
        (RATES, "static_batch", 0.15),
        (GAPS, "offline_max", 0.40),
        (GAPS, "closed_loop", 0.18),
        (GAPS, "open_loop", 0.22),
        (GAPS, "single_stream", 0.18),
        (FIRST, "closed_loop", 0.24),
    ],
)
def test_levels(metric: str, regime: str, most: float) -> None:
    found = of(metric, regime)
    assert len(found) >= 8
    assert off(found) < most


@pytest.mark.parametrize(("metric", "most"), [(RATES, 0.14), (GAPS, 0.27), (FIRST, 0.30)])
def test_models_whose_layers_keep_states(metric: str, most: float) -> None:
    """Qwen3-Next to 3.6, Nemotron-3 and LFM2 in vLLM and SGLang on H20 to MI355X, 1 to 1,024 clients: read
    when their layers had a form, before SGLang's pool of states had one (then up to 1.7 times too fast)."""
    found = [f for f in of(metric, "closed_loop") if _keeps_states(f)]
    assert len(found) >= 40
    assert off(found) < most
    assert 0.75 < np.median([f.ratio for f in found]) < 1.2


def _keeps_states(figure: Figure) -> bool:
    model = known_model(figure.row["model"], load_models())
    return model is not None and model.states.count > 0


def test_attention_ranks_beside_each_other() -> None:
    """GLM-5.2 and DeepSeek-V3.2 over eight attention ranks in SGLang, prompts of 200 to 32,000 tokens: long
    ones were predicted at 0.4 to 0.7 of the measured rate while one rank's prompts held up the others."""
    found = [
        f.ratio
        for f in serving_figures("reported_serving")
        if f.metric == RATES and f.row["dp"] == "8" and f.row["model"].startswith(("GLM-5", "DeepSeek-V3.2"))
    ]
    assert len(found) >= 20
    assert 0.9 < np.median(found) < 1.4


def test_attention_ranks_leave_each_other_less_cache() -> None:
    """GLM-5.2 over eight ranks of H200 in SGLang, 512 clients of 8,204 tokens: 26 to 146 in flight by the
    share of memory, 194 predicted (2.2 times the time between tokens) before each rank took its part."""
    found = [
        f.ratio
        for f in serving_figures("reported_serving")
        if f.metric == GAPS and f.row["source"] == "gpustack-glm52-h200" and f.row["dp"] == "8"
    ]
    assert len(found) >= 8
    assert 0.8 < np.median(found) < 1.5


def test_runs_that_send_everything_at_once_are_not_predicted_as_if_they_never_ended() -> None:
    """ShareGPT, 320 to 5,000 requests: 1.4 to 2.2 times too fast before a run's end followed from lengths."""
    found = [f for f in of(RATES, "offline_max") if "sharegpt" in f.row["notes"].lower()]
    assert len(found) >= 50
    assert 0.9 < np.median([f.ratio for f in found]) < 1.25


@pytest.mark.parametrize(("metric", "most"), [(RATES, 0.14), (GAPS, 0.19), (FIRST, 0.26)])
def test_first_releases_with_latent_caches(metric: str, most: float) -> None:
    """DeepSeek-R1 in vLLM, SGLang and TensorRT-LLM of early 2025: launches of every layer came on top."""
    found = [
        f
        for f in serving_figures("reported_serving")
        if f.row["source"] == "dstack-deepseek-r1" and f.metric == metric
    ]
    assert len(found) >= 20
    assert off(found) < most


@pytest.mark.parametrize(("metric", "most"), [(RATES, 0.07), (GAPS, 0.10), (FIRST, 0.25)])
def test_fixed_batches_of_lmdeploy(metric: str, most: float) -> None:
    """Four models on A100, 1 to 64 sequences; some batches do not fit the cache at once."""
    found = [
        f
        for f in serving_figures("reported_serving")
        if f.row["source"] == "lmdeploy-a100" and f.metric == metric and f.row["regime"] == "static_batch"
    ]
    assert len(found) == 80
    assert off(found) < most


def test_a_lone_prompt_to_experts_waits_for_the_host_in_sglang() -> None:
    """One prompt on eight B200 or MI300X, SGLang 0.5.6 to 0.5.9: 610 tokens take 60 to 160 ms, 4,194 as long.
    Two thirds of it before its layers with experts were counted as slower to start than others' are."""
    found = [
        f.ratio
        for f in serving_figures("reported_serving")
        if f.metric == "time to first token"
        and f.row["regime"] == "single_stream"
        and f.row["source"].startswith("sglang-cookbook")
        and float(f.row["isl"]) > 600
    ]
    assert len(found) >= 10
    assert 0.7 < np.median(found) < 1.2


def test_caches_that_engines_printed() -> None:
    found = list(cache_figures("reported_kv_capacity"))
    assert len(found) >= 8
    assert off(found) < 0.04


def test_collectives_of_other_clusters() -> None:
    """All-reduces on A100 to B200 and MI300X to MI355X, one to sixteen nodes."""
    found = [
        f
        for f in collective_figures("reported_collectives")
        if f.metric == "all_reduce" and "GB200" not in f.row["system"]
    ]
    assert len(found) >= 60
    assert off(found) < 0.15


@pytest.mark.parametrize(
    ("sources", "most"),
    [
        (("nemo-2407", "gcp-a4x-megatron-gb200", "swiss-ai-gh200", "megatron-lm-llama-fp8"), 0.08),
        (("mlperf-train-v5.0",), 0.08),
        (("mlperf-train-v4.0",), 0.12),
        (("torchtitan-h100-500w", "torchtitan-trainy-h200", "xtuner-speed"), 0.20),
        (("orcd-primus-mi355x", "primus-mi300x-dev", "llm.c-scripts", "marin-gb200"), 0.15),
        (("jax-toolbox-pax", "flagperf", "oneflow-dlperf-v100", "vectorlm-a100"), 0.22),
    ],
)
def test_steps_of_training(sources: tuple[str, ...], most: float) -> None:
    figures = training_figures("reported_training")
    found = [f for f in figures if f.metric == STEP and f.row["source"] in sources]
    assert len(found) >= 8
    assert off(found) < most
