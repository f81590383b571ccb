"""The closed form of load, waiting and percentiles against a simulation with the same step times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.evaluation.evaluate import evaluate_rows
from optimizer.calibration.regimes.closed_loops import closed_loop
from optimizer.calibration.regimes.load import Answer, places_of, starting_together
from optimizer.calibration.regimes.regimes import offline, open_loop, single_stream
from optimizer.calibration.tables.observations import RATIO_REGIME
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.queueing import (
    P95,
    P99,
    Lengths,
    Objective,
    arrivals,
    batch_limit,
    client_overhead,
    load_at,
    load_at_rate,
    mean_context,
    met_cv2,
    met_output_tokens,
    most_under,
)
from optimizer.performance.serving.served_model import ServedModel
from tests.bench.calibration.bundled import bundled_rows
from tests.performance import simulation
from tests.performance.builders import served
from tests.performance.cases import (
    CHAT,
    DOCUMENTS,
    ENGINE_MOST,
    EXPERTS,
    LONG,
    NO_HARNESS,
    SHORT,
    SUMMARY,
    Case,
    asked,
    near,
    one,
)

OPEN = [
    *((case, rho) for case in (CHAT, SHORT, EXPERTS) for rho in (0.1, 0.2, 0.3)),
    *((SUMMARY, rho) for rho in (0.1, 0.3, 0.5)),
    *((LONG, rho) for rho in (0.1, 0.3, 0.5, 0.7, 0.85)),
]


@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize(("case", "rho"), OPEN)
def test_open_loop_against_the_simulation(case: Case, rho: float, varied: bool) -> None:
    served = case.served()
    lengths = case.lengths(0.8, 0.6) if varied else case.lengths()
    rate = rho / one(arrivals(served, lengths).prompts.work)
    load, stable = load_at_rate(served, lengths, as_array([rate]), as_array([ENGINE_MOST]), NO_HARNESS)
    assert stable[0]
    count = int(max(900, 20 * one(load.batch)))
    rng = np.random.default_rng(7)
    prompt, answer = case.tokens
    prompts = simulation.lognormal_tokens(prompt, 0.8 * varied, count, rng)
    answers = simulation.lognormal_tokens(answer, 0.6 * varied, count, rng)
    times = simulation.step_times(served, lengths)
    run = simulation.Replica(times, prompts, answers, int(ENGINE_MOST)).open_loop(rate, rng)
    ttft, itl = run.ttft[count // 5 :], run.itl[count // 5 :]
    heavy = rho > 0.5
    assert near(one(load.ttft.mean), float(ttft.mean()), 0.50 if heavy else 0.25)
    assert near(one(load.ttft.p50), float(np.median(ttft)), 0.50 if heavy else 0.25)
    assert near(one(load.ttft_p95_s), float(np.percentile(ttft, 95)), 0.80 if heavy else 0.50)
    assert near(rate, run.throughput, 0.12)
    chunked = case is LONG or rho > 0.3
    if rho <= 0.7:
        assert near(one(load.itl.mean), float(itl.mean()), 0.45 if chunked else 0.20)
        assert near(one(load.itl_p95_s), float(np.percentile(itl, 95)), 1.1 if chunked else 0.35)


@pytest.mark.parametrize("clients", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("case", [CHAT, SHORT, EXPERTS])
def test_closed_loop_against_the_simulation(case: Case, clients: int) -> None:
    served, lengths = case.served(), case.lengths(0.064, 0.064)
    rounds = 10 if clients > 8 else 40 // clients
    rng = np.random.default_rng(3)
    prompts, answers = (
        simulation.lognormal_tokens(mean, 0.064, rounds * clients, rng) for mean in case.tokens
    )
    times = simulation.step_times(served, lengths)
    run = simulation.Replica(times, prompts, answers, int(ENGINE_MOST)).closed_loop(clients)
    means, medians = (closed(served, lengths, clients, rounds, of_means) for of_means in (1.0, 0.0))
    start = one(client_overhead(served))
    assert near(one(means.ttft.p50) - start, float(run.ttft.mean()), 0.15)
    assert near(one(medians.ttft.p50) - start, float(np.median(run.ttft)), 0.30)
    assert near(one(means.tpot.p50), float(run.itl.mean()), 0.15)
    assert near(one(means.tokens_per_s) / case.tokens[1], run.throughput, 0.12)


@pytest.mark.parametrize("case", [CHAT, SUMMARY, LONG, DOCUMENTS])
def test_everything_at_once_against_the_simulation(case: Case) -> None:
    """Long prompts that join one after another leave no gaps: as if they came by chance, 12,000 tokens of
    prompt beside 60 of answer were twelve times too slow."""
    served, lengths = case.served(), case.lengths(0.064, 0.064)
    places = int(one(places_of(served, lengths)))
    count = 20 * places
    rng = np.random.default_rng(3)
    prompts, answers = (simulation.lognormal_tokens(mean, 0.064, count, rng) for mean in case.tokens)
    times = simulation.step_times(served, lengths, places + 1)
    run = simulation.Replica(times, prompts, answers, places).closed_loop(count)
    found = offline(served, lengths, asked(requests=float(count)))
    assert near(one(found.tpot.mean), float(run.itl.mean()), 0.15)
    assert near(one(found.tokens_per_s) / case.tokens[1], run.throughput, 0.05)


def closed(served: ServedModel, lengths: Lengths, clients: float, rounds: float, of_means: float) -> Answer:
    return closed_loop(served, lengths, asked(batch=clients, rounds=rounds, of_means=of_means))


@pytest.mark.parametrize("case", [CHAT, SUMMARY, SHORT])
def test_most_requests_under_an_objective_against_the_simulation(case: Case) -> None:
    served, lengths = case.served(), case.lengths(0.8, 0.6)
    idle = load_at(served, lengths, as_array([0.01]), NO_HARNESS)
    objective = Objective(2.0 * idle.ttft_p95_s, 3.0 * idle.itl_p95_s)
    found, possible = most_under(served, lengths, objective, as_array([ENGINE_MOST]), 0.9, NO_HARNESS)
    assert possible[0]
    times, count = simulation.step_times(served, lengths), 600
    kept = []
    for rate in one(found.requests_per_s) * np.linspace(0.6, 1.4, 9):
        rng = np.random.default_rng(11)
        prompts = simulation.lognormal_tokens(case.tokens[0], 0.8, count, rng)
        answers = simulation.lognormal_tokens(case.tokens[1], 0.6, count, rng)
        run = simulation.Replica(times, prompts, answers, int(ENGINE_MOST)).open_loop(float(rate), rng)
        met = np.percentile(run.ttft, 95) <= one(objective.ttft_p95_s)
        if met and np.percentile(run.itl, 95) <= one(objective.itl_p95_s):
            kept.append(float(rate))
    assert near(one(found.requests_per_s), max(kept), 0.30)


def test_most_under_agrees_with_load_at_rate() -> None:
    served, lengths = CHAT.served(), CHAT.lengths(0.8, 0.6)
    objective = Objective(as_array([0.5]), as_array([0.03]))
    most, _ = most_under(served, lengths, objective, as_array([256.0]), 0.9, NO_HARNESS)
    again, stable = load_at_rate(served, lengths, most.requests_per_s, as_array([256.0]), NO_HARNESS)
    assert stable[0]
    assert one(again.itl_p95_s) == pytest.approx(one(most.itl_p95_s), rel=1e-6)
    assert one(again.ttft_p95_s) == pytest.approx(one(most.ttft_p95_s), rel=1e-6)
    assert one(most.ttft_p95_s) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("case", [CHAT, SHORT, SUMMARY, EXPERTS, LONG])
def test_latencies_and_rate_grow_with_sequences_in_flight(case: Case) -> None:
    served = case.served()
    batch = np.geomspace(0.01, 512.0, 200)
    prompt, answer = (np.full_like(batch, value) for value in case.tokens)
    load = load_at(served, Lengths(prompt, answer), batch, np.zeros_like(batch))
    bounded = load.prefill_load <= 0.85
    for grows in (load.requests_per_s, load.itl_p95_s, load.ttft_p95_s, load.ttft.quantile(P99)):
        assert (np.diff(grows[bounded]) >= -1e-9 * grows[bounded][1:]).all()
    assert (load.ttft.p50 < load.ttft_p95_s).all()
    assert (load.ttft_p95_s < load.ttft.quantile(P99)).all()
    assert (load.itl.p50 < load.itl.quantile(P99)).all()


def test_one_client_is_a_single_stream() -> None:
    served, lengths = CHAT.served(), CHAT.lengths()
    alone = single_stream(served, lengths, asked())
    client = closed(served, lengths, 1.0, 10.0, 0.0)
    assert one(client.ttft.p50) == pytest.approx(one(alone.ttft.p50))
    assert one(client.tpot.p50) == pytest.approx(one(alone.tpot.p50))


def test_cached_prefixes_shorten_prompts_and_keep_their_cache() -> None:
    served, plain = CHAT.served(), CHAT.lengths()
    cached = Lengths(
        plain.input_tokens, plain.output_tokens, plain.input_cv, plain.output_cv, as_array([0.8])
    )
    assert one(cached.new_tokens) == pytest.approx(300.0)
    assert one(arrivals(served, cached).prompts.work) < 0.25 * one(arrivals(served, plain).prompts.work)
    assert one(batch_limit(served, cached, 1024.0)) == one(batch_limit(served, plain, 1024.0))
    loads = [load_at(served, lengths, as_array([32.0]), NO_HARNESS) for lengths in (plain, cached)]
    assert one(loads[1].ttft.mean) < one(loads[0].ttft.mean)
    assert one(loads[1].requests_per_s) > one(loads[0].requests_per_s)


@pytest.mark.parametrize(("cv", "times"), [(0.0, 1.0), (0.5, 1.25), (1.0, 2.0)])
def test_answers_in_flight_are_longer_than_answers_are(cv: float, times: float) -> None:
    """A long one is met as often as it is longer: E[x²]/E[x] = m·(1 + c²)."""
    lengths = CHAT.lengths(output_cv=cv)
    assert one(met_output_tokens(CHAT.served(), lengths)) == pytest.approx(times * CHAT.tokens[1])


@pytest.mark.parametrize(("ranks", "stages"), [(1.0, 1.0), (8.0, 1.0), (1.0, 2.0), (4.0, 2.0)])
def test_an_engine_takes_its_most_on_every_rank_and_stage(ranks: float, stages: float) -> None:
    """Each attention rank, and each stage of a pipeline, has a batch of its own."""
    served, few = CHAT.served(), 2.0
    wide = replace(served, replica=replace(served.replica, dp=as_array([ranks]), pp=as_array([stages])))
    held = one(batch_limit(wide, CHAT.lengths(), 1e9))
    assert few * ranks * stages < held, "the cache is not what limits it"
    assert one(batch_limit(wide, CHAT.lengths(), few)) == pytest.approx(few * ranks * stages)


def test_uneven_lengths_have_longer_tails() -> None:
    served, batch = CHAT.served(), as_array([16.0])
    even, uneven = (load_at(served, CHAT.lengths(cv, cv), batch, NO_HARNESS) for cv in (0.0, 0.8))
    assert one(uneven.ttft.quantile(P99)) / one(uneven.ttft.p50) > 1.3 * one(even.ttft.quantile(P99)) / one(
        even.ttft.p50
    )
    assert one(uneven.itl.cv2) > one(even.itl.cv2)


def test_means_over_a_run_hold_the_burst_it_began_with() -> None:
    served, lengths = CHAT.served(), CHAT.lengths(0.064, 0.064)
    short, long = (one(closed(served, lengths, 64.0, rounds, 1.0).ttft.p50) for rounds in (5.0, 50.0))
    assert short > 1.3 * long
    medians = [one(closed(served, lengths, 64.0, rounds, 0.0).ttft.p50) for rounds in (5.0, 50.0)]
    assert medians[0] < short
    assert medians[1] < long


def test_a_rate_chosen_at_an_objective_ends_near_it() -> None:
    served, lengths = CHAT.served(), CHAT.lengths(0.6, 0.7)
    full = one(load_at(served, lengths, as_array([ENGINE_MOST]), NO_HARNESS).requests_per_s)
    near_limit, light = (
        open_loop(served, lengths, asked(rate=rate, objective_s=0.2)) for rate in (0.95 * full, 0.1 * full)
    )
    assert near_limit.stable[0]
    assert 0.10 < one(near_limit.tpot.p50) < one(near_limit.tpot.quantile(P95)) < 0.25
    assert one(light.tpot.p50) < one(near_limit.tpot.p50)


def test_first_tokens_of_a_rate_chosen_at_an_objective_meet_theirs() -> None:
    """Above what the model sustains it says nothing of waits, and the objective does."""
    served, lengths = CHAT.served(), CHAT.lengths(0.6, 0.7)
    full = one(load_at(served, lengths, as_array([ENGINE_MOST]), NO_HARNESS).requests_per_s)
    for rate in (0.1 * full, 0.9 * full, 1.3 * full):
        loose = asked(rate=rate, objective_s=0.2)
        free, kept = (
            open_loop(served, lengths, replace(loose, first_objective_s=s)).ttft for s in (np.inf, 0.5)
        )
        assert one(kept.quantile(P99)) == pytest.approx(min(one(free.quantile(P99)), 0.5))
        assert one(kept.quantile(P95) / kept.p50) == pytest.approx(one(free.quantile(P95) / free.p50))


def test_tails_of_published_servers() -> None:
    rows = [row for row in bundled_rows() if row.get("source") == "mlperf-v4.1"]
    lines = evaluate_rows(rows, load_calibration(), load_gpus(), load_models()).lines
    tails = {line.metric: line for line in lines if line.regime == RATIO_REGIME}
    for metric in ("time to first token", "time per output token"):
        for end in ("p95", "p99"):
            assert tails[f"{metric} {end}/p50"].rows >= 30
            assert tails[f"{metric} {end}/p50"].median_percent <= 20.0


def test_prompts_that_all_find_a_place_at_once_fill_their_steps() -> None:
    """What a prompt takes beyond when it joins alone is shared by all that a step's budget takes."""
    lengths = Lengths(as_array([200.0]), as_array([200.0]))
    known = arrivals(served("Qwen3-235B-A22B", tp=8), lengths)
    joining = known.batched(as_array([64.0]))
    at_once = starting_together(known, as_array([1.0]), as_array([64.0])).batched(as_array([64.0]))
    half = starting_together(known, as_array([0.5]), as_array([64.0])).batched(as_array([64.0]))
    assert known.prompts.work < at_once.work < half.work < joining.work
    assert at_once.work == known.prompts.batched(known.prompts.in_a_step(as_array([64.0]))).work


