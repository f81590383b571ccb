"""Held time: shares between 0 and 1 that only fall with size and failures; the best save is a minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.training.goodput import (
    Saving,
    checkpoint_share,
    daly_interval_s,
    failures_per_hour,
    goodput_share,
    saving,
)
from tests.performance.builders import estimator, sku, training
from tests.properties.asking import FEW, SLACK, never_falls, never_rises

CALIBRATION = load_calibration()
SIZES = st.sampled_from([1e9, 8e9, 70e9, 405e9, 1e12])


@FEW
@given(params=SIZES, interruptions=st.floats(0, 0.5), every=st.sampled_from([None, 1.0, 30.0, 240.0]))
def test_goodput_is_a_share_that_falls_with_nodes(
    params: float, interruptions: float, every: float | None
) -> None:
    """Where saves are chosen, or fixed; a given interval on few nodes may be too rare to compare."""
    nodes = as_array([1, 4, 16, 64, 256, 1024, 4096])
    failures = failures_per_hour(nodes, as_array(8), as_array(interruptions), CALIBRATION)
    plan = saving(as_array(params), nodes, as_array(8), every, failures, CALIBRATION)
    share = goodput_share(plan, failures)
    assert ((share > 0) & (share <= 1)).all()
    blocked = checkpoint_share(plan)
    assert ((blocked > 0) & (blocked < 1)).all()


@FEW
@given(
    blocking=st.floats(0.1, 100),
    interval=st.floats(60, 20000),
    restart=st.floats(0, 3600),
    mean_hours=st.floats(0.5, 5000),
)
def test_goodput_falls_with_failures_saves_and_restarts(
    blocking: float, interval: float, restart: float, mean_hours: float
) -> None:
    rates = as_array([0.2, 0.5, 1.0, 1.5, 4.0]) / mean_hours
    plan = Saving(as_array(blocking), as_array(interval), as_array(restart))
    assert never_rises(goodput_share(plan, rates))
    once = as_array(1 / mean_hours)
    for slower in (
        Saving(as_array([blocking, 2 * blocking]), as_array(interval), as_array(restart)),
        Saving(as_array(blocking), as_array(interval), as_array([restart, 2 * restart + 1])),
    ):
        assert never_rises(goodput_share(slower, once))


@FEW
@given(blocking=st.floats(0.1, 300), mean_s=st.floats(1e3, 1e7), restart=st.floats(0, 3600))
def test_dalys_interval_loses_least(blocking: float, mean_s: float, restart: float) -> None:
    """Against 400 other intervals from a thirtieth to thirty times it; the formula is a series, so 0.1 %."""
    best = daly_interval_s(as_array(blocking), as_array(mean_s))
    others = best * np.geomspace(1 / 30, 30, 400)
    cost = as_array(blocking), as_array(restart)
    failures = as_array(3600 / mean_s)
    chosen = goodput_share(Saving(cost[0], best, cost[1]), failures)
    tried = goodput_share(Saving(cost[0], others, cost[1]), failures)
    if blocking < mean_s / 2:
        assert tried.max() <= chosen * 1.001
        assert chosen > tried[0]
        assert chosen > tried[-1]


@FEW
@given(params=SIZES, nodes=st.sampled_from([1, 8, 64, 512]))
def test_the_planned_interval_is_no_worse_than_half_or_twice_of_it(params: float, nodes: int) -> None:
    """As far as writing in the background and the least interval leave a choice."""
    failures = failures_per_hour(as_array(nodes), as_array(8), as_array(0.0), CALIBRATION)
    every = (as_array(params), as_array(nodes), as_array(8))
    best = saving(*every, None, failures, CALIBRATION)
    for factor in (0.5, 2.0):
        other = saving(*every, float(best.interval_s) / 60 * factor, failures, CALIBRATION)
        assert float(goodput_share(other, failures)) <= float(goodput_share(best, failures)) * 1.001


@FEW
@given(nodes=st.sampled_from([1, 4, 32]), rate=st.floats(0, 0.2), headroom=st.floats(0, 1))
def test_hours_grow_with_tokens_headroom_and_interruptions(nodes: int, rate: float, headroom: float) -> None:
    works = [
        training("Llama-3.1-8B", tokens=tokens, headroom=room)
        for tokens, room in ((1e11, 0.0), (1e11, headroom), (3e11, headroom))
    ]
    table = estimator().training(works, [sku("H100-SXM-80GB")], [nodes])
    hours = as_array([float(table.hours_at(w, 0, 0, rate)) for w in range(3)])
    assert never_falls(hours)
    later = table.hours_at(2, 0, 0, as_array([0.0, rate, 2 * rate]))
    assert never_falls(later)
    startup = CALIBRATION.goodput.startup_s / 3600
    assert hours[2] - startup == pytest.approx(3 * (hours[1] - startup), rel=1e-9)


@FEW
@given(rate=st.floats(1e-4, 0.3))
def test_an_interruption_costs_its_restart_and_half_a_segment(rate: float) -> None:
    """Expected rework of spot: each loses (interval + save)/2 and a restart, so many as held hours bring."""
    table = estimator().training([training("Llama-3.1-8B")], [sku("H100-SXM-80GB")], [4])
    shown, calm = table.estimate(0, 0, 0, rate), table.estimate(0, 0, 0, 0.0)
    failures = failures_per_hour(as_array(4), as_array(8), as_array(rate), CALIBRATION)
    plan = saving(as_array(8.03e9), as_array(4), as_array(8), None, failures, CALIBRATION)
    lost_each = float(plan.restart_s + (plan.interval_s + plan.blocking_s) / 2)
    first_order = 1 - float(plan.blocking_s / plan.interval_s) - lost_each / 3600 * float(failures)
    assert shown["goodput"] == pytest.approx(first_order, abs=2 * (1 - first_order) ** 2 + 1e-3)
    assert shown["hours"] >= calm["hours"] * (1 / SLACK)
