from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism, Provenance
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Measurement, Precision, TrainingStack
from optimizer.calibration.own.predictions import predict_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.layouts import enumerate_layouts
from optimizer.performance.training.scenario import Run, Scenario
from optimizer.performance.training.step import step
from tests.performance.builders import ETHERNET, estimator, layouts_of, rows_of, sku, training

Errors = NDArray[np.float64]
METRICS = {
    "step_s",
    "mfu",
    "tokens_per_s",
    "hours",
    "memory_gb_per_gpu",
    "communication_share",
    "checkpoint_share",
    "goodput",
}


def errors(name: str, column: str, prediction: str) -> Errors:
    rows = [row for row in rows_of(name) if row[column]]
    found = predict_rows(rows, load_calibration(), load_gpus(), load_models())
    ratios: Errors = np.asarray(
        [float(p[prediction]) / float(r[column]) - 1 for r, p in zip(rows, found, strict=True)]
    )
    return np.abs(ratios)


def test_korthikanti_table_5() -> None:
    rows = [row for row in rows_of("training.csv") if row["id"].startswith("korth22")]
    found = predict_rows(rows, load_calibration(), load_gpus(), load_models())
    off = [
        float(p["pred_step_time_s"]) / float(r["step_time_s"]) - 1 for r, p in zip(rows, found, strict=True)
    ]
    assert len(off) == 8
    assert np.mean(np.abs(off)) < 0.06
    assert max(np.abs(off)) < 0.15


def test_published_steps() -> None:
    off = errors("training.csv", "step_time_s", "pred_step_time_s")
    assert np.mean(off) < 0.20
    assert np.median(off) < 0.15


def test_grid_memory_and_what_ran() -> None:
    assert np.mean(errors("training_grid.csv", "mem_gb", "pred_mem_gib")) < 0.20
    rows = rows_of("training_grid.csv")
    found = predict_rows(rows, load_calibration(), load_gpus(), load_models())
    right = [(r["status"] == "ok") == (p["fits"] == "true") for r, p in zip(rows, found, strict=True)]
    assert np.mean(right) >= 0.85


def test_h100_beats_a100_as_published() -> None:
    table = estimator().training(
        [training("Llama-3.1-8B")], [sku("H100-SXM-80GB"), sku("A100-SXM-80GB")], [4]
    )
    assert 1.7 < table.hours[0, 1, 0] / table.hours[0, 0, 0] < 3.0


@pytest.mark.parametrize(
    ("model", "least", "most"), [("Llama-3.1-8B", 1.2, 1.5), ("Llama-3.1-70B", 1.25, 1.6)]
)
def test_fp8_never_doubles(model: str, least: float, most: float) -> None:
    works = [training(model), training(model, precision=Precision.FP8)]
    table = estimator().training(works, [sku("H100-SXM-80GB")], [16])
    assert least < table.hours[0, 0, 0] / table.hours[1, 0, 0] < most


def test_communication_of_405b_on_64_h100() -> None:
    calibration = load_calibration()
    hw = build_hardware([sku("H100-SXM-80GB")], load_gpus(), calibration)
    layouts = layouts_of(Parallelism(tp=8, pp=8, dp=1, recompute="full"))
    run = Run(as_array(8192), as_array(64), "bf16")
    shapes = build_shape(load_models()["Llama-3.1-405B"])
    software = calibration.software["tuned"]
    found = step(Scenario(shapes, run, layouts, hw, software, calibration), as_array(64))
    assert 0.10 < found.communication[0] / found.total[0] < 0.40
    assert not found.fits[0], "18 bytes a parameter are more than 64 x 80 GB"


def test_a_thin_fabric_loses_by_far_on_256_gpus() -> None:
    kinds = [sku("H100-SXM-80GB"), sku("H100-SXM-80GB", fabric=ETHERNET)]
    table = estimator().training([training("Llama-3.1-8B")], kinds, [32])
    assert table.hours[0, 1, 0] > 2 * table.hours[0, 0, 0]
    assert table.bottleneck(0, 0, 0) == "compute"
    assert table.layout(0, 0, 0).pp == 1 < table.layout(0, 1, 0).pp, "stages send less than gradients"


