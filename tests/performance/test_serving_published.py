"""Published figures of serving that no constant is fitted to: a core that follows its own tables only shows.

``fixtures/performance/published_serving.csv``, gathered on 22 and 23 November 2026: NVIDIA's performance
overview of TensorRT-LLM of 2026 (a release after those of the fits), the case study of its tuning guide,
gpt-oss-120b in vLLM on Hopper, which three threads report, and two benchmark submissions on Blackwell.
``published_open_loops.csv``: twelve open loops of vLLM 0.8.5 on a single RTX 4090 and one or two H100 PCIe,
read after the constants were chosen; NVIDIA's online table of TensorRT-LLM 0.14 behind Triton, from which it
was concluded that its releases of those years are a class of their own.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.calibration.bundled import bundled_rows
from tests.performance.outside import Figure, serving_figures

TABLE, OPEN_LOOPS, TRITON = "published_serving", "published_open_loops", "trtllm-online"


def figures(table: str = TABLE) -> tuple[Figure, ...]:
    return serving_figures(table)


def off(found: list[Figure]) -> float:
    return float(np.median(np.abs([f.ratio - 1.0 for f in found])))


def test_no_row_of_the_fits_is_here() -> None:
    fitted = {row["source_detail"] for row in bundled_rows() if row.get("source_detail")}
    assert not fitted & {f.row["source_detail"] for f in figures()}
    assert len(figures()) >= 110


def test_levels_of_dense_models_and_of_experts() -> None:
    overview = [
        f for f in figures() if f.metric == "output tokens/s" and f.row["source"] == "trtllm-docs-2026"
    ]
    dense = [f for f in overview if f.row["model"] == "Llama-3.3-70B"]
    experts = [f for f in overview if f.row["model"] != "Llama-3.3-70B"]
    assert off(dense) < 0.13
    assert off(experts) < 0.18
    assert 0.85 < np.median([f.ratio for f in figures()]) < 1.2


def test_most_published_figures_lie_in_the_interval() -> None:
    assert np.mean([f.inside for f in figures()]) > 0.6


def test_gpt_oss_in_vllm_on_hopper_from_4_to_64_in_flight() -> None:
    """Its experts are stored in 4 bits and widened: products of few tokens cost little."""
    found = [f for f in figures() if f.row["source"] == "inferencex-issue-828"]
    assert len(found) == 13
    assert off(found) < 0.07
    assert np.mean([f.inside for f in found]) >= 0.8


def test_submissions_on_blackwell() -> None:
    """Llama-2-70B in FP4: 103,000 tokens/s on eight B200, 865,000 on a rack of GB200."""
    found = [f for f in figures() if f.row["source"] == "mlperf-v5.1-told"]
    assert len(found) == 2
    assert off(found) < 0.15


@pytest.mark.parametrize("metric", ["time to first token", "time per output token"])
def test_one_request_at_a_time_in_nvidias_tuning_guide(metric: str) -> None:
    found = [f for f in figures() if f.metric == metric and f.row["regime"] == "single_stream"]
    assert len(found) == 3
    assert off(found) < 0.35


def test_time_between_tokens_of_open_loops_on_cards_with_little_power() -> None:
    found = [f for f in figures(OPEN_LOOPS) if f.row["source"] != TRITON]
    assert len(found) == 12
    assert off(found) < 0.08
    assert np.mean([f.inside for f in found]) >= 0.75


@pytest.mark.parametrize(
    ("metric", "count", "most"),
    [("time to first token", 60, 0.2), ("time per output token", 60, 0.17), ("output tokens/s", 72, 0.06)],
)
def test_nvidias_online_table_of_2024(metric: str, count: int, most: float) -> None:
    """8B and 70B on one and four H100 and H200, 500 requests at 2 to 32 a second and all at once."""
    found = [f for f in figures(OPEN_LOOPS) if f.row["source"] == TRITON and f.metric == metric]
    assert len(found) == count
    assert off(found) < most
