"""The formulas of queueing by hand: a prompt's times, a load's, variation, and where a root is found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_models
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration, load_priors
from optimizer.performance.serving.first_token import SATURATED, Prompts, Spread, first_token
from optimizer.performance.serving.queueing import (
    TOLERANCE,
    Arrivals,
    Lengths,
    Objective,
    arrivals,
    crossing,
    crowd_cv2,
    itl_cv2,
    load_at,
    load_at_rate,
    most_under,
    rate_at,
)
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import launch_s, prefill
from tests.performance.builders import served
from tests.performance.cases import CHAT, EXPERTS, NO_HARNESS, Case, one


def lengths(prompt: float = 1000.0, answer: float = 100.0, *, input_cv: float = 0.0) -> Lengths:
    return Lengths(as_array([prompt]), as_array([answer]), as_array([input_cv]), as_array([0.0]))


def constants(**values: float) -> Calibration:
    """The priors with other constants of queueing."""
    return load_priors().with_values({f"queueing.{name}": value for name, value in values.items()})


@pytest.mark.parametrize("input_cv", [0.0, 0.5, 0.9, 1.8])
@pytest.mark.parametrize("case", [CHAT, EXPERTS])
def test_prompts_vary_as_prefills_one_deviation_apart_do(case: Case, input_cv: float) -> None:
    """Beyond 0.9 the ends are those of 0.9, and the deviation is stretched to what was asked."""
    model, tokens = case.served(), as_array([1000.0])
    prompts = arrivals(model, lengths(input_cv=input_cv)).prompts
    side = min(input_cv, 0.9)
    high, low = (prefill(model, tokens * (1.0 + sign * side)) for sign in (1.0, -1.0))
    stretch = input_cv / side / 2.0 if side else 0.0
    mean = one(prefill(model, tokens).work)
    assert one(prompts.latency_sd) == pytest.approx(one(high.latency - low.latency) * stretch)
    assert one(prompts.work_cv) == pytest.approx(one(high.work - low.work) * stretch / mean)
    assert one(prompts.work) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("model", "constant", "layers"),
    [
        ("Llama-3.1-8B", "prompt_layer_s", lambda shape: shape.layers),
        ("Mixtral-8x7B", "prompt_moe_layer_s", lambda shape: shape.layers),
        ("Qwen3-Next-80B-A3B", "prompt_state_layer_s", lambda shape: shape.states.count),
    ],
)
def test_a_prompt_waits_for_the_host_to_launch_its_layers(model: str, constant: str, layers: object) -> None:
    """A launch that takes a second hides all that the GPU does meanwhile."""
    assert callable(layers)
    count = float(layers(load_models()[model]))
    assert count > 0
    slow = served(model, tp=8, calibration=constants(**{constant: 1.0}))
    found = one(arrivals(slow, lengths()).prompts.latency)
    share = slow.engine.prompt_moe if constant == "prompt_moe_layer_s" else 1.0
    assert found == pytest.approx(count * share * slow.engine.overhead, rel=0.05)


@pytest.mark.parametrize(("case", "constant"), [(CHAT, "lone_share"), (EXPERTS, "lone_share_moe")])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_a_lone_prompt_pays_its_share_of_what_it_takes_longer_alone(
    case: Case, constant: str, share: float
) -> None:
    """Dense models by one share, models with experts by the other."""
    calibration = case.served().calibration.with_values(
        {f"queueing.{name}": 0.9 for name in ("lone_share", "lone_share_moe")}
        | {f"queueing.{constant}": share, "engines.vllm.prefill_stall_share": 0.0}
    )
    model = served(case.model, case.gpu, case.tp, precision=case.precision, calibration=calibration)
    alone = prefill(model, as_array([1000.0]))
    apart = one(alone.latency) - one(launch_s(model)) - one(alone.work) - one(alone.rank_wait)
    assert apart > 0.0
    assert one(arrivals(model, lengths()).prompts.lone_overhead) == pytest.approx(share * apart)


def test_a_lone_prompt_of_several_ranks_waits_for_none_of_itself() -> None:
    """What the other ranks wait for is counted apart from what the prompt takes longer alone."""
    all_of_it = load_priors().with_values(
        {"queueing.lone_share": 1.0, "queueing.lone_share_moe": 1.0, "engines.vllm.prefill_stall_share": 0.0}
    )
    model = served("DeepSeek-V3", dp=8, ep=8, precision="fp8", calibration=all_of_it)
    tokens = 2000.0
    alone, prompts = prefill(model, as_array([tokens])), arrivals(model, lengths(tokens)).prompts
    apart = one(alone.latency - launch_s(model)) - one(alone.work) - one(alone.rank_wait)
    assert one(alone.rank_wait) > 0.0
    assert one(prompts.lone_overhead) == pytest.approx(max(apart, 0.0))


def test_an_engine_that_stalls_pays_for_a_whole_prompt_beside_its_work() -> None:
    stalls = load_priors().with_values({"queueing.lone_share": 0.0, "engines.vllm.prefill_stall_share": 0.5})
    model = served("Llama-3.1-8B", calibration=stalls)
    prompts = arrivals(model, lengths()).prompts
    assert one(prompts.lone_overhead) == pytest.approx(0.5 * one(prompts.latency - prompts.work))


@pytest.mark.parametrize(("ranks", "steps"), [(1, 0.0), (2, 7.0)])
def test_only_several_attention_ranks_gather_prompts(ranks: int, steps: float) -> None:
    gathers = load_priors().with_values({"engines.vllm.gather_steps": 7.0})
    model = served("DeepSeek-V3", tp=1, dp=ranks, ep=ranks, precision="fp8", calibration=gathers)
    assert one(arrivals(model, lengths()).prompts.gather_steps) == steps


@pytest.mark.parametrize("batch", [0.5, 8.0, 64.0])
@pytest.mark.parametrize("overhead_s", [0.0, 0.5])
def test_a_load_is_its_steps_and_the_prompts_that_join_them(batch: float, overhead_s: float) -> None:
    """Of answers of 100 tokens. A client's own time delays the first token alone."""
    model, asked = CHAT.served(), lengths(input_cv=0.5)
    load = load_at(model, asked, as_array([batch]), as_array([overhead_s]))
    prompts = arrivals(model, asked).batched(as_array([batch]))
    work, step = one(prompts.work), one(load.step.total)
    even = step + batch * work / 100.0
    rate = batch / (100.0 * even)
    assert one(load.requests_per_s) == pytest.approx(rate)
    assert one(rate_at(model, asked, as_array([batch]), arrivals(model, asked))) == pytest.approx(rate)
    rho = rate * work
    assert one(load.prefill_load) == pytest.approx(rho)
    jitter = model.calibration.queueing.ttft_jitter
    fixed = Spread(as_array([overhead_s]), as_array([jitter * jitter]))
    first = first_token(prompts, as_array([rate]), load.step.total, as_array([-math.expm1(-batch)]), fixed)
    assert one(load.ttft.mean) == pytest.approx(one(first.mean), rel=1e-6)
    assert one(load.ttft.cv2) == pytest.approx(one(first.cv2), rel=1e-6)
    waits = one(first.mean) - overhead_s
    assert one(load.itl.mean) == pytest.approx(even + rho / (1.0 - rho) * waits / 100.0, rel=1e-6)