def test_tensor_parallelism_only_where_memory_asks_for_it() -> None:
    table = estimator().training(
        [training("Llama-3.1-8B")], [sku("B200-SXM-180GB"), sku("H100-SXM-80GB")], [4]
    )
    assert table.layout(0, 0, 0).tp == 1
    assert table.layout(0, 1, 0).tp <= 2


def test_table_and_single_layout_agree() -> None:
    works = [training("Llama-3.1-8B"), training("Llama-3.1-70B", headroom=0.1), training("Mixtral-8x7B")]
    kinds = [sku("H100-SXM-80GB"), sku("L40S", fabric=None), sku("MI300X-192GB"), sku("A100-SXM-40GB", 4)]
    table = estimator().training(works, kinds, [1, 3, 8, 32])
    for w, s, n in np.argwhere(table.fits):
        shown = table.estimate(w, s, n, 0.01)
        again = estimator().training_at(
            works[w], kinds[s], int(table.node_counts[n]), table.layout(w, s, n), 0.01
        )
        assert again is not None
        assert dict(again.value) == pytest.approx(dict(shown.value), rel=1e-12)
        assert shown["hours"] == pytest.approx(float(table.hours_at(w, s, n, 0.01)), rel=1e-12)
        plain = table.estimate(w, s, n)
        assert plain["hours"] == pytest.approx(table.hours[w, s, n], rel=1e-12)
    assert table.fits.any(axis=(1, 2)).all()


def test_estimate_has_the_contract_metrics_and_ordered_intervals() -> None:
    table = estimator().training([training("Llama-3.1-8B")], [sku("H100-SXM-80GB")], [4])
    estimate = table.estimate(0, 0, 0)
    assert set(estimate.value) == set(estimate.low) == set(estimate.high) == METRICS
    for name, value in estimate.value.items():
        assert estimate.low[name] <= value <= estimate.high[name]
    assert estimate.provenance is Provenance.CALIBRATED
    assert estimate.high["goodput"] <= 1


def test_hours_follow_from_the_rate() -> None:
    work = training("Llama-3.1-8B", headroom=0.25)
    estimate = estimator().training([work], [sku("H100-SXM-80GB")], [4]).estimate(0, 0, 0)
    startup = load_calibration().goodput.startup_s
    running = work.tokens * 1.25 / (estimate["tokens_per_s"] * estimate["goodput"])
    assert estimate["hours"] == pytest.approx((running + startup) / 3600)


def test_obstacles() -> None:
    works = [training("Llama-3.1-70B"), training("Llama-3.1-70B", precision=Precision.FP8)]
    kinds = [
        sku("H100-SXM-80GB", fabric=None),
        sku("L4", 1, fabric=None),
        sku("A100-SXM-80GB"),
        sku("unheard-of"),
        sku("V100-SXM2-16GB"),
    ]
    table = estimator().training(works, kinds, [1, 16])
    assert table.obstacle(0, 0) is Obstacle.FABRIC
    assert table.obstacle(0, 1) in {Obstacle.FABRIC, Obstacle.MEMORY}
    assert table.obstacle(0, 2) is None
    assert table.obstacle(1, 2) is Obstacle.PRECISION
    assert table.obstacle(0, 3) is Obstacle.GPU_UNKNOWN
    assert table.obstacle(0, 4) is Obstacle.PRECISION
    alone = estimator().training(works, kinds[1:2], [1])
    assert alone.obstacle(0, 0) is Obstacle.MEMORY


def test_int4_is_not_trained() -> None:
    table = estimator().training([training("Llama-3.1-8B", precision=Precision.INT4)], [sku("L40S")], [1])
    assert table.obstacle(0, 0) is Obstacle.PRECISION


def test_a_layout_that_is_not_the_placement_does_not_fit() -> None:
    work, kind = training("Llama-3.1-8B"), sku("H100-SXM-80GB")
    assert estimator().training_at(work, kind, 2, Parallelism(tp=2, dp=4)) is None
    big = training("Llama-3.1-70B")
    assert estimator().training_at(big, kind, 2, Parallelism(dp=16)) is None, "88 GB of states on one card"
    assert estimator().training_at(work, replace(kind, fabric=None), 2, Parallelism(tp=2, dp=8)) is None


