"""The quick ways give what the plain ones give: one case in plain numbers, pruned and shared searches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.domain.planning.workload import (
    Batch,
    Measurement,
    Precision,
    Serving,
    ServingEngine,
    Slo,
    Training,
    TrainingStack,
)
from optimizer.memo_cache import MemoCache
from optimizer.performance import elementwise
from optimizer.performance.arrays import as_array, number, smooth_max
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.queueing import crossing
from optimizer.performance.training.estimate import TrainingCore, has_layout
from optimizer.performance.training.layouts import enumerate_layouts
from optimizer.performance.training.step import step
from tests.performance.builders import batch, estimator, serving, sku, training

COUNTS = [1, 2, 3, 4, 8]
MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3", "gpt-oss-20b", "Qwen3-32B")


def drawn_skus(rng: random.Random, count: int) -> list[Sku]:
    fabrics = (None, Fabric(FabricKind.INFINIBAND, 3200, 64), Fabric(FabricKind.ETHERNET, 100, 2))
    return [
        sku(
            rng.choice(sorted(load_gpus())),
            rng.choice((1, 2, 4, 8)),
            rng.choice(fabrics),
            form=rng.choice((None, Form.VM)),
        )
        for _ in range(count)
    ]


def drawn_runs(rng: random.Random, count: int) -> list[Training]:
    return [
        training(
            rng.choice(MODELS),
            sequence_length=rng.choice((2048, 8192, 32768)),
            global_batch_tokens=rng.choice((2e5, 4e6)),
            precision=rng.choice((Precision.BF16, Precision.FP8)),
            software=rng.choice(list(TrainingStack)),
        )
        for _ in range(count)
    ]


def drawn_services(rng: random.Random, count: int) -> list[Serving | Batch]:
    formats = (
        (Precision.BF16,),
        (Precision.BF16, Precision.FP8),
        (Precision.INT4,),
        (Precision.FP8, Precision.FP4),
    )
    services: list[Serving | Batch] = [
        serving(
            rng.choice(MODELS),
            rng.choice((128, 1500, 8000)),
            rng.choice((1, 300)),
            slo=Slo(rng.choice((300, 1000, 5000)), rng.choice((15, 60))),
            precisions=rng.choice(formats),
            engine=rng.choice(list(ServingEngine)),
        )
        for _ in range(count)
    ]
    return [
        *services,
        *(batch(rng.choice(MODELS), precisions=rng.choice(formats)) for _ in range(count // 3)),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_run_alone_in_plain_numbers_is_the_cell_of_the_table(seed: int) -> None:
    rng = random.Random(seed)
    runs, skus = drawn_runs(rng, 8), drawn_skus(rng, 12)
    table = estimator().training(runs, skus, COUNTS)
    fitting = [tuple(cell) for cell in np.argwhere(table.fits)]
    assert len(fitting) > 30
    for w, s, n in rng.sample(fitting, 30):
        found = estimator().training_at(runs[w], skus[s], COUNTS[n], table.layout(w, s, n))
        assert found is not None
        assert found["hours"] == pytest.approx(table.hours[w, s, n], rel=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_alone_in_plain_numbers_is_the_cell_of_the_table(seed: int) -> None:
    rng = random.Random(seed)
    services, skus = drawn_services(rng, 9), drawn_skus(rng, 12)
    table = estimator().serving(services, skus)
    fitting = [tuple(cell) for cell in np.argwhere(table.fits)]
    assert len(fitting) > 30
    for w, s, c in rng.sample(fitting, 30):
        precision, layout = table.configs[c].precision, table.layout(w, s, c)
        found = estimator().serving_at(services[w], skus[s], precision, layout, 1.0)
        assert found is not None
        assert found["requests_per_s_per_replica"] == pytest.approx(table.requests_per_s[w, s, c], rel=1e-10)
        assert found["cold_start_s"] == pytest.approx(table.cold_start_s[w, s, c], rel=1e-13)


def test_searches_that_skip_what_cannot_fit_find_the_best_of_all() -> None:
    rng, core = random.Random(7), TrainingCore(load_gpus(), load_calibration())
    runs, skus = drawn_runs(rng, 6), drawn_skus(rng, 10)
    table = estimator().training(runs, skus, COUNTS)
    compared = 0
    for w, run in enumerate(runs):
        for s, kind in enumerate(skus):
            hw = build_hardware([kind], load_gpus(), load_calibration())
            if hw.peak[run.precision.value][0] <= 0:
                continue
            model, per_node = run.model, kind.gpus_per_node
            experts = model.experts if model.is_moe else 0
            layouts = enumerate_layouts(per_node, model.layers, model.heads, experts, run.sequence_length)
            for n, count in enumerate(COUNTS):
                every = step(core.scenario(run, layouts, hw), as_array(count * per_node))
                possible = every.fits & every.divides & (count <= hw.nodes_most[0])
                possible = possible & has_layout(run, layouts.tp, layouts.pp)
                least = np.where(possible, every.total, np.inf).min()
                assert table.fits[w, s, n] == np.isfinite(least)
                if table.fits[w, s, n]:
                    compared += 1
                    assert table.estimate(w, s, n)["step_s"] <= least * (1 + 1e-13)
    assert compared > 40


def test_workloads_of_one_physics_share_a_search_and_nothing_else() -> None:
    skus = [sku("H100-SXM-80GB"), sku("H100-SXM-80GB", 1, None), sku("L4", 1, None)]
    measured = (Measurement("H100-SXM-80GB", 8, tokens_per_s=80_000.0),)
    runs = [
        training("Llama-3.1-8B"),
        training("Llama-3.1-8B", tokens=1e9),
        training("Llama-3.1-8B", measured=measured),
        training("Llama-3.1-8B", sequence_length=4096),
    ]
    together = estimator().training(runs, skus, COUNTS)
    for w, run in enumerate(runs):
        assert (together.hours[w] == estimator().training([run], skus, COUNTS).hours[0]).all()
    rate = (Measurement("H100-SXM-80GB", 1, requests_per_s=3.0),)
    services: list[Serving | Batch] = [
        serving("Llama-3.1-8B"),
        replace(serving("Llama-3.1-8B"), name="other"),
        serving("Llama-3.1-8B", measured=rate),
        serving("Llama-3.1-8B", slo=Slo(2000, 30)),
        batch("Llama-3.1-8B"),
    ]
    fleet = estimator().serving(services, skus)
    for w, service in enumerate(services):
        alone = estimator().serving([service], skus)
        assert fleet.requests_per_s[w] == pytest.approx(alone.requests_per_s[0], rel=1e-10)
        assert (fleet.candidates[w] == alone.candidates[0]).all()


def test_hours_of_offers_are_those_of_each_offer() -> None:
    skus = [sku("H100-SXM-80GB"), sku("L40S", 4, None), sku("H100-SXM-80GB", 8, None)]
    table = estimator().training([training("Llama-3.1-8B"), training("Llama-3.1-70B")], skus, COUNTS)
    offers, rates = np.asarray([2, 0, 1, 0]), np.asarray([0.0, 0.01, 0.02, 0.05])
    for w in range(2):
        fits = table.fits[w, offers]
        o, n = np.nonzero(fits)
        found = table.hours_at_each(w, offers[o], n, rates[o])
        assert 0 < fits.sum() < fits.size
        for hours, offer, size in zip(found, o, n, strict=True):
            expected = table.hours_at(w, int(offers[offer]), int(size), rates[offer])
            assert hours == pytest.approx(float(expected), rel=1e-13)


NUMBERS = (0.0, 1e-9, 0.3, 1.0, 2.5, 7.0, 1e6)


@pytest.mark.parametrize("name", ["maximum", "minimum", "power"])
def test_functions_of_two_plain_numbers_are_those_of_arrays(name: str) -> None:
    function: Callable[[Any, Any], Any] = getattr(elementwise, name)
    for a in NUMBERS:
        for b in NUMBERS[1:5]:
            assert function(number(a), number(b)) == pytest.approx(function(as_array([a]), as_array([b]))[0])
            assert isinstance(function(number(a), number(b)), float)


@pytest.mark.parametrize(
    "name", ["floor", "ceil", "sqrt", "exp", "expm1", "log", "log1p", "log2", "zeros_like"]
)
def test_functions_of_a_plain_number_are_those_of_arrays(name: str) -> None:
    function: Callable[[Any], Any] = getattr(elementwise, name)
    for value in NUMBERS[1:6]:
        assert function(number(value)) == pytest.approx(function(as_array([value]))[0], rel=1e-15)
        assert isinstance(function(number(value)), float)


def test_choices_of_plain_numbers_are_those_of_arrays() -> None:
    assert elementwise.where(True, 1.0, 2.0) == 1.0
    assert elementwise.where(np.False_, 1.0, 2.0) == 2.0
    assert elementwise.where(np.asarray([True, False]), 1.0, 2.0).tolist() == [1.0, 2.0]
    assert elementwise.clip(number(9.0), 1.0, 4.0) == 4.0
    assert not ~elementwise.isfinite(number(1.0))
    assert elementwise.any(True)
    assert not elementwise.all(np.asarray([True, False]))
    for a, b in ((0.0, 0.0), (0.0, 2.0), (3.0, 2.0)):
        joined = smooth_max(number(a), number(b), 3.7)
        assert joined == pytest.approx(smooth_max(as_array([a]), as_array([b]), 3.7)[0])


def test_one_case_stays_with_plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array on the way (``~False`` is one's start: it is -1) halves the single estimates a second.

    The rate is evaluated at the median, at its P10 and with the confidence.
    """
    alone = Estimator(load_gpus(), load_calibration(), memo=MemoCache(0))
    service = serving("Llama-3.1-70B", precisions=(Precision.FP8,))
    question = (service, sku("H100-SXM-80GB"), Precision.FP8, Parallelism(tp=4), 20.0)
    assert alone.serving_at(*question) is not None
    called: Counter[str] = Counter()

    class Counted:
        def __getattr__(self, name: str) -> Any:
            called[name] += isinstance(getattr(np, name), np.ufunc) or name == "where"
            return getattr(np, name)

    monkeypatch.setattr(elementwise, "np", Counted())
    assert alone.serving_at(*question) is not None
    assert called.total() <= 3, called


def bisected(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return low


def test_crossings_are_where_bisection_finds_them() -> None:
    rng = random.Random(3)
    slopes = as_array([rng.uniform(0.05, 4.0) for _ in range(40)])
    levels = as_array([math.exp(rng.uniform(-8, 8)) for _ in range(40)])

    def rising(x: Any, slope: Any, level: Any) -> Any:
        return elementwise.log(elementwise.maximum(x**slope, 1e-3 + x * x / 9.0) / level)

    low, high = np.full(40, 1e-2), np.full(40, 512.0)
    together = crossing(lambda x: rising(x, slopes, levels), low, high)
    for case in range(40):
        slope, level = float(slopes[case]), float(levels[case])
        curve = partial(rising, slope=slope, level=level)
        expected = bisected(curve, 1e-2, 512.0)
        assert together[case] == pytest.approx(expected, rel=1e-9)
        assert crossing(curve, number(1e-2), number(512.0)) == pytest.approx(expected, rel=1e-9)