def test_a_client_that_is_slow_to_start_changes_no_token_after_the_first() -> None:
    quick, slow = (
        load_at(CHAT.served(), lengths(), as_array([16.0]), as_array([seconds])) for seconds in (0.0, 2.0)
    )
    assert one(slow.itl.mean) == pytest.approx(one(quick.itl.mean))
    assert one(slow.ttft.mean) - one(quick.ttft.mean) == pytest.approx(2.0)


def by_hand(alone_s: float, output_cv: float = 0.0, work_cv: float = 0.0) -> Arrivals:
    """Answers of ten tokens, of which a lone sequence's take ``alone_s`` each."""
    none, single = as_array([0.0]), as_array([1.0])
    prompts = Prompts(none, none, single, as_array([work_cv]), none, none, single, single, none)
    return Arrivals(prompts, as_array([10.0]), as_array([output_cv]), as_array([alone_s]))


@pytest.mark.parametrize(
    ("batch", "itl_s", "alone_s", "cv2"),
    [
        (4.0, 2.0, 1.0, 1.0 / 12.0),  # e = 1/2: 1/4 / 4 / (1/2) · 2/3
        (4.0, 4.0, 1.0, 3.0 / 8.0),  # e = 3/4: 9/16 / 4 / (1/4) · 2/3
        (0.5, 2.0, 1.0, 1.0 / 3.0),  # fewer than one sequence are one
        (4.0, 1.0, 1.0, 0.0),
        (4.0, 0.5, 1.0, 0.0),  # no faster than alone
        (1.0, 1.0, 0.0, 0.98**2 / 0.02 * 2.0 / 3.0),
    ],
)
def test_the_crowd_varies_as_much_as_the_latency_grows_with_it(
    batch: float, itl_s: float, alone_s: float, cv2: float
) -> None:
    assert SATURATED == 0.98
    found = crowd_cv2(as_array([batch]), as_array([itl_s]), by_hand(alone_s))
    assert one(found) == pytest.approx(cv2, abs=1e-12)