def test_the_users_own_rate_takes_the_place_of_the_model() -> None:
    measured = (Measurement("H100-SXM-80GB", 16, tokens_per_s=80_000.0),)
    work = training("Llama-3.1-8B", measured=measured)
    table = estimator().training([work], [sku("H100-SXM-80GB"), sku("A100-SXM-80GB")], [2, 4])
    two, four = table.estimate(0, 0, 0), table.estimate(0, 0, 1)
    assert two["tokens_per_s"] == pytest.approx(80_000)
    assert four["tokens_per_s"] == pytest.approx(160_000)
    assert two.provenance is Provenance.MEASURED
    assert two.high["tokens_per_s"] < 1.1 * two["tokens_per_s"]
    assert table.estimate(0, 1, 0).provenance is Provenance.CALIBRATED


def test_a_measured_run_fits_although_the_model_says_no() -> None:
    work = training("Llama-3.1-8B", measured=(Measurement("L4", 1, tokens_per_s=50.0),))
    table = estimator().training([work], [sku("L4", 1, fabric=None)], [1, 2])
    assert table.fits[0, 0].tolist() == [True, False]
    again = estimator().training_at(work, sku("L4", 1, fabric=None), 1, table.layout(0, 0, 0))
    assert again is not None
    assert again["tokens_per_s"] == pytest.approx(50)


def test_interruptions_cost_more_on_more_nodes() -> None:
    table = estimator().training([training("Llama-3.1-8B")], [sku("H100-SXM-80GB")], [2, 16])
    rates = np.asarray([0.0, 0.01, 0.05])
    few, many = table.hours_at(0, 0, 0, rates), table.hours_at(0, 0, 1, rates)
    assert few.shape == (3,)
    assert (np.diff(few) > 0).all()
    assert many[2] / many[0] > few[2] / few[0]


def test_batches_must_be_large_enough_for_the_ranks() -> None:
    small = training("Llama-3.1-8B", global_batch_tokens=8192.0 * 4)
    table = estimator().training([small], [sku("H100-SXM-80GB")], [1, 32])
    assert table.layout(0, 0, 0).dp <= 4
    assert not table.fits[0, 0, 1] or table.layout(0, 0, 1).dp <= 4


def test_a_node_count_that_is_no_power_of_two_has_stages_that_divide_it() -> None:
    table = estimator().training([training("Llama-3.1-70B")], [sku("H100-SXM-80GB")], range(4, 10))
    node_hours = table.hours[0, 0] * np.arange(4, 10)
    assert node_hours.max() < 1.15 * node_hours.min()
    assert table.layout(0, 0, 3).pp == 7


def test_recomputation_of_attention_alone_is_compared_with_that_of_whole_layers() -> None:
    """A full fine-tuning of Llama-3.3-70B on one node of eight MI300X, which holds it either way."""
    work = training(
        "Llama-3.3-70B", sequence_length=4096, global_batch_tokens=2.6e5, software=TrainingStack.FSDP
    )
    table = estimator().training([work], [sku("MI300X-192GB")], [1])
    assert table.layout(0, 0, 0).recompute == "selective"


def test_layouts_stay_inside_the_node_and_divide_heads() -> None:
    layouts = enumerate_layouts(4, 20, 40, 0, 4096)
    assert layouts.tp.max() == 4
    assert set(layouts.pp.tolist()) == set(range(1, 21))
    assert set(layouts.ep.tolist()) == {1.0}
    assert enumerate_layouts(8, 32, 6, 0, 4096).tp.max() == 2


def test_same_question_same_answer_whatever_else_is_asked() -> None:
    work, kind = training("Llama-3.1-70B"), sku("H100-SXM-80GB")
    alone = estimator().training([work], [kind], [8])
    among = estimator().training(
        [training("Qwen3-32B"), work], [sku("L4"), sku("H100-PCIe-80GB"), kind], [4, 8]
    )
    assert among.hours[1, 2, 1] == alone.hours[0, 0, 0]
    assert among.layout(1, 2, 1) == alone.layout(0, 0, 0)


def test_an_estimator_travels_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(estimator()))
    asked = [training("Llama-3.1-8B")], [sku("H100-SXM-80GB")], [2]
    assert copy.training(*asked).hours == estimator().training(*asked).hours
