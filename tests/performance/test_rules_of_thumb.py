"""What practitioners know by heart must come out of the core. Who measured it stands in brackets; where both
rows are bundled, the core's ratio is held against the measured one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.market.sku import Fabric, FabricKind, Form
from broker.domain.planning.workload import Precision
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.estimate import TrainingCore
from optimizer.performance.training.layouts import stack_layouts
from optimizer.performance.training.scenario import Run, Scenario
from optimizer.performance.training.step import step
from tests.performance.builders import ETHERNET, estimator, sku, training
from tests.performance.pairs import (
    Ratios,
    across_gpus,
    format_of,
    gridded,
    of,
    off,
    same_layout,
    speedups,
    trained,
)

H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
BOTH = (Precision.BF16, Precision.FP8)
ROOMY = sku("H200-SXM-141GB", gpu_memory_gb=158.0)
"""H200 with so much more memory that 64 hold a 405B and the room that plans leave for its error."""


@pytest.mark.parametrize("degrees", [(8, 8, 1), (8, 4, 2), (8, 4, 1)])
def test_traffic_takes_15_to_30_percent_of_a_405b_step_on_64_gpus(degrees: tuple[int, int, int]) -> None:
    """8 nodes of H100 on InfiniBand, layouts of the Llama 3 paper, nothing hidden behind compute."""
    calibration = load_calibration()
    tuned = calibration.software["tuned"]
    open_traffic = replace(tuned, tp_exposed=1.0, dp_exposed=1.0, pp_exposed=1.0)
    hw = build_hardware([sku(H100)], load_gpus(), calibration)
    tp, pp, cp = (float(degree) for degree in degrees)
    layouts = stack_layouts([(tp, pp, cp, 1.0, 1.0, 2.0, 1.0, 0.0)])
    shapes = build_shape(load_models()["Llama-3.1-405B"])
    run = Run(as_array(8192), as_array(64), "bf16")
    shares = []
    for software in (tuned, open_traffic):
        found = step(Scenario(shapes, run, layouts, hw, software, calibration), as_array(64))
        shares.append(float(found.communication[0] / found.total[0]))
    assert 0.15 < shares[1] < 0.30
    assert 0.08 < shares[0] < shares[1], "a tuned stack hides part of it"


def test_a_planned_405b_on_64_gpus_communicates_15_to_30_percent_of_its_step() -> None:
    """Batches of 0.5 to 4 M tokens: what the planned layout sends, hidden behind compute or not."""
    calibration = load_calibration()
    tuned = replace(calibration.software["tuned"], tp_exposed=1.0, dp_exposed=1.0, pp_exposed=1.0)
    open_traffic = replace(calibration, software={**calibration.software, "tuned": tuned})
    kind, shares = ROOMY, []
    for tokens, precision in product((0.5e6, 1e6, 4e6), BOTH):
        work = training("Llama-3.1-405B", global_batch_tokens=tokens, precision=precision)
        layout = estimator().training([work], [kind], [8]).layout(0, 0, 0)
        case = TrainingCore(load_gpus(), open_traffic).case(work, kind, 8, layout)
        assert case is not None
        shares.append(float(case.step.communication / case.step.total))
    assert all(0.12 < share < 0.33 for share in shares)
    assert 0.15 < np.median(shares) < 0.30


def test_a_planned_405b_on_64_gpus_waits_15_to_30_percent_for_traffic() -> None:
    """64 cards of 80 GB cannot hold its states. Small batches and FP8 show more, large ones less."""
    works = [
        training("Llama-3.1-405B", global_batch_tokens=tokens, precision=precision)
        for tokens in (0.5e6, 1e6, 4e6)
        for precision in BOTH
    ]
    table = estimator().training(works, [ROOMY, sku(H100)], [8])
    assert not table.fits[:, 1].any()
    shares = [table.estimate(w, 0, 0)["communication_share"] for w in range(len(works))]
    assert 0.15 < np.median(shares) < 0.30
    assert all(0.08 < share < 0.35 for share in shares)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B"])
def test_256_gpus_on_infiniband_beat_ethernet_by_far(model: str) -> None:
    """100 Gbit/s a node. A well-run RoCE is within 5 % of InfiniBand [H3C, Llama 3]."""
    roce = Fabric(FabricKind.ROCE, 3200, 512)
    kinds = [sku(H100), sku(H100, fabric=ETHERNET), sku(H100, fabric=roce)]
    hours = estimator().training([training(model)], kinds, [32]).hours[0, :, 0]
    assert hours[1] > 1.5 * hours[0]
    assert hours[0] <= hours[2] <= 1.05 * hours[0]


def test_virtual_machines_cost_up_to_three_percent() -> None:
    """GPT-3 on 10,752 H100: 0.9795 s on Azure VMs, 0.952 s on bare metal [MLPerf 3.1]; not 10-25 %."""
    kinds = [sku(H100), sku(H100, form=Form.VM)]
    hours = estimator().training([training("Llama-3.1-70B")], kinds, [16]).hours[0, :, 0]
    assert 1.0 <= hours[1] / hours[0] <= 1.03
    steps = {row["id"]: predicted for row, _, predicted in trained()}
    assert steps["mlperf-008"] / steps["mlperf-014"] == pytest.approx(0.9795 / 0.952, abs=0.015)


def test_a100_to_h100_as_measured_under_fsdp() -> None:
    pairs = speedups(trained(), of("16", A100), of("16", H100), across_gpus)
    assert len(pairs) > 30
    assert off(pairs) < 0.15


def test_a100_to_h100_about_doubles_training() -> None:
    """BF16 to BF16: 2.0-2.5x [llm-foundry]; tuned stacks of later years give more."""
    works = [training(model) for model in ("Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B")]
    hours = estimator().training(works, [sku(A100), sku(H100)], [4, 16]).hours
    ratio = hours[:, 0] / hours[:, 1]
    assert ((ratio > 1.9) & (ratio < 3.0)).all()


def test_a100_in_16_bit_to_h100_in_8_bit_triples_training() -> None:
    """And more between stacks of 2022 and 2024: 4.3x for 175B [Korthikanti, DGX Cloud]."""
    works = [training("Llama-3.1-8B", precision=precision) for precision in BOTH]
    hours = estimator().training(works, [sku(A100), sku(H100)], [4, 16]).hours
    ratio = hours[0, 0] / hours[1, 1]
    assert ((ratio > 2.5) & (ratio < 4.3)).all()


@pytest.mark.parametrize(
    "model",
    ["Llama3-8B", "Llama3-70B", "Llama3.1-405B", "GPT3-5B", "GPT3-175B", "Nemotron4-15B", "Nemotron4-340B"],
)
def test_fp8_speeds_up_a_dense_step_as_measured(model: str) -> None:
    """1.34-1.55x in pairs of one container and layout [DGX Cloud], never 2x."""
    pairs = speedups(trained(), of("16", model=model), of("fp8", model=model), same_layout)
    assert len(pairs) >= 4
    assert off(pairs) < 0.12
    assert ((pairs[:, 1] > 1.25) & (pairs[:, 1] < 1.75)).all()


def test_fp8_never_doubles_a_planned_run() -> None:
    models = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "Mixtral-8x7B")
    works = [training(model, precision=precision) for model in models for precision in BOTH]
    kinds = [sku(gpu) for gpu in (H100, "H200-SXM-141GB", "B200-SXM-180GB")]
    hours = estimator().training(works, kinds, [16]).hours[:, :, 0].reshape(len(models), 2, len(kinds))
    ratio = hours[:, 0] / hours[:, 1]
    assert ((ratio > 1.15) & (ratio < 1.75)).all()


def test_fp8_speeds_up_experts_less_than_it_seems() -> None:
    """1.13-1.41x measured, for grouped products of few rows and dispatch stay [DGX Cloud]."""
    pairs = speedups(trained(), of("16", arch="moe"), of("fp8", arch="moe"), same_layout)
    assert ((pairs[:, 1] > 1.05) & (pairs[:, 1] < 1.55)).all()


@pytest.mark.xfail(reason="experts gain as much as dense layers: 1.48 where 13 pairs measured 1.24 (+18 %)")
def test_fp8_speeds_up_experts_as_measured() -> None:
    pairs = speedups(trained(), of("16", arch="moe"), of("fp8", arch="moe"), same_layout)
    assert off(pairs) < 0.15


def test_nvfp4_speeds_up_an_fp8_step_as_measured() -> None:
    """1.36x for 405B, 1.13-1.44x for 70B, in the same layout [Megatron-Bridge]."""
    pairs = speedups(trained(), of("fp8", arch="dense"), of("fp4", arch="dense"), same_layout)
    assert len(pairs) >= 10
    assert off(pairs) < 0.15
    assert 1.1 < np.median(pairs[:, 1]) < 1.55


def test_h100_to_b200_is_2_1_to_2_4() -> None:
    """The same layout, no memory at stake: 2.1-2.4x in one container [Megatron-Bridge], a tenth of slack."""
    for precision in BOTH:
        work = training("Llama-3.1-8B", precision=precision)
        hours = estimator().training([work], [sku(H100), sku("B200-SXM-180GB")], [4, 16]).hours[0]
        assert ((hours[0] / hours[1] > 2.0) & (hours[0] / hours[1] < 2.5)).all()


@pytest.mark.parametrize(("number_format", "least"), [("16", 0.95), ("fp8", 0.90)])
def test_weak_scaling_keeps_what_was_measured(number_format: str, least: float) -> None:
    """8-64x the H100s at the same batch each: 95-100 % in BF16, 90-98 % in FP8 [DGX Cloud]."""
    kept = retained(number_format)
    assert len(kept) >= 10
    assert least < np.median(kept[:, 1]) <= 1.0
    assert (kept[:, 1] > least - 0.05).all()
    assert np.mean(np.abs(kept[:, 1] - kept[:, 0])) < 0.03


def retained(number_format: str) -> Ratios:
    """Measured and predicted speed per GPU of the largest run over that of the smallest, per table."""
    series: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for row, measured, predicted in trained():
        if row["id"].startswith("dgxc") and format_of(row) == number_format and row["workload"] == "pretrain":
            each = f"{float(row['global_batch']) / float(row['gpus_total']):.4f}"
            cells = (row[name] for name in ("source", "gpu", "tp", "pp", "cp", "micro_batch"))
            series.setdefault((each, *cells), []).append((float(row["gpus_total"]), measured, predicted))
    ends = [(min(runs), max(runs)) for runs in series.values()]
    return as_array([(few[1] / many[1], few[2] / many[2]) for few, many in ends if many[0] >= 8 * few[0]])


def test_strong_scaling_falls() -> None:
    """Megatron 177B from 96 to 4,608 H100: MFU 47 to 42 %, at one batch [Megatron-Core]."""
    table = estimator().training([training("GPT-3-175B", sequence_length=2048)], [sku(H100)], [16, 64, 256])
    mfu = [table.estimate(0, 0, n)["mfu"] for n in range(3)]
    assert mfu[0] > mfu[1] > mfu[2] > 0.6 * mfu[0]


def test_plain_data_parallelism_at_a_fixed_batch_collapses() -> None:
    """1.34B, one micro-batch left on 256 GPUs: 40.1k to 15.7k tokens/s a GPU [playbook grid]."""
    best: dict[str, tuple[float, float]] = {"8": (0.0, 0.0), "256": (0.0, 0.0)}
    for row, measured, predicted in gridded():
        plain = row["tp"] == row["pp"] == "1" and row["zero"] == "0" and row["params_b"] == "1.34"
        if plain and row["gpus_total"] in best:
            each = float(row["global_batch"]) / float(row["gpus_total"])
            speed = (each / measured, each / predicted)
            best[row["gpus_total"]] = max(best[row["gpus_total"]], speed)
    kept = [best["256"][side] / best["8"][side] for side in (0, 1)]
    assert kept[1] == pytest.approx(kept[0], abs=0.10)


@pytest.mark.parametrize(("degree", "gpus", "loss"), [("16", "16", 0.43), ("32", "32", 0.65)])
def test_tensor_groups_across_nodes_lose_what_was_measured(degree: str, gpus: str, loss: float) -> None:
    """3.57B on H100, EFA: 16 ranks on 2 nodes give 43 % less than 8, 32 on 4 nodes 65 % [playbook grid].

    That cluster's fabric is 40 % slower than other EFA sweeps, which set the constants: hence the tolerance.
    """
    best = {"8": 0.0, degree: 0.0}
    for row, _, predicted in gridded():
        same = row["params_b"] == "3.57" and row["gpus_total"] == gpus and row["pp"] == "1"
        if same and row["zero"] == "0" and row["tp"] in best:
            best[row["tp"]] = max(best[row["tp"]], float(row["global_batch"]) / predicted)
    assert 1 - best[degree] / best["8"] == pytest.approx(loss, abs=0.12)


def test_a_spot_node_that_leaves_once_a_day_costs_a_few_percent() -> None:
    """Rework of half a save interval and a restart each: 4 nodes, 4 losses a day, some 15 minutes each."""
    table = estimator().training([training("Llama-3.1-8B")], [sku(H100)], [4])
    hours = table.hours_at(0, 0, 0, as_array([0.0, 1 / 24]))
    assert 1.02 < hours[1] / hours[0] < 1.12
