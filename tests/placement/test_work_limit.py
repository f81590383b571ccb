"""A limit that counts work ends a search at the same step, however fast the machine is."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from broker.plan_ports import LimitClock, PlanOptions
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.runtime.stopwatch import ASK_S, Stopwatch, clock_of
from tests.placement.market import T0, offer, planner, request, serving, training

OFFERS = [offer(f"o{i}", f"{1 + i * 0.37:.2f}", nodes=2) for i in range(6)]
ASKED = request(
    *(training(f"r{i}", 6 + i) for i in range(4)), *(serving(f"s{i}", [1.0, 3.0, 2.0]) for i in range(4))
)


@pytest.mark.parametrize("limit_s", [0.03, 0.3, 3.0])
def test_equal_work_makes_equal_plans(limit_s: float) -> None:
    options = PlanOptions(limit_s, gap=0.0, baselines=False, limit_clock=LimitClock.WORK)
    first, second = (planner().plan(ASKED, OFFERS, T0, options) for _ in range(2))
    assert first == second
    assert first.solve_seconds == second.solve_seconds
    dearer = [
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour + i % 2) for i, o in enumerate(OFFERS)
    ]
    again = [planner().replan(ASKED, dearer, T0, options, WarmStart(first)) for _ in range(2)]
    assert again[0] == again[1]


def test_work_goes_on_with_questions_and_not_with_time() -> None:
    watch = Stopwatch(3 * ASK_S, clock_of(LimitClock.WORK))
    time.sleep(0.01)
    assert [watch.over() for _ in range(4)] == [False, False, True, True]
    assert watch.work_left() == 0.0
    assert Stopwatch(5.0, clock_of(LimitClock.WALL)).work_left() is None
    busy = Stopwatch(0.5, clock_of(LimitClock.CPU))
    time.sleep(0.2)
    assert busy.seconds < 0.1
