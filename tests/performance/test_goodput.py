from __future__ import annotations

import pytest

from optimizer.performance.arrays import as_array
from optimizer.performance.calibration import load_calibration
from optimizer.performance.goodput import (
    Saving,
    checkpoint_bytes,
    daly_interval_s,
    failures_per_hour,
    goodput_share,
    saving,
)

CALIBRATION = load_calibration()


@pytest.mark.parametrize(("params", "terabytes"), [(176e9, 2.3), (405e9, 5.2), (8.03e9, 0.105)])
def test_published_checkpoint_sizes(params: float, terabytes: float) -> None:
    assert float(checkpoint_bytes(as_array(params), CALIBRATION)) / 1e12 == pytest.approx(terabytes, rel=0.1)


def test_llama_3_failure_rate() -> None:
    """419 unexpected interruptions in 54 days on 2,048 nodes: 3.1 h apart; others fail 1.7x as often."""
    rate = failures_per_hour(as_array(2048), as_array(8), as_array(0), CALIBRATION)
    assert 1.5 < 1 / float(rate) < 3.5


def test_daly_is_near_young_when_failures_are_rare() -> None:
    assert float(daly_interval_s(as_array(10.0), as_array(1e6))) == pytest.approx(
        (2 * 10 * 1e6) ** 0.5, rel=0.01
    )
    assert float(daly_interval_s(as_array(10.0), as_array(4.0))) == 4.0


def test_goodput_is_near_the_first_order_formula_when_failures_are_rare() -> None:
    plan = Saving(as_array(10.0), as_array(1800.0), as_array(900.0))
    mean = 100 * 3600.0
    exact = float(goodput_share(plan, as_array(0.01)))
    assert exact == pytest.approx(1 - 10 / 1800 - (900 + 900) / mean, abs=2e-4)


def test_16k_gpus_still_make_progress() -> None:
    """Llama 3 405B reports over 90 % effective time on 16,384 GPUs."""
    rate = failures_per_hour(as_array(2048), as_array(8), as_array(0), CALIBRATION)
    plan = saving(as_array(405e9), as_array(2048), as_array(8), None, rate, CALIBRATION)
    assert 0.75 < float(goodput_share(plan, rate)) < 0.95


def test_saves_are_never_closer_than_their_own_writing() -> None:
    rate = as_array(100.0)
    plan = saving(as_array(405e9), as_array(16), as_array(8), 1.0, rate, CALIBRATION)
    assert float(plan.interval_s) >= 5.2e12 / 16e9
    assert 0 < float(goodput_share(plan, rate)) < 0.1