@pytest.mark.parametrize(
    ("output_cv", "work_cv", "met"),
    [(0.0, 0.0, 0.02), (0.5, 0.0, 0.025), (0.0, 0.5, 0.025), (2.0, 1.0, 0.2)],
)
def test_latency_varies_by_the_prompts_met_the_crowd_and_the_machine(
    output_cv: float, work_cv: float, met: float
) -> None:
    """Two sequences of ten tokens, a second each, and prompts of a second: ρ = 2·1/10 of the time.

    An answer meets ρ·1/10 of them, more if prompts or answers are uneven: (1 + c²) for each.
    """
    model = served("Llama-3.1-8B", calibration=constants(itl_jitter=0.3))
    known = by_hand(0.5, output_cv, work_cv)
    batch, itl = as_array([2.0]), as_array([1.0])
    crowd = one(crowd_cv2(batch, itl, known))
    assert crowd == pytest.approx(1.0 / 6.0)
    found = one(itl_cv2(model, batch, itl, known, as_array([1.0])))
    assert found == pytest.approx(met + crowd + 0.09)


def test_a_rate_at_the_limit_is_stable_and_one_above_it_is_not() -> None:
    model, asked, most = CHAT.served(), lengths(), as_array([8.0])
    edge = rate_at(model, asked, most, arrivals(model, asked))
    for share, expected in ((0.5, True), (1.0, True), (1.000001, False), (2.0, False)):
        load, stable = load_at_rate(model, asked, edge * share, most, NO_HARNESS)
        assert bool(stable[0]) is expected
        if share >= 1.0:
            assert one(load.batch) == pytest.approx(8.0)
        else:
            assert one(load.requests_per_s) == pytest.approx(one(edge) * share, rel=1e-9)


@pytest.mark.parametrize(("batch_most", "possible"), [(0.999, False), (1.0, True), (64.0, True)])
def test_a_replica_that_holds_no_whole_sequence_serves_nobody(batch_most: float, possible: bool) -> None:
    loose = Objective(as_array([np.inf]), as_array([np.inf]))
    load, found = most_under(CHAT.served(), lengths(), loose, as_array([batch_most]), 1.0, NO_HARNESS)
    assert bool(found[0]) is possible
    assert one(load.batch) == pytest.approx(batch_most)


def test_an_objective_below_a_lone_request_is_out_of_reach_and_one_at_it_is_not() -> None:
    model, asked, most = CHAT.served(), lengths(), as_array([64.0])
    idle = load_at(model, asked, as_array([0.01]), NO_HARNESS)
    for share, possible in ((0.9, False), (1.0, True), (1.5, True)):
        objective = Objective(as_array([np.inf]), idle.itl_p95_s * share)
        load, found = most_under(model, asked, objective, most, 1.0, NO_HARNESS)
        assert bool(found[0]) is possible
        if share > 1.0:
            assert one(load.itl_p95_s) == pytest.approx(one(objective.itl_p95_s), rel=1e-6)


ROOTS = as_array([0.02, 0.5, 1.0, 7.0, 31.0, 900.0])
LOW, HIGH = as_array([0.01] * 6), as_array([1000.0] * 6)


