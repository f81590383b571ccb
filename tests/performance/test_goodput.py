from __future__ import annotations

import numpy as np
import pytest

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.training.goodput import (
    Saving,
    checkpoint_bytes,
    checkpoint_share,
    daly_interval_s,
    failures_per_hour,
    goodput_share,
    saving,
)

CALIBRATION = load_calibration()


@pytest.mark.parametrize(("params", "terabytes"), [(176e9, 2.3), (405e9, 5.2), (8.03e9, 0.105)])
def test_published_checkpoint_sizes(params: float, terabytes: float) -> None:
    assert float(checkpoint_bytes(as_array(params), CALIBRATION)) / 1e12 == pytest.approx(terabytes, rel=0.1)


def mean_hours(nodes: float) -> float:
    return 1.0 / float(failures_per_hour(as_array(nodes), as_array(8), as_array(0), CALIBRATION))


@pytest.mark.parametrize(
    ("nodes", "least", "most"),
    [
        (128, 7.0, 9.0),  # RSC-1: 7.9 h measured at 1,024 GPUs
        (124, 6.5, 9.5),  # OPT-175B: 7.5 h
        (2048, 1.4, 3.1),  # RSC-1: 1.8 h projected; Llama 3: 3.1 h measured
        (16384, 0.18, 0.24),  # RSC-1: 0.23 h projected at 131,072 GPUs
    ],
)
def test_published_times_between_failures(nodes: float, least: float, most: float) -> None:
    assert least < mean_hours(nodes) < most


def test_hardware_rate_is_rscs_and_software_adds_at_most_its_cap() -> None:
    """6.50 per 1,000 node-days; a node of four fails half as often as one of eight."""
    many = failures_per_hour(as_array(1e6), as_array(8), as_array(0), CALIBRATION)
    assert float(many) * 24 * 1000 / 1e6 == pytest.approx(6.5, rel=0.01)
    four, eight = (
        float(failures_per_hour(as_array(10), as_array(g), as_array(0), CALIBRATION)) for g in (4, 8)
    )
    assert four == pytest.approx(eight / 2)


def llama_3(**changes: float) -> tuple[Saving, Array]:
    """405B on 2,048 nodes at Llama 3's own rate: 419 unexpected interruptions in 54 days."""
    own = {"failures_per_node_hour": 419 / 54 / 24 / 2048, "software_failures_per_node_hour": 0.0}
    constants = CALIBRATION.with_values({f"goodput.{k}": v for k, v in (own | changes).items()})
    nodes, eight = as_array(2048), as_array(8)
    rate = failures_per_hour(nodes, eight, as_array(0), constants)
    return saving(as_array(405e9), nodes, eight, None, rate, constants), rate


def test_llama_3_spends_over_nine_tenths_on_progress() -> None:
    """MTBF 3.1 h at 16,384 GPUs, over 90 % effective; 0.91 of the model card's GPU hours."""
    plan, rate = llama_3()
    assert 1 / float(rate) == pytest.approx(3.1, abs=0.05)
    assert 0.88 < float(goodput_share(plan, rate)) < 0.95


def test_saves_that_wait_for_storage_cost_more() -> None:
    plan, rate = llama_3()
    waiting, _ = llama_3(blocking_write_share=1.0)
    assert float(plan.blocking_s) < 5.0
    assert float(waiting.blocking_s) > 60.0
    assert float(goodput_share(waiting, rate)) < float(goodput_share(plan, rate)) - 0.03


def test_blooms_save_time() -> None:
    """2.3 TB in about 40 s on 48 nodes; reloading is part of a restart."""
    eight = as_array(8)
    plan = saving(as_array(176e9), as_array(48), eight, 180.0, as_array(0.01), CALIBRATION)
    goodput = CALIBRATION.goodput
    assert float(plan.interval_s) == 180.0 * 60
    write = float(plan.restart_s) - goodput.detect_and_reschedule_s - goodput.warm_up_s
    assert 35 < write < 60


@pytest.mark.parametrize(
    ("between_h", "interval_s", "blocking_s", "restart_s"),
    [(3.1, 300, 3, 700), (8.0, 1800, 40, 900), (1.0, 900, 60, 1200), (0.4, 600, 10, 600)],
)
def test_closed_form_agrees_with_a_simulation(
    between_h: float, interval_s: float, blocking_s: float, restart_s: float
) -> None:
    """Poisson failures strike work, saves and restarts alike; what was not saved is done again."""
    mean = 3600 * between_h
    closed = float(
        goodput_share(
            Saving(as_array(blocking_s), as_array(interval_s), as_array(restart_s)), as_array(1 / between_h)
        )
    )
    random = np.random.default_rng(7)
    clock = saved = 0.0
    while saved < 4000 * mean:
        until = random.exponential(mean)
        segments = np.floor(until / (interval_s + blocking_s))
        saved += segments * interval_s
        clock += until
        while (survived := random.exponential(mean)) < restart_s:
            clock += survived
        clock += restart_s
    assert saved / clock == pytest.approx(closed, rel=0.03)


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


def test_16k_gpus_still_make_progress_at_the_cautious_rate() -> None:
    nodes, eight = as_array(2048), as_array(8)
    rate = failures_per_hour(nodes, eight, as_array(0), CALIBRATION)
    plan = saving(as_array(405e9), nodes, eight, None, rate, CALIBRATION)
    assert 0.75 < float(goodput_share(plan, rate)) < 0.92


def test_saves_are_never_closer_than_their_own_writing() -> None:
    rate = as_array(100.0)
    plan = saving(as_array(405e9), as_array(16), as_array(8), 1.0, rate, CALIBRATION)
    assert float(plan.interval_s) >= 5.2e12 / 16e9
    assert 0 < float(goodput_share(plan, rate)) < 0.1


def test_dalys_interval_ends_at_the_time_between_failures() -> None:
    """For C = M/2: √(M²)·(1 + √¼/3 + ¼/9) − M/2. From C = 2M on it is M itself."""
    means = as_array([2.0, 2.0, 2.0])
    found = daly_interval_s(as_array([1.0, 4.0, 9.0]), means)
    assert found == pytest.approx([2.0 * (1.0 + 1.0 / 6.0 + 1.0 / 36.0) - 1.0, 2.0, 2.0])


def test_a_save_blocks_its_share_of_the_running_time() -> None:
    assert checkpoint_share(Saving(as_array(10.0), as_array(90.0), as_array(5.0))) == pytest.approx(0.1)
