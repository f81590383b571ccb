"""What simpler strategies cost: honest, never below the plan's bound, and None with a reason."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from functools import partial
from itertools import pairwise

import pytest

from broker.domain.planning.plan import Baseline, Plan
from broker.ports.planning import LimitClock, PlanOptions, Progress
from optimizer.placement.runtime.heartbeat import BEAT_SECONDS, with_heartbeat
from optimizer.placement.runtime.stopwatch import Stopwatch, WorkClock
from tests.placement.market import T0, offer, plan, planner, request, serving, training


def _by_name(found: Plan) -> dict[str, Baseline]:
    return {baseline.name: baseline for baseline in found.baselines}


OFFERS = [
    offer("big", "4.00", provider="p", gpu="BIG", gpus=2, joined=8),
    offer("big2", "4.40", provider="q", gpu="BIG", gpus=2, joined=8),
    offer("tiny", "0.60", provider="p", gpu="TINY"),
    offer("mid", "1.20", provider="q", gpu="MID", zone="b"),
]


def test_every_baseline_is_told_and_none_beats_the_bound() -> None:
    asked = request(training(gpu_hours=200), serving(hourly=[1.0, 3.0, 5.0, 3.0]))
    found = plan(asked, OFFERS, baselines=True)
    baselines = _by_name(found)
    assert set(baselines) == {"single_shape", "single_provider", "cheapest_gpu_hour", "converged"}
    assert found.bound_usd is not None
    for baseline in baselines.values():
        assert baseline.why
        assert baseline.cost_usd is None or baseline.cost_usd >= found.bound_usd
    assert baselines["single_shape"].cost_usd is not None
    assert baselines["converged"].cost_usd is not None
    assert baselines["converged"].cost_usd > found.cost_usd


def test_a_busy_machine_tells_the_same_saving_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of groups count work: seconds that pass more quickly change nothing, until they end them."""
    asked = request(serving("x", [1.0, 3.0]), serving("y", [2.0]), training(gpu_hours=200))
    began, told = time.monotonic(), []
    for factor in (0.2, 3.0):
        passed = partial(lambda times: times * (time.monotonic() - began), factor)
        monkeypatch.setattr("optimizer.placement.pipeline.clock_of", lambda _kind, clock=passed: clock)
        told.append(_by_name(plan(asked, OFFERS, baselines=True, time_limit_s=30.0)))
    assert told[0] == told[1]
    assert told[0]["single_shape"].cost_usd is not None


def test_a_clock_of_work_counts_turns_until_it_is_ended() -> None:
    over: list[bool] = []
    watch = Stopwatch(1.0, WorkClock(0.25, lambda: bool(over)))
    assert [watch.over() for _ in range(4)] == [False, False, False, True]
    watch.limit_s = 100.0
    assert not watch.over()
    over.append(True)
    assert watch.over()
    assert watch.work_left() == 0.0


def test_a_strategy_that_cannot_run_says_why() -> None:
    asked = request(training(gpu_hours=200), serving(hourly=[3.0], zones=2))
    baselines = _by_name(plan(asked, OFFERS[:1] + OFFERS[2:], baselines=True))
    assert baselines["single_shape"].cost_usd is None
    assert "stock and zones for all together" in baselines["single_shape"].why


def test_a_plan_of_nothing_is_compared_with_nothing() -> None:
    asked = request(training(gpu_hours=100, unplaced_usd=Decimal("1.00")))
    for baseline in plan(asked, OFFERS, baselines=True).baselines:
        assert baseline.cost_usd is None
        assert "places nothing" in baseline.why


def test_a_strategy_may_pass_the_budget_and_says_so() -> None:
    asked = request(serving(hourly=[1.0]), budget_usd=Decimal("30.00"))
    found = plan(asked, [offer("a", "0.60", gpu="TINY"), offer("b", "0.90", gpus=4)], baselines=True)
    assert found.cost_usd == Decimal("28.80")
    assert "$13.20 over the budget" in _by_name(found)["cheapest_gpu_hour"].why