def test_a_prompt_waits_for_the_host_to_start_two_all_reduces_a_layer() -> None:
    """Of an engine whose host takes a second to start one; on a GPU alone there is none to start."""
    slow = load_calibration().with_values({"engines.vllm.reduce_host_s": 1.0})
    two, alone = (served("Llama-3.1-8B", tp=tp, calibration=slow) for tp in (2, 1))
    lengths = Lengths(as_array([100.0]), as_array([100.0]))
    assert alone.engine.reduce_host_s == 1.0
    expected = 32 * 2.0 * alone.engine.overhead
    assert one(arrivals(two, lengths).prompts.latency) == pytest.approx(expected, rel=0.05)
    assert one(arrivals(alone, lengths).prompts.latency) < 1.0


@pytest.mark.parametrize(("output_cv", "tokens"), [(0.0, 125.0), (1.0, 150.0), (2.0, 225.0)])
def test_a_sequence_in_flight_has_its_prompt_and_half_of_an_answer_that_stays(
    output_cv: float, tokens: float
) -> None:
    """Answers of 50 tokens are met at 50·(1 + c²)."""
    lengths = Lengths(as_array([100.0]), as_array([50.0]), output_cv=as_array([output_cv]))
    assert one(mean_context(CHAT.served(), lengths)) == pytest.approx(tokens)


def test_prompts_that_an_answer_meets_vary_like_poisson_arrivals() -> None:
    """Half of the time is prefill; prompts of 2 s with a CV of ½, met in 10 s: 0.5·2·(1 + ¼)/10."""
    found = met_cv2(as_array([0.5]), as_array([2.0]), as_array([0.5]), as_array([10.0]))
    assert one(found) == pytest.approx(0.125)
