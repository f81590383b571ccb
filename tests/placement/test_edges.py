"""Documents at the edges: the shortest horizons, the least demand, answers of one token."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Policy, Precision, Providers, Serving
from broker.domain.workloads.traffic import RequestSize, Traffic, TrafficShape
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.serving.estimate import ServingCore
from tests.placement.market import T0, batch, offer, plan, planner, request, serving, training

CORE = ServingCore(load_gpus(), load_calibration())
RTX_4090 = Sku("rtx-4090", "RTX-4090", 1, 24.0)


def document(seconds: int, **traffic: Any) -> str:
    service = {
        "name": "s",
        "kind": "serving",
        "model": "Llama-3.1-8B",
        "traffic": {"peak_requests_per_s": 3.0, "input_tokens": 100, "output_tokens": 100} | traffic,
        "slo": {"ttft_p95_ms": 1000, "itl_p95_ms": 50},
    }
    horizon = {"start": "tomorrow", "days": seconds / 86_400}
    return json.dumps({"team": "t", "horizon": horizon, "workloads": [service]})


@pytest.mark.parametrize("seconds", [3600, 3601, 3603, 3659, 7205, 86_401, 90_001])
@pytest.mark.parametrize("peak", [0.001, 3.0, 40.0])
def test_horizons_of_any_length_from_an_hour_on_are_planned(seconds: int, peak: float) -> None:
    asked = read_workloads(document(seconds, peak_requests_per_s=peak), source="w", base=None, now=T0)
    offers = [offer("a", "1.00", observed_at=T0), offer("b", "1.20", observed_at=T0)]
    made = plan(asked, offers, as_of=T0)
    assert not made.unplaced
    assert not planner().check(made, asked, offers)
    assert made.placements[0].segments[-1].end == T0 + timedelta(days=1, seconds=seconds)


NOWHERE = Policy(regions=("moon-*",))


@pytest.mark.parametrize(
    ("reason", "after", "stands", "changes"),
    [
        ("policy", None, {}, {"policy": NOWHERE}),
        ("policy", "run", {}, {"policy": NOWHERE}),
        ("gpu_unknown", None, {"gpu": "UNHEARD-OF"}, {}),
        ("memory", "run", {}, {"precisions": (Precision.FP8,)}),
        ("stock", None, {"nodes": 1}, {}),
        ("stock", "run", {"nodes": 1}, {}),
    ],
)
def test_what_nothing_serves_is_proven_to_cost_what_leaving_it_out_does(
    reason: str, after: str | None, stands: dict[str, Any], changes: dict[str, Any]
) -> None:
    service = serving(hourly=[9.0], starts_after=after, unplaced_usd=Decimal(500), **changes)
    run = training("run", 2, policy=Policy(providers=Providers(only=("aws",))))
    asked = request(run, service, hours=24)
    offers = [offer("for the run", "1.00", provider="aws", nodes=1), offer("node", "1.00", **stands)]
    only = replace(service, policy=replace(service.policy, providers=Providers(only=("lambda",))))
    made = plan(replace(asked, workloads=(run, only)), offers)
    assert [(left.workload, left.reason) for left in made.unplaced] == [("chat", reason)]
    assert (made.cost_usd, made.penalty_usd) == (Decimal(2), Decimal(500))
    assert made.bound_usd == Decimal(502)


def one_token(tokens_in: int = 800, **changes: Any) -> Serving:
    traffic = serving().traffic
    short = type(traffic)(tokens_in, 1, traffic.shape, 1.0, hourly=(1.0,))
    return serving(traffic=short, precisions=(Precision.FP8,), **changes)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    found = CORE.estimate(one_token(), RTX_4090, Precision.FP8, Parallelism(), 1.0)
    assert found is not None
    for metrics in (found.value, found.low, found.high):
        assert "itl_p95_ms" not in metrics
        assert "ttft_p95_ms" in metrics


def test_the_limit_between_tokens_binds_nothing_where_there_is_one() -> None:
    rates = []
    for itl_ms in (0.001, 50.0):
        asked = one_token(slo=type(serving().slo)(500, itl_ms))
        found = CORE.estimate(asked, RTX_4090, Precision.FP8, Parallelism(), 1.0)
        assert found is not None
        rates.append(found["requests_per_s_per_replica"])
    assert rates[0] == rates[1]


def test_no_replica_answers_more_requests_than_an_engine_can_take() -> None:
    ceiling = load_calibration().serving.front_end_requests_per_s
    found = CORE.estimate(one_token(1), RTX_4090, Precision.FP8, Parallelism(), 1.0)
    assert found is not None
    assert found["requests_per_s_per_replica"] == ceiling


def test_batches_of_one_token_print_no_time_between_tokens() -> None:
    asked = batch(input_tokens=512, output_tokens=1)
    found = CORE.estimate(asked, RTX_4090, Precision.BF16, Parallelism(), 1.0)
    assert found is not None
    assert "itl_p95_ms" not in found.value
    assert found["requests_per_s_per_replica"] <= load_calibration().serving.offline_requests_per_s


def test_prompts_that_the_cache_holds_whole_are_planned() -> None:
    asked = serving(prefix_cache_hit_share=1.0)
    found = CORE.estimate(asked, RTX_4090, Precision.BF16, Parallelism(), 1.0)
    assert found is not None
    assert 0 < found["requests_per_s_per_replica"] <= load_calibration().serving.front_end_requests_per_s
    assert found["ttft_p95_ms"] > 0


def test_a_mix_with_answers_of_one_token_has_the_time_between_tokens_of_the_others() -> None:
    mix = (RequestSize(0.5, 200, 1), RequestSize(0.5, 200, 50))
    asked = serving(traffic=Traffic(200, 26, TrafficShape.FLAT, 1.0, mix=mix))
    estimator = Estimator(load_gpus(), load_calibration())
    found = estimator.serving_at(asked, RTX_4090, Precision.BF16, Parallelism(), 1.0)
    assert found is not None
    assert 0 < found["itl_p95_ms"] <= 50.0
