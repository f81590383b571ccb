"""Drafted tokens: how many a step brings, what they cost, where they pay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from optimizer.performance.arrays import as_array
from optimizer.performance.serving.served_model import Speculation
from tests.performance import builders

served = partial(builders.served, precision="fp8", cache_bytes=1.0)
total = partial(builders.decode_s, context=as_array(2000.0))


def speculation(drafted: float, acceptance: float, draft_share: float = 0.05) -> Speculation:
    return Speculation(as_array(drafted), as_array(acceptance), as_array(draft_share))


def test_tokens_per_step() -> None:
    assert float(speculation(3, 0.0).tokens_per_step) == pytest.approx(1.0)
    assert float(speculation(3, 1.0).tokens_per_step) == pytest.approx(4.0)
    assert float(speculation(2, 0.5).tokens_per_step) == pytest.approx(1 + 0.5 + 0.25)


def test_multi_token_prediction_gains_what_twin_runs_show() -> None:
    """DeepSeek-R1 with and without on eight GPUs at 4 to 64 in flight: 1.3 to 1.85 times."""
    plain = served("DeepSeek-R1", "B200-SXM-180GB", tp=8)
    drafted = replace(plain, speculation=speculation(2, 0.8))
    for batch in (4.0, 16.0, 64.0):
        assert 1.3 < total(plain, batch) / total(drafted, batch) < 1.95


def test_speculation_costs_where_nothing_is_accepted() -> None:
    plain = served("Llama-3.1-70B", tp=4)
    for batch in (1.0, 64.0):
        assert total(replace(plain, speculation=speculation(3, 0.0)), batch) > total(plain, batch)
        free = replace(plain, speculation=speculation(0, 0.7))
        assert total(free, batch) == pytest.approx(total(plain, batch), rel=1e-12)


def test_speculation_pays_less_in_large_batches() -> None:
    plain = served("Llama-3.1-70B", tp=4)
    drafted = replace(plain, speculation=speculation(3, 0.7))
    gains = [total(plain, batch) / total(drafted, batch) for batch in (1.0, 64.0, 512.0)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.5
