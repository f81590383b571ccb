"""Stacks and engines that workloads name: whose constants count, and on which GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import (
    Batch,
    Measurement,
    Precision,
    Serving,
    ServingEngine,
    TrainingStack,
)
from optimizer.calibration.table_constants import load_table_constants
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.training.estimate import software_of
from tests.performance.builders import batch, estimator, serving, sku, training

H100, MI300X = sku("H100-SXM-80GB"), sku("MI300X-192GB")


def test_every_stack_and_engine_has_constants() -> None:
    calibration = load_calibration()
    assert {software_of(training("Llama-3.1-8B", software=stack)) for stack in TrainingStack} <= set(
        calibration.software
    )
    assert {engine.value for engine in ServingEngine} <= set(calibration.engines)
    assert training("Llama-3.1-8B").software.value == calibration.default_software
    assert serving("Llama-3.1-8B").engine.value == calibration.default_engine


def test_stacks_take_the_order_that_published_runs_have() -> None:
    """Fitted slowdowns: tuned 1.04, sharded 1.17, eager 1.29 (``config/performance_fitted.toml``)."""
    stacks = (TrainingStack.TUNED, TrainingStack.FSDP, TrainingStack.EAGER)
    runs = [training("Llama-3.1-8B", software=stack) for stack in stacks]
    hours = estimator().training(runs, [H100], [1, 2, 4]).hours[:, 0]
    assert (np.diff(hours, axis=0) > 0).all()
    assert (hours[1] / hours[0] > 1.05).all()
    assert (hours[2] / hours[0] < 2.0).all()


def test_runs_in_fp4_have_a_place_on_blackwell_alone() -> None:
    """NVFP4 over FP8 as published: 1.36 for 405B on GB200, 1.13 to 1.37 for 70B; nobody published AMD's."""
    cards = [sku(gpu) for gpu in ("B200-SXM-180GB", "GB300-288GB", "H200-SXM-141GB", "MI355X-288GB")]
    eight, four = (training("Llama-3.1-70B", precision=form) for form in (Precision.FP8, Precision.FP4))
    table = estimator().training([eight, four], cards, [8, 16])
    assert np.isfinite(table.hours[0]).all()
    assert np.isfinite(table.hours[1]).all(axis=1).tolist() == [True, True, False, False]
    gains = table.hours[0, :2] / table.hours[1, :2]
    assert ((gains > 1.03) & (gains < 1.5)).all()


def test_an_own_figure_of_a_run_in_fp4_counts_where_it_may_run() -> None:
    measured = (Measurement("B200-SXM-180GB", 64, tokens_per_s=3.0e5),)
    run = training("Llama-3.1-70B", precision=Precision.FP4, measured=measured)
    hours = estimator().training([run], [sku("B200-SXM-180GB")], [8]).hours[0, 0, 0]
    assert hours == pytest.approx(run.tokens / 3.0e5 / 3600.0, rel=0.1)


def test_zero_counts_as_sharding() -> None:
    """As published rows of DeepSpeed do that are not Megatron-DeepSpeed's of 2022."""
    assert load_table_constants().software_of("deepspeed zero-3") == "fsdp"
    zero, sharded = (
        training("Llama-3.1-8B", software=one) for one in (TrainingStack.DEEPSPEED, TrainingStack.FSDP)
    )
    assert software_of(zero) == software_of(sharded)


def test_runs_that_differ_in_their_stack_alone_are_searched_apart() -> None:
    runs = [training("Llama-3.1-8B", software=stack) for stack in TrainingStack]
    together = estimator().training(runs, [H100], [2]).hours
    for run, hours in zip(runs, together, strict=True):
        assert hours == pytest.approx(estimator().training([run], [H100], [2]).hours[0], rel=1e-12)


@pytest.mark.parametrize("engine", list(ServingEngine))
def test_engines_beside_each_other_answer_as_alone(engine: ServingEngine) -> None:
    works = [serving("Llama-3.1-70B", engine=one) for one in ServingEngine]
    works_and_batch: list[Serving | Batch] = [*works, batch("Llama-3.1-8B", engine=engine)]
    place = list(ServingEngine).index(engine)
    together = estimator().serving(works_and_batch, [H100, MI300X]).requests_per_s
    for row in (place, len(works)):
        alone = estimator().serving([works_and_batch[row]], [H100, MI300X]).requests_per_s
        assert together[row] == pytest.approx(alone[0], rel=1e-12)


def test_engines_differ_on_the_same_card() -> None:
    works = [serving("Llama-3.1-70B", engine=one) for one in ServingEngine]
    rates = estimator().serving(works, [H100]).requests_per_s.max(axis=(1, 2))
    assert len(set(rates.round(6).tolist())) == len(works)
    assert rates.max() / rates.min() < 1.6


def test_tensorrt_llm_serves_on_nvidia_s_cards_alone() -> None:
    """Not even where the team measured it, which must be a slip."""
    measured = (Measurement("MI300X-192GB", 8, requests_per_s=50.0),)
    work = serving("Llama-3.1-8B", engine=ServingEngine.TENSORRT_LLM, measured=measured)
    table = estimator().serving([work], [H100, MI300X])
    assert table.fits[0, 0].any()
    assert not table.fits[0, 1].any()
    assert table.obstacle(0, 1) is Obstacle.PRECISION


def test_vllm_on_amd_counts_as_its_rocm_build() -> None:
    """As its published rows do: longer steps of full batches, shorter prompts."""
    calibration = load_calibration()
    as_vllm = replace(calibration, engines={**calibration.engines, "rocm": calibration.engines["vllm"]})
    work = serving("Llama-3.1-70B")
    found = estimator().serving([work], [H100, MI300X]).requests_per_s.max(axis=2)[0]
    other = Estimator(load_gpus(), as_vllm).serving([work], [H100, MI300X]).requests_per_s.max(axis=2)[0]
    assert found[0] == pytest.approx(other[0], rel=1e-12)
    assert found[1] != pytest.approx(other[1], rel=1e-3)


def test_single_answers_name_the_engine_too() -> None:
    work: Serving = serving("Llama-3.1-70B", engine=ServingEngine.SGLANG)
    table = estimator().serving([work, serving("Llama-3.1-70B")], [H100])
    place = int(np.flatnonzero(table.fits[0, 0])[0])
    config, layout = table.configs[place], table.layout(0, 0, place)
    asked = estimator().serving_at(work, H100, config.precision, layout, 10.0)
    assert asked == table.estimate(0, 0, place, 10.0)
    assert asked != table.estimate(1, 0, place, 10.0)
