"""Services with several sizes of request: load adds up, the slowest size binds, both ways to ask agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.planning.workload import Serving
from broker.domain.workloads.traffic import RequestSize, Traffic, TrafficShape
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from tests.performance.builders import batch, serving, sku

ESTIMATOR = Estimator(load_gpus(), load_calibration())
NODE = sku("H100-SXM-80GB")
SHORT, LONG = RequestSize(0.8, 250, 50), RequestSize(0.2, 4000, 400)


def mixed(*sizes: RequestSize) -> Serving:
    return replace(
        serving("Llama-3.1-8B"), traffic=Traffic(1000, 120, TrafficShape.FLAT, 12.0, mix=tuple(sizes))
    )


def alone(size: RequestSize) -> Serving:
    return serving("Llama-3.1-8B", size.input_tokens, size.output_tokens)


def test_the_load_of_sizes_adds_up() -> None:
    table = ESTIMATOR.serving([mixed(SHORT, LONG), alone(SHORT), alone(LONG), batch("Llama-3.1-8B")], [NODE])
    both, short, long, _ = table.requests_per_s[:, 0, :]
    fits = (short > 0) & (long > 0)
    assert fits.any()
    assert both[fits] == pytest.approx(1 / (0.8 / short[fits] + 0.2 / long[fits]))
    assert not both[~fits].any()
    assert ((long <= both) & (both <= short))[fits].all()


def test_the_table_and_a_single_answer_agree() -> None:
    service = mixed(SHORT, LONG)
    table = ESTIMATOR.serving([alone(LONG), service], [NODE])
    (place, *_) = np.flatnonzero(table.fits[1, 0])
    config = table.configs[place]
    told = table.estimate(1, 0, int(place), 10.0)
    asked = ESTIMATOR.serving_at(service, NODE, config.precision, table.layout(1, 0, int(place)), 10.0)
    assert asked == told
    assert told["requests_per_s_per_replica"] == pytest.approx(float(table.requests_per_s[1, 0, place]))
    tokens = 0.8 * SHORT.output_tokens + 0.2 * LONG.output_tokens
    assert told["tokens_per_s"] == pytest.approx(told["requests_per_s_per_replica"] * tokens)
    assert told["usd_per_million_tokens"] == pytest.approx(10.0 / (3600 * told["tokens_per_s"]) * 1e6)
    for name in ("ttft_p95_ms", "itl_p95_ms"):
        of_long = table.estimate(0, 0, int(place), 10.0)[name]
        assert told[name] >= of_long
    assert told.low["requests_per_s_per_replica"] < told["requests_per_s_per_replica"]
    assert table.bottleneck(1, 0, int(place))


def test_a_mix_of_one_size_is_that_size() -> None:
    whole = RequestSize(1.0, 1500, 300)
    one = ESTIMATOR.serving([mixed(whole)], [NODE])
    plain = ESTIMATOR.serving([alone(whole)], [NODE])
    assert np.array_equal(one.requests_per_s, plain.requests_per_s)
    assert np.array_equal(one.candidates, plain.candidates)


def test_a_size_that_breaks_the_objective_keeps_the_whole_service_out() -> None:
    endless = RequestSize(0.01, 120_000, 300)
    service = mixed(RequestSize(0.99, 250, 50), endless)
    table = ESTIMATOR.serving([service], [NODE])
    assert not table.fits.any()
    assert table.obstacle(0, 0) is not None
    layout = table.layout(0, 0, 0)
    assert ESTIMATOR.serving_at(service, NODE, table.configs[0].precision, layout, 10.0) is None
