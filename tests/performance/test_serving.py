from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_models
from broker.domain.basics.estimate import Parallelism, Provenance
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Measurement, Precision, Serving, Slo
from optimizer.performance.arrays import as_array
from optimizer.performance.estimator import ServingTable
from optimizer.performance.hardware.sku_arrays import GIB
from optimizer.performance.serving.served_model import cache_tokens, weight_bytes
from optimizer.performance.serving.steps import decode_step
from optimizer.performance.shapes import build_shape, experts_touched
from tests.performance.builders import batch, estimator, rows_of, served, serving, sku

METRICS = {
    "requests_per_s_per_replica",
    "ttft_p95_ms",
    "itl_p95_ms",
    "tokens_per_s",
    "memory_gb_per_gpu",
    "kv_tokens",
    "usd_per_million_tokens",
    "cold_start_s",
}


def config_index(table: ServingTable, precision: Precision, tp: int, pp: int = 1) -> int:
    found = [c for c, k in enumerate(table.configs) if (k.precision, k.tp, k.pp) == (precision, tp, pp)]
    return found[0]


def test_kv_capacity_of_vllm() -> None:
    off = []
    for row in rows_of("kv_capacity.csv"):
        precision = "fp8" if row["model"] == "Llama-4-Scout" else "bf16"
        model = served(row["model"], tp=int(row["tp"]), precision=precision)
        predicted = cache_tokens(replace(model, sequences_told=as_array([float(row["max_num_seqs"])])))[0]
        off.append(abs(float(predicted) / float(row["kv_tokens"]) - 1))
    assert np.median(off) < 0.03
    assert sorted(off)[-2] < 0.10, "all but the multimodal one, whose vision tower is not in the table"


def test_weights_of_published_checkpoints() -> None:
    dense, experts = weight_bytes(served("Llama-3.1-70B"))
    assert float(dense + experts) / GIB == pytest.approx(131.4, rel=0.01)
    dense, experts = weight_bytes(served("DeepSeek-V3", precision="fp8"))
    assert float(dense + experts) == pytest.approx(671e9, rel=0.02)


def test_a_7b_serves_on_one_small_card() -> None:
    table = estimator().serving(
        [serving("Qwen2.5-7B", 500, 200)], [sku("L4", 1), sku("A10G", 1), sku("L40S", 1)]
    )
    c = config_index(table, Precision.BF16, 1)
    assert table.fits[0, 1:, c].all()
    assert table.requests_per_s[0, 2, c] > 2 * table.requests_per_s[0, 1, c] > 0


def test_a_70b_in_16_bit_needs_more_than_one_80gb_card() -> None:
    works = [serving("Llama-3.1-70B", precisions=(Precision.BF16, Precision.FP8))]
    table = estimator().serving(works, [sku("H100-SXM-80GB")])
    assert not table.fits[0, 0, config_index(table, Precision.BF16, 1)]
    assert table.fits[0, 0, config_index(table, Precision.BF16, 4)]
    assert table.fits[0, 0, config_index(table, Precision.FP8, 2)]


def test_an_offer_of_one_card_cannot_hold_a_70b() -> None:
    table = estimator().serving([serving("Llama-3.1-70B")], [sku("H100-SXM-80GB", 1, fabric=None)])
    assert table.obstacle(0, 0) is Obstacle.MEMORY


def test_obstacles() -> None:
    fast = replace(serving("Llama-3.1-8B"), slo=Slo(1000, 1))
    fp8 = serving("Llama-3.1-8B", precisions=(Precision.FP8,))
    kinds = [sku("L40S"), sku("A100-SXM-80GB"), sku("unheard-of")]
    table = estimator().serving([fast, fp8], kinds)
    assert table.obstacle(0, 0) is Obstacle.LATENCY
    assert table.obstacle(1, 0) is None
    assert table.obstacle(1, 1) is Obstacle.PRECISION
    assert table.obstacle(0, 2) is Obstacle.GPU_UNKNOWN


def test_fp4_serves_more_than_8_bit_where_gpus_multiply_it_and_nowhere_else() -> None:
    """Within what 100 published pairs say (``test_serving_rules_of_thumb``): 1.0 to 1.6 times."""
    kinds = [sku("B200-SXM-180GB"), sku("MI355X-288GB"), sku("H100-SXM-80GB")]
    eight, four = (
        serving("Llama-3.1-70B", precisions=(precision,)) for precision in (Precision.FP8, Precision.FP4)
    )
    table = estimator().serving([eight, four], kinds)
    assert table.obstacle(1, 2) is Obstacle.PRECISION
    rates = table.requests_per_s.max(axis=2)
    both = estimator().serving([replace(four, precisions=(Precision.FP8, Precision.FP4))], kinds)
    assert both.requests_per_s.max(axis=2)[0] == pytest.approx(rates.max(axis=0))
    for kind in (0, 1):
        assert 1.0 < rates[1, kind] / rates[0, kind] < 2.0


def test_table_and_single_replica_agree() -> None:
    works: list[Serving | Batch] = [
        serving("Llama-3.1-8B", precisions=(Precision.BF16, Precision.FP8, Precision.INT4)),
        serving("Mixtral-8x7B"),
        batch("Qwen3-32B", precisions=(Precision.FP8,)),
        serving("Llama-3.1-405B"),
    ]
    kinds = [sku("H100-SXM-80GB"), sku("L40S"), sku("GB200-186GB", 4), sku("MI300X-192GB")]
    table = estimator().serving(works, kinds)
    for w, s, c in np.argwhere(table.fits):
        shown = table.estimate(w, s, c, 12.5)
        again = estimator().serving_at(
            works[w], kinds[s], table.configs[c].precision, table.layout(w, s, c), 12.5
        )
        assert again is not None
        assert dict(again.value) == pytest.approx(dict(shown.value), rel=1e-12)
        assert shown["requests_per_s_per_replica"] == pytest.approx(table.requests_per_s[w, s, c], rel=1e-12)
        assert shown["cold_start_s"] == pytest.approx(table.cold_start_s[w, s, c])
    assert table.fits.any(axis=(1, 2)).all()
    assert np.isfinite(table.requests_per_s).all()


