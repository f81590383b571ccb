"""Open loops that end: the fluid against a simulation with the same step times, limits, published rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.evaluation.evaluate import evaluate_rows
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.regimes.fluid import stay_s, trajectory_of
from optimizer.calibration.regimes.regimes import capacity, open_loop
from optimizer.calibration.regimes.short_runs import short_run
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.queueing import P90, P99, Lengths, arrivals, client_overhead
from tests.bench.calibration.bundled import bundled_rows
from tests.performance import simulation
from tests.performance.cases import (
    CASES,
    CHAT,
    ENGINE_MOST,
    LONG,
    Case,
    asked,
    asked_all,
    near,
    one,
    played,
    run_at,
)


@pytest.mark.parametrize("count", [100, 1000])
@pytest.mark.parametrize("load", [0.5, 0.9, 1.5, 4.0])
@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_run_against_the_simulation(case: Case, varied: bool, load: float, count: int) -> None:
    """At 1.5 of what the replica gives prefill is nearly full in some cases: how long prompts wait is then a
    small difference of large numbers."""
    lengths = case.lengths(0.8, 0.6) if varied else case.lengths()
    found, rate = run_at(case, lengths, load, count)
    run = played(case, lengths, rate, count)
    brink, chunked = load == 1.5, case is LONG
    assert bool(found.stable[0]) is (load < 1.0)
    assert near(one(found.tokens_per_s), count * case.tokens[1] / run.span, 0.12)
    assert near(one(found.tpot.p50), float(np.median(run.itl)), 0.55 if brink or chunked else 0.25)
    waits = one(found.ttft.p50 - client_overhead(case.served()))
    assert near(waits, float(np.median(run.ttft)), 1.3 if brink else 0.6)
    if load > 1.0:
        assert near(one(found.tpot.mean), float(run.itl.mean()), 0.65 if brink else 0.20)
        assert near(one(found.ttft.mean), float(run.ttft.mean()), 1.4 if brink else 0.6)
        p99 = one(found.ttft.quantile(P99))
        assert near(p99, float(np.percentile(run.ttft, 99)), 2.8 if brink else 0.6)


def test_a_long_run_below_saturation_is_the_steady_state() -> None:
    served, lengths = CHAT.served(), CHAT.lengths(0.6, 0.7)
    rate = 0.5 * one(capacity(served, lengths))
    ends, steady = (
        answer(served, lengths, asked(rate=rate, requests=requests))
        for answer, requests in ((short_run, 1e5), (open_loop, np.inf))
    )
    assert one(ends.tokens_per_s) == pytest.approx(one(steady.tokens_per_s), rel=0.01)
    for quantity in ("ttft", "tpot"):
        short, long = getattr(ends, quantity), getattr(steady, quantity)
        assert one(short.p50) == pytest.approx(one(long.p50), rel=0.05)
        assert one(short.quantile(P90)) == pytest.approx(one(long.quantile(P90)), rel=0.10)


def test_what_is_asked_beyond_capacity_waits_in_line() -> None:
    """N requests at λ on a replica that gives μ: the last one waits N/μ − N/λ, the median one half of it."""
    served, lengths, count = CHAT.served(), CHAT.lengths(0.6, 0.7), 20_000.0
    full = one(capacity(served, lengths))
    for load in (1.5, 3.0):
        run = short_run(served, lengths, asked(rate=load * full, requests=count))
        last_s = count / full - count / (load * full)
        assert not run.stable[0]
        assert one(run.ttft.p50) == pytest.approx(last_s / 2.0, rel=0.10)
        assert one(run.ttft.quantile(P99)) == pytest.approx(0.99 * last_s, rel=0.10)
        assert one(run.tokens_per_s) == pytest.approx(full * CHAT.tokens[1], rel=0.05)


def test_the_more_requests_the_later_first_tokens() -> None:
    served, lengths = CHAT.served(), CHAT.lengths(0.6, 0.7)
    full = one(capacity(served, lengths))
    by_rate = [
        short_run(served, lengths, asked(rate=r * full, requests=600.0)) for r in (0.2, 0.7, 1.2, 3.0, 30.0)
    ]
    by_count = [
        short_run(served, lengths, asked(rate=2.0 * full, requests=n)) for n in (10.0, 100.0, 1e3, 1e4)
    ]
    for runs in (by_rate, by_count):
        assert np.all(np.diff([one(run.ttft.mean) for run in runs]) > 0.0)
        assert np.all(np.diff([one(run.tpot.mean) for run in runs]) > -1e-3 * one(runs[0].tpot.mean))


@settings(max_examples=60, deadline=None)
@given(
    load=st.floats(0.01, 50.0),
    count=st.integers(1, 20_000),
    spread=st.floats(0.0, 1.5),
    most=st.integers(1, 512),
)
def test_nothing_is_lost_on_the_way(load: float, count: int, spread: float, most: int) -> None:
    """Requests begin after they came and end after they began, never more at a time than there are places."""
    served, lengths, places = CHAT.served(), CHAT.lengths(spread, spread), as_array([float(most)])
    known = arrivals(served, lengths)
    rate = load * most / one(stay_s(served, lengths, known, places))
    course = trajectory_of(served, lengths, asked(rate=rate, requests=float(count)), known, places)
    came = np.minimum(course.clock_s * rate, count)
    room = 1e-9 * count
    assert np.all(course.begun <= came + room)
    assert np.all(course.done <= course.begun + room)
    assert np.all(np.diff(course.done) >= -room)
    assert np.all(course.flying <= most + room)
    assert np.all(course.begun[:, :-1] - course.done[:, :-1] == pytest.approx(course.flying, abs=1e-6))
    assert course.begun[0, -1] == pytest.approx(count, rel=1e-6)
    assert course.done[0, -1] >= count - max(0.5, 0.05 * count)
    assert np.all(course.itl_s >= course.step_s)


def test_requests_that_come_at_once_have_an_answer() -> None:
    served, lengths = CHAT.served(), CHAT.lengths()
    once = short_run(served, lengths, asked(rate=np.inf, requests=200.0))
    single = short_run(served, lengths, asked(rate=1.0, requests=0.1))
    for run in (once, single):
        assert 0.0 < one(run.tpot.p50) < one(run.tpot.quantile(P99)) < np.inf
        assert 0.0 < one(run.ttft.p50) < one(run.ttft.quantile(P99)) < np.inf
        assert 0.0 < one(run.tokens_per_s) < np.inf


def test_rows_are_answered_alone_as_among_others() -> None:
    served = CHAT.served()
    rates, counts = as_array([2.0, 30.0, 90.0]), as_array([50.0, 4000.0, 300.0])
    prompt, answer = (np.full(3, float(mean)) for mean in CHAT.tokens)
    together = short_run(
        served,
        Lengths(prompt, answer, as_array([0.0, 0.6, 0.3]), as_array([0.0, 0.7, 0.064])),
        asked_all(rates, counts),
    )
    for place in range(3):
        alone = short_run(
            served,
            CHAT.lengths([0.0, 0.6, 0.3][place], [0.0, 0.7, 0.064][place]),
            asked(rate=float(rates[place]), requests=float(counts[place])),
        )
        assert one(alone.ttft.p50) == pytest.approx(float(together.ttft.p50[place]))
        assert one(alone.tpot.quantile(P99)) == pytest.approx(float(together.tpot.quantile(P99)[place]))
        assert one(alone.tokens_per_s) == pytest.approx(float(together.tokens_per_s[place]))


def test_a_run_of_few_requests_never_has_more_in_flight() -> None:
    served, lengths = CHAT.served(), CHAT.lengths()
    rate = 100.0
    few = short_run(served, lengths, asked(rate=rate, requests=20.0))
    many = open_loop(served, lengths, asked(rate=rate))
    assert one(few.tpot.mean) < one(many.tpot.mean)


@pytest.mark.parametrize("count", [40, 160, 2000])
def test_a_run_at_a_rate_lasts_until_its_last_answer(count: int) -> None:
    """Against playing it, ten times over: what the last answers take lowers the mean rate of short runs."""
    served, lengths = CHAT.served(), CHAT.lengths()
    rate = 0.2 / one(arrivals(served, lengths).prompts.work)
    found = one(short_run(served, lengths, asked(rate=rate, requests=float(count))).tokens_per_s)
    prompts, answers = (np.full(count, mean, dtype=np.int64) for mean in CHAT.tokens)
    times, rng = simulation.step_times(served, lengths), np.random.default_rng(5)
    rates = [
        CHAT.tokens[1]
        * simulation.Replica(times, prompts, answers, int(ENGINE_MOST)).open_loop(rate, rng).throughput
        for _ in range(10)
    ]
    assert near(found, float(np.mean(rates)), 0.15 if count == 40 else 0.05)
    assert (found < 0.8 * rate * CHAT.tokens[1]) is (count == 40)


def row(**more: str) -> dict[str, str]:
    told = {"gpu": "A100-SXM-80GB", "gpus": "1", "tp": "1", "model": "Llama-3.1-8B", "engine": "vLLM"}
    told |= {"engine_version": "0.10.0", "weight_precision": "bf16", "isl": "1000", "osl": "300"}
    return told | {"kind": "serving", "regime": "open_loop"} | more


def test_a_row_is_answered_as_a_run_of_its_requests() -> None:
    few, many, usual, untold = (
        cells
        for cells in predict_rows(
            [row(request_rate="40", num_requests=n) for n in ("100", "2000", "1000", "")],
            load_calibration(),
            load_gpus(),
            load_models(),
        )
    )
    firsts = [float(cells["pred_ttft_ms_p50"]) for cells in (few, many)]
    assert firsts[0] < 5000.0 < 25_000.0 < firsts[1]
    assert float(few["pred_tpot_ms_p50"]) < float(many["pred_tpot_ms_p50"])
    for cells in (few, many):
        assert "requests queue until the last one has come" in cells["note"]
        assert float(cells["pred_ttft_ms_p50_low"]) < float(cells["pred_ttft_ms_p50"])
    assert "count of requests not given, 1,000 assumed" in untold["note"]
    assert {name: untold[name] for name in untold if name != "note"} == {
        name: usual[name] for name in usual if name != "note"
    }


@pytest.mark.slow
def test_published_runs_beyond_capacity_are_a_regime_of_their_own() -> None:
    rows = [found for found in bundled_rows() if found.get("source") == "accelmark"]
    lines = evaluate_rows(rows, load_calibration(), load_gpus(), load_models()).lines
    beyond = {line.metric: line for line in lines if line.regime == "overload open_loop"}
    below = {line.metric: line for line in lines if line.regime == "open_loop"}
    assert beyond["time per output token"].rows > 250
    assert beyond["time per output token"].median_percent <= 32.0
    assert below["time per output token"].rows > 100