@pytest.mark.parametrize("power", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("bend", [0.0, 0.5])
def test_a_root_is_found_in_few_steps_wherever_it_lies(power: float, bend: float) -> None:
    """Powers of x are straight lines in log x; a bend makes one end of the bracket stay."""
    asked: list[Array] = []

    def rises(x: Array) -> Array:
        asked.append(x)
        share = np.log(x / ROOTS)
        bent: Array = power * share + bend * (np.exp(np.clip(share, -5.0, 5.0)) - 1.0)
        return bent

    found = crossing(rises, LOW, HIGH)
    assert found == pytest.approx(ROOTS, rel=1e-9)
    assert len(asked) <= (5 if bend == 0.0 else 17), "regula falsi with the end moved needs few"
    assert all(((x >= LOW) & (x <= HIGH)).all() for x in asked), "no step leaves the bracket"


def test_one_that_never_crosses_is_at_its_end() -> None:
    """Below throughout, above throughout, and both beside one that crosses."""
    low, high = as_array([0.1, 0.1, 0.1]), as_array([10.0, 10.0, 10.0])
    roots = as_array([100.0, 0.01, 2.0])

    def rises(x: Array) -> Array:
        return np.log(x / roots)

    assert crossing(rises, low, high) == pytest.approx(as_array([10.0, 0.1, 2.0]))
    for index, expected in ((0, 10.0), (1, 0.1)):
        only = roots[index : index + 1]
        found = crossing(lambda x, only=only: np.log(x / only), low[:1], high[:1])  # type: ignore[misc]
        assert found == pytest.approx([expected])


@pytest.mark.parametrize(("root", "steps"), [(0.1, 4), (1.0, 3), (10.0, 1)])
def test_a_root_at_an_end_or_in_the_middle_is_found_at_once(root: float, steps: int) -> None:
    """The middle of 0.1 and 10 is one, in log x."""
    asked: list[float] = []

    def rises(x: Array) -> Array:
        asked.append(one(x))
        return np.log(x) - math.log(root)

    found = crossing(rises, as_array([0.1]), as_array([10.0]))
    assert one(found) == pytest.approx(root, rel=10 * TOLERANCE)
    assert len(asked) <= steps


def test_a_jump_is_closed_in_on_until_its_sides_are_one() -> None:
    """Halving 1 to 16 in log x down to 1e-13 of it takes 45 steps; there is no zero to end at."""
    asked: list[float] = []

    def jumps(x: Array) -> Array:
        asked.append(one(x))
        return np.where(x > 3.0, 1.0, -1.0)

    found = crossing(jumps, as_array([1.0]), as_array([16.0]))
    assert one(found) == pytest.approx(3.0, rel=1e-12)
    assert len(asked) < 60


def test_rows_that_end_at_different_ends_each_have_the_load_of_theirs() -> None:
    """One objective holds for all that fit, the other for none."""
    model, most = CHAT.served(), as_array([64.0, 64.0])
    objective = Objective(as_array([np.inf, np.inf]), as_array([np.inf, 1e-9]))
    load, possible = most_under(model, lengths(), objective, most, 1.0, NO_HARNESS)
    assert load.batch == pytest.approx(as_array([64.0, 0.01]))
    assert possible.tolist() == [True, False]
    for index in (0, 1):
        alone = load_at(model, lengths(), load.batch[index : index + 1], NO_HARNESS)
        assert load.itl.mean[index] == pytest.approx(one(alone.itl.mean))


def test_cached_prefixes_leave_the_last_token_to_compute() -> None:
    whole = lengths(1000.0)
    assert one(whole.new_tokens) == 1000.0
    for share, tokens in ((0.0, 1000.0), (0.75, 250.0), (1.0, 1.0)):
        assert one(replace(whole, cached_share=as_array([share])).new_tokens) == pytest.approx(tokens)


def test_lengths_that_nobody_states_vary_as_usual_and_stated_ones_as_stated() -> None:
    model: ServedModel = served("Llama-3.1-8B", calibration=constants(input_cv=0.4, output_cv=0.7))
    unsaid = Lengths(as_array([1000.0]), as_array([100.0]))
    usual = Lengths(as_array([1000.0]), as_array([100.0]), as_array([0.4]), as_array([0.7]))
    even = lengths()
    found, same, other = (arrivals(model, asked) for asked in (unsaid, usual, even))
    assert one(found.output_cv) == one(same.output_cv) == 0.7
    assert one(found.prompts.work_cv) == pytest.approx(one(same.prompts.work_cv))
    assert one(found.prompts.work_cv) > one(other.prompts.work_cv) == 0.0
    assert one(other.output_cv) == 0.0
