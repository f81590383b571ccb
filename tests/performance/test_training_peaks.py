"""Peaks of memory of sources that no constant was fitted to (``python -m tests.bench.reported``).

What a peak is differs by source, allocator's or driver's, and so does what a recipe leaves untold: a tenth to
a fifth of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.performance.outside import PEAK, Figure, training_figures


def peaks(source: str, framework: str = "", **cells: str) -> list[float]:
    """Predicted over told, of the rows of a source whose cells are as asked."""

    def asked(figure: Figure) -> bool:
        row = figure.row
        same = all(row[name] == value for name, value in cells.items())
        return figure.metric == PEAK and row["source"] == source and framework in row["framework"] and same

    found = [figure.ratio for figure in training_figures("reported_training") if asked(figure)]
    assert found
    return found


def test_torchtitan_s_8b_with_selective_recompute() -> None:
    """8 and 128 H100 at two sequences each: 82.4 to 61.8 GiB, 1.6 times too much when all was kept."""
    found = peaks("torchtitan-h100-500w", recompute="selective")
    assert len(found) == 6
    assert max(np.abs(np.asarray(found) - 1.0)) < 0.08


@pytest.mark.parametrize(
    ("source", "framework", "least", "most"),
    [
        ("swiss-ai-gh200", "Megatron-LM", 0.95, 1.2),
        ("flagperf", "Megatron-Core", 0.78, 1.05),
        ("flagperf", "PaddleNLP", 0.80, 1.15),
        ("primus-mi300x-dev", "Megatron-LM", 0.8, 1.0),
        ("gpt2-runpod", "", 1.0, 1.1),
        ("qwen-readme", "", 0.75, 1.0),
    ],
)
def test_peaks_of_other_sources(source: str, framework: str, least: float, most: float) -> None:
    assert least < np.median(peaks(source, framework)) < most


def test_data_parallel_ranks_of_2021_shared_nothing() -> None:
    """OneFlow's GPT on 8 to 32 V100 of 16 GB; half of it when their optimizer states were shared."""
    found = peaks("oneflow-dlperf-v100", tp="1", pp="1", model="GPT-1536x16")
    assert len(found) == 4
    assert max(np.abs(np.asarray(found) - 1.0)) < 0.2