def test_every_group_is_tried_that_could_be_cheaper() -> None:
    offers = [offer(f"o{i}", f"{2 - i / 20:.2f}", provider=f"p{i:02}", gpu="TINY") for i in range(20)]
    asked = request(training(gpu_hours=2), serving(hourly=[1.0, 2.0]))
    found = _by_name(plan(asked, offers, baselines=True))["single_provider"]
    assert found.cost_usd is not None
    assert "p19" in found.why


def test_progress_speaks_while_the_work_is_silent() -> None:
    """Work that tells nothing until its caller has heard of it four times: it would wait for ever."""
    heard: list[Progress] = []
    often = threading.Event()

    def hear(progress: Progress) -> None:
        heard.append(progress)
        if len(heard) == 4:
            often.set()

    watch = Stopwatch(600.0)
    assert with_heartbeat(lambda _: often.wait(60), watch, hear)
    seconds = [progress.seconds for progress in heard]
    assert seconds == sorted(set(seconds))
    assert BEAT_SECONDS <= 0.5, "a second is promised, and a busy machine wakes the caller late"


def test_no_step_of_a_search_keeps_the_caller_from_speaking() -> None:
    """Counted in the processor's seconds: those of a machine that is busy elsewhere are not ours."""
    seen: list[tuple[float, Progress]] = []
    runs = [training(f"r{i}", 5 + i % 7, unplaced_usd=Decimal("30")) for i in range(20)]
    services = [serving(f"s{i}", [1.0 + i, 4.0, 2.0]) for i in range(6)]
    offers = [offer(f"o{i}", f"{1 + i / 9:.2f}", nodes=2, zone=str(i % 3)) for i in range(30)]
    options = PlanOptions(time_limit_s=4.0, gap=0.0, baselines=False)
    began = time.process_time()
    planner().plan(
        request(*runs, *services),
        offers,
        T0,
        options,
        lambda p: seen.append((time.process_time() - began, p)),
    )
    times = [0.0, *(at for at, _ in seen)]
    assert max(b - a for a, b in pairwise(times)) < 1.0
    assert all(p.gap is not None for _, p in seen if p.incumbent_usd is not None)


def test_without_wish_no_baselines() -> None:
    assert plan(request(training()), OFFERS).baselines == ()


def test_the_converged_pool_is_the_peak_of_everything() -> None:
    asked = request(training(gpu_hours=10), serving(hourly=[3.0, 7.0]))
    found = plan(asked, [offer("a", "1.00")], baselines=True)
    assert _by_name(found)["converged"].cost_usd == Decimal("144.00")
    assert "3 nodes of BIG x1" in _by_name(found)["converged"].why


def test_progress_tells_incumbent_and_bound_in_order() -> None:
    seen: list[Progress] = []
    asked = request(training(gpu_hours=20), training("other", 7), serving(hourly=[1.0, 3.0]))
    planner().plan(asked, OFFERS, T0, PlanOptions(time_limit_s=5, baselines=False), seen.append)
    bounds = [p.bound_usd for p in seen if p.bound_usd is not None]
    incumbents = [p.incumbent_usd for p in seen if p.incumbent_usd is not None]
    assert bounds == sorted(bounds)
    assert incumbents == sorted(incumbents, reverse=True)
    assert seen[-1].gap is not None


def test_the_time_limit_is_kept() -> None:
    runs = [training(f"r{i}", 5 + i % 7, unplaced_usd=Decimal("30")) for i in range(20)]
    services = [serving(f"s{i}", [1.0 + i, 4.0, 2.0]) for i in range(5)]
    offers = [offer(f"o{i}", f"{1 + i / 9:.2f}", nodes=2, zone=str(i % 3)) for i in range(30)]
    found = plan(request(*runs, *services), offers, time_limit_s=3.0, limit_clock=LimitClock.CPU)
    assert found.solve_seconds < 3.5
    assert found.placements