def test_objective_holds_at_the_rate() -> None:
    work = serving("Llama-3.1-70B", precisions=(Precision.FP8,))
    table = estimator().serving([work], [sku("H100-SXM-80GB")])
    for c in np.flatnonzero(table.fits[0, 0]):
        estimate = table.estimate(0, 0, int(c), 10.0)
        assert set(estimate.value) == set(estimate.low) == set(estimate.high) == METRICS
        assert estimate["ttft_p95_ms"] <= work.slo.ttft_p95_ms * (1 + 1e-9)
        assert estimate["itl_p95_ms"] <= work.slo.itl_p95_ms * (1 + 1e-9)
        for name, value in estimate.value.items():
            assert estimate.low[name] <= value <= estimate.high[name]
        tokens = estimate["requests_per_s_per_replica"] * work.traffic.output_tokens
        assert estimate["tokens_per_s"] == pytest.approx(tokens)
        assert estimate["usd_per_million_tokens"] == pytest.approx(10 / (3600 * tokens) * 1e6)
        assert estimate.provenance is Provenance.CALIBRATED


def test_a_tighter_objective_serves_less() -> None:
    loose = serving("Llama-3.1-8B")
    tight = replace(loose, slo=Slo(200, 15))
    table = estimator().serving([loose, tight], [sku("H100-SXM-80GB")])
    assert (table.requests_per_s[1] <= table.requests_per_s[0]).all()
    assert (table.requests_per_s[1] < table.requests_per_s[0]).any()


def test_batch_work_has_no_objective_and_serves_more() -> None:
    kinds = [sku("H100-SXM-80GB")]
    offline = batch("Llama-3.1-8B", input_tokens=1500, output_tokens=300)
    c = 0
    best = estimator().serving([offline], kinds).requests_per_s[0, 0, c]
    assert best > estimator().serving([serving("Llama-3.1-8B")], kinds).requests_per_s[0, 0, c]


def test_pipelines_serve_models_larger_than_a_node() -> None:
    table = estimator().serving([serving("Llama-3.1-405B"), serving("Llama-3.1-8B")], [sku("H100-SXM-80GB")])
    assert not table.fits[0, 0, config_index(table, Precision.BF16, 8)]
    assert table.fits[0, 0, config_index(table, Precision.BF16, 8, 2)]
    assert not table.fits[1, 0, config_index(table, Precision.BF16, 8, 2)]
    lonely = estimator().serving([serving("Llama-3.1-405B")], [sku("H100-SXM-80GB", fabric=None)])
    assert lonely.obstacle(0, 0) is Obstacle.MEMORY


def test_the_users_own_rate_takes_the_place_of_the_model() -> None:
    measured = (
        Measurement("L4", 1, tokens_per_s=1234.0),
        Measurement("L40S", 2, requests_per_s=2.1),
    )
    work = serving("Llama-3.1-8B", measured=measured)
    table = estimator().serving([work], [sku("L4", 1), sku("L40S", 8)])
    one, two = config_index(table, Precision.BF16, 1), config_index(table, Precision.BF16, 2)
    assert table.requests_per_s[0, 0, one] == pytest.approx(1234 / 300)
    assert table.requests_per_s[0, 1, two] == 2.1
    estimate = table.estimate(0, 1, two, 5.0)
    assert estimate.provenance is Provenance.MEASURED
    assert estimate.high["tokens_per_s"] < 1.1 * estimate["tokens_per_s"]
    assert table.estimate(0, 0, one, 1.0)["tokens_per_s"] == pytest.approx(1234)


def test_batch_one_is_bound_by_bandwidth() -> None:
    found = decode_step(served("Llama-3.1-70B", tp=4), as_array([1.0]), as_array([1000.0]))
    assert found.weights[0] > 0.5 * found.total[0]
    assert found.compute[0] < 0.2 * found.weights[0]


def test_a_huge_batch_is_bound_by_compute() -> None:
    found = decode_step(served("Llama-3.1-8B"), as_array([1e5]), as_array([1.0]))
    assert found.compute[0] > 0.8 * found.total[0]


def test_experts_touched() -> None:
    shapes = build_shape(load_models()["Mixtral-8x7B"])
    assert float(experts_touched(shapes, as_array(1.0))) == pytest.approx(2.0)
    assert float(experts_touched(shapes, as_array(1e4))) == pytest.approx(8.0)
    dense = build_shape(load_models()["Llama-3.1-8B"])
    assert float(experts_touched(dense, as_array(5.0))) >= 0


def test_a_bigger_model_starts_slower() -> None:
    table = estimator().serving([serving("Llama-3.1-8B"), serving("Llama-3.1-70B")], [sku("H200-SXM-141GB")])
    c = config_index(table, Precision.BF16, 4)
    assert 60 < table.cold_start_s[0, 0, c] < table.cold_start_s[1, 0, c] < 400


def test_a_configuration_that_the_workload_forbids_does_not_fit() -> None:
    work, kind = serving("Llama-3.1-8B"), sku("H100-SXM-80GB")
    assert estimator().serving_at(work, kind, Precision.FP8, Parallelism(), 1.0) is None
    assert estimator().serving_at(work, sku("L40S", 6), Precision.BF16, Parallelism(tp=4), 1.0) is None
