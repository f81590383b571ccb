"""Waiting prompts: spreads stay positive, ranks of attention data parallelism work side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.regimes.closed_loops import burst_mean
from optimizer.calibration.regimes.load import partly_batched
from optimizer.performance.arrays import number
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.first_token import Prompts, Spread, first_token

SECONDS = st.floats(1e-4, 100.0)


def prompts_of(
    work: float,
    ranks: float = 1.0,
    steps: float = 0.5,
    lone_overhead: float = 0.0,
    rank_wait: float = 0.0,
    gather_steps: float = 0.0,
) -> Prompts:
    parts = (1.2 * work, 0.3 * work, work, 0.3, lone_overhead, rank_wait, steps, ranks, gather_steps)
    return Prompts(*(number(part) for part in parts))


@given(
    work=SECONDS, step=SECONDS, load=st.floats(0.0, 3.0), busy=st.floats(0.0, 1.0), steps=st.floats(0.01, 8.0)
)
def test_a_first_token_is_never_less_than_certain(
    work: float, step: float, load: float, busy: float, steps: float
) -> None:
    """At any load, also where prompts take far longer than steps: E[S³]·E[S] is at least E[S²]²."""
    fixed = Spread(number(0.01), number(0.0))
    found = first_token(prompts_of(work, steps=steps), number(load / work), number(step), number(busy), fixed)
    assert found.cv2 >= 0.0
    assert found.mean >= 1.2 * work
    assert found.quantile(1.645) >= found.p50 > 0.0


@pytest.mark.parametrize(("steps", "of_eight"), [(0.25, 8.0), (1.0, 8.0), (4.0, 8.0)])
def test_a_step_of_eight_ranks_takes_eight_times_as_many_prompts(steps: float, of_eight: float) -> None:
    one, eight = (prompts_of(1.0, ranks, steps).in_a_step(number(1000.0)) for ranks in (1.0, 8.0))
    assert eight / one == pytest.approx(of_eight)
    assert prompts_of(1.0, 8.0, steps).in_a_step(number(3.0)) == pytest.approx(3.0)


def test_a_burst_on_eight_ranks_is_not_worked_off_one_by_one() -> None:
    one, eight = (prompts_of(1.0, ranks, 1.0, lone_overhead=6.0) for ranks in (1.0, 8.0))
    assert burst_mean(eight, number(64.0), number(0.1)) < 0.6 * burst_mean(one, number(64.0), number(0.1))


def test_a_lone_prompt_is_waited_for_by_all_ranks() -> None:
    """Ranks step together: one prompt in a step costs all of them its time, many at once share theirs."""
    eight = prompts_of(1.0, 8.0, lone_overhead=2.0, rank_wait=7.0)
    seldom, often = (float(eight.batched(number(k)).work) for k in (1e-9, 100.0))
    assert seldom == pytest.approx(1.0 + 2.0 + 7.0)
    assert often == pytest.approx(1.0 + 2.0 / 100.0 + 7.0 / 100.0)
    one = prompts_of(1.0, 1.0, lone_overhead=2.0, rank_wait=7.0)
    assert one.batched(number(1e-9)).work == pytest.approx(3.0), "nobody else is there"


@given(low=st.floats(1e-6, 50.0), more=st.floats(1.0, 10.0), gather_steps=st.sampled_from((0.0, 50.0)))
def test_more_prompts_in_a_step_cost_each_no_more(low: float, more: float, gather_steps: float) -> None:
    eight = prompts_of(1.0, 8.0, lone_overhead=2.0, rank_wait=7.0, gather_steps=gather_steps)
    assert eight.batched(number(low * more)).work <= eight.batched(number(low)).work


def test_prompts_that_gather_come_as_many_as_ranks_and_wait_for_it() -> None:
    apart, gathering = (
        prompts_of(1.0, 8.0, lone_overhead=2.0, rank_wait=7.0, gather_steps=g) for g in (0.0, 50.0)
    )
    assert gathering.batched(number(0.1)).work == pytest.approx(apart.batched(number(8.0)).work)
    fixed = Spread(number(0.01), number(0.0))
    first = [
        float(first_token(p, number(0.01), number(0.02), number(1.0), fixed).mean) for p in (apart, gathering)
    ]
    assert first[1] - first[0] == pytest.approx(50.0 * 0.02)


def test_part_of_the_prompts_may_come_together() -> None:
    eight = prompts_of(1.0, 8.0, lone_overhead=2.0, rank_wait=7.0)
    half = partly_batched(eight, number(0.5), number(16.0))
    assert half.work == pytest.approx((1.0 + eight.batched(number(16.0)).work) / 2.0)
    assert (float(half.lone_overhead), float(half.rank_wait)) == (1.0, 3.5)
    assert partly_batched(eight, number(0.0), number(16.0)) == eight


def test_long_prompts_on_attention_ranks_are_not_served_as_if_one_worked() -> None:
    """GLM-5.2 on eight B200 in SGLang, 8,192 tokens in and 1,024 out, 1,024 clients: 3,600 tokens/s and more
    were measured, 1,400 predicted while only one rank's prompts counted."""
    row = {"kind": "serving", "engine": "SGLang", "model": "GLM-5.2", "weight_precision": "fp8"}
    row |= {
        "gpu": "B200-SXM-180GB",
        "gpus": "8",
        "tp": "1",
        "dp": "8",
        "ep": "8",
        "isl": "8192",
        "osl": "1024",
    }
    row |= {"regime": "closed_loop", "concurrency_or_batch": "1024", "num_requests": "2048"}
    found = predict_rows([row], load_calibration(), load_gpus(), load_models())[0]
    assert 2300.0 < float(found["pred_output_tokens_per_s_total"]) < 5700.0
