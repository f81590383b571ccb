"""What practitioners know by heart must come out of the core. Who measured it stands in brackets; where both
rows are bundled, the core's ratio is held against the measured one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.sku import Fabric, FabricKind, Form
from broker.domain.workload import Precision, Slo
from optimizer.performance.arrays import as_array
from optimizer.performance.calibration import load_calibration
from optimizer.performance.hardware import build_hardware
from optimizer.performance.layouts import stack_layouts
from optimizer.performance.scenario import Run, Scenario
from optimizer.performance.shapes import build_shape
from optimizer.performance.training import step
from optimizer.performance.training_estimate import TrainingCore
from tests.performance.builders import ETHERNET, INFINIBAND, batch, estimator, serving, sku, training
from tests.performance.pairs import (
    SAME_LOAD,
    SAME_RUN,
    Ratios,
    Row,
    format_of,
    gridded,
    off,
    same_layout,
    same_load,
    served,
    speedups,
    trained,
)

H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
BOTH = (Precision.BF16, Precision.FP8)


def of(number_format: str, gpu: str = "", **columns: str) -> Callable[[Row], bool]:
    """Rows of a number format, on GPUs whose name begins so, with these cells."""

    def belongs(row: Row) -> bool:
        known = format_of(row) == number_format and row["gpu"].startswith(gpu)
        return known and all(row[name] == value for name, value in columns.items())

    return belongs


def across_gpus(row: Row) -> tuple[str, ...]:
    """The same table and work, whatever the GPU."""
    names = SAME_LOAD if row["kind"] == "serving" else SAME_RUN
    return (row.get("metric", ""), row["id"].split("-")[0], *(row[name] for name in names))


# Training.


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
    """H200, batches of 0.5 to 4 M tokens: what the planned layout sends, hidden behind compute or not."""
    calibration = load_calibration()
    tuned = replace(calibration.software["tuned"], tp_exposed=1.0, dp_exposed=1.0, pp_exposed=1.0)
    open_traffic = replace(calibration, software={**calibration.software, "tuned": tuned})
    kind, shares = sku("H200-SXM-141GB"), []
    for tokens, precision in product((0.5e6, 1e6, 4e6), BOTH):
        work = training("Llama-3.1-405B", global_batch_tokens=tokens, precision=precision)
        layout = estimator().training([work], [kind], [8]).layout(0, 0, 0)
        case = TrainingCore(load_gpus(), open_traffic).case(work, kind, 8, layout)
        assert case is not None
        shares.append(float(case.step.communication / case.step.total))
    assert all(0.12 < share < 0.33 for share in shares)
    assert 0.15 < np.median(shares) < 0.30


@pytest.mark.xfail(reason="plans hide a third of it and show 10-12 % in BF16, 16-18 % in FP8: median 14 %")
def test_a_planned_405b_on_64_gpus_waits_15_to_30_percent_for_traffic() -> None:
    """H200: 64 cards of 80 GB cannot hold its states. Small batches and FP8 show more, large ones less."""
    works = [
        training("Llama-3.1-405B", global_batch_tokens=tokens, precision=precision)
        for tokens in (0.5e6, 1e6, 4e6)
        for precision in BOTH
    ]
    table = estimator().training(works, [sku("H200-SXM-141GB"), sku(H100)], [8])
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


@pytest.mark.xfail(
    reason="gradients of a 1.34B over 256 GPUs are hidden too well: keeps 63 % where 39 % was measured"
)
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


# Serving.


def test_a_7b_serves_well_on_one_24_to_48_gb_card() -> None:
    """A chat turn, first token in a second, 16 tokens a second and more; L4 (300 GB/s) wants 8 or 4 bit."""
    chat = [serving(m, 500, 200) for m in ("Qwen2.5-7B", "Llama-2-7B", "Llama-3.1-8B")]
    small = (Precision.FP8, Precision.INT4)
    cards = [sku(gpu, 1, fabric=None) for gpu in ("A10G", "RTX-4090", "RTX-A6000", "L40S")]
    assert (estimator().serving(chat, cards).requests_per_s.max(axis=2) > 1.0).all()
    packed = [serving(m, 500, 200, precisions=small) for m in ("Qwen2.5-7B", "Llama-3.1-8B")]
    table = estimator().serving(packed, [sku("L4", 1, fabric=None), sku("T4", 1, fabric=None)])
    assert (table.requests_per_s[:, 0].max(axis=1) > 0.5).all()


def test_a_70b_wants_80_gb_or_more_or_a_tensor_group() -> None:
    """16 bit is 141 GB: one card of 180 GB and more, two of 80, four of 48. 8 bit: one of 80, just."""
    relaxed = Slo(2000, 80)
    works = [serving("Llama-3.1-70B", precisions=(form,), slo=relaxed) for form in BOTH]
    names = ("A10G", "L40S", "A100-SXM-40GB", A100, H100, "H200-SXM-141GB", "MI300X-192GB", "B200-SXM-180GB")
    table = estimator().serving(works, [sku(gpu) for gpu in names])
    fits = {
        (config.precision, config.tp, gpu): bool(table.fits[w, s, c])
        for w, form in enumerate(BOTH)
        for s, gpu in enumerate(names)
        for c, config in enumerate(table.configs)
        if config.pp == 1 and config.precision is form
    }
    alone = {form: [gpu for gpu in names if fits[form, 1, gpu]] for form in BOTH}
    assert alone[Precision.BF16] == ["MI300X-192GB", "B200-SXM-180GB"]
    assert alone[Precision.FP8] == [H100, "H200-SXM-141GB", "MI300X-192GB", "B200-SXM-180GB"]
    assert fits[Precision.BF16, 2, A100]
    assert fits[Precision.BF16, 2, H100]
    assert not fits[Precision.BF16, 2, "A100-SXM-40GB"]
    assert fits[Precision.BF16, 4, "L40S"]


@pytest.mark.parametrize("model", ["Mistral-Large-123B", "Falcon-180B", "Llama-3.1-405B", "GPT-3-175B"])
def test_over_70b_needs_several_gpus(model: str) -> None:
    """In 16 bit on any card of up to 192 GB, and somewhere on eight."""
    names = [gpu for gpu, spec in load_gpus().items() if spec.memory_gb <= 192]
    work = serving(model, precisions=(Precision.BF16,), slo=Slo(5000, 200))
    table = estimator().serving([work], [sku(gpu) for gpu in names])
    alone = [c for c, config in enumerate(table.configs) if config.gpus_per_replica == 1]
    group = [c for c, config in enumerate(table.configs) if config.gpus_per_replica > 1]
    assert not table.fits[0][:, alone].any()
    assert table.fits[0][:, group].any()


def test_a100_to_h100_serving_as_measured() -> None:
    """TensorRT-LLM's tables in 16 bit, 132 pairs: 1.6-2.5x."""
    pairs = speedups(served(), of("16", A100, source="trtllm-max"), of("16", H100), across_gpus)
    assert len(pairs) > 100
    assert off(pairs) < 0.15
    assert np.quantile(pairs[:, 1], 0.05) > 1.3
    assert np.quantile(pairs[:, 1], 0.95) < 3.0


def test_a100_to_h100_serving_depends_on_workload_and_format() -> None:
    """About 1.3x where bandwidth or launches decide, about 3x where prompts and 8 bit do."""
    shapes = ((100, 1000), (1500, 300), (8000, 100))
    works = [
        batch(m, input_tokens=i, output_tokens=o, precisions=BOTH)
        for m in ("Llama-3.1-8B", "Llama-3.1-70B")
        for i, o in shapes
    ]
    table = estimator().serving(works, [sku(A100), sku(H100)])
    plain = [c for c, k in enumerate(table.configs) if (k.precision, k.tp, k.pp) == (BOTH[0], 8, 1)]
    eight = [c for c, k in enumerate(table.configs) if (k.precision, k.tp, k.pp) == (BOTH[1], 8, 1)]
    rates = table.requests_per_s
    same = (rates[:, 1, plain] / rates[:, 0, plain])[:, 0]
    packed = (rates[:, 1, eight] / rates[:, 0, plain])[:, 0]
    assert ((same > 1.2) & (same < 3.3)).all()
    assert (packed > same).all()
    assert packed.max() > 2.7
    assert same.min() < 2.2


@pytest.mark.parametrize(
    ("older", "newer", "least", "most"),
    [("H100-SXM", "H200", 1.0, 1.35), ("H100-SXM", "B200", 1.4, 2.2), ("H200", "B200", 1.1, 1.9)],
)
def test_newer_cards_answer_sooner_as_measured(older: str, newer: str, least: float, most: float) -> None:
    """Time between tokens in one benchmark, engine and concurrency, 8-bit weights (InferenceMAX)."""
    source = {"source": "inferencemax-aic"}
    pairs = speedups(served(), of("fp8", older, **source), of("fp8", newer, **source), across_gpus)
    assert len(pairs) >= 40
    assert off(pairs) < 0.15
    assert least < np.median(pairs[:, 1]) < most


@pytest.mark.parametrize(
    ("source", "regime", "before", "after", "count"),
    [
        ("trtllm-max", "offline_max", "16", "fp8", 100),
        ("accelmark", "offline_burst", "16", "fp8", 10),
        ("inferencemax-aic", "closed_loop", "fp8", "fp4", 100),
    ],
)
def test_smaller_formats_raise_throughput_by_what_was_measured(
    source: str, regime: str, before: str, after: str, count: int
) -> None:
    where = {"source": source, "regime": regime}
    pairs = speedups(served(), of(before, **where), of(after, **where), same_load)
    assert len(pairs) >= count
    assert off(pairs) < 0.15
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.10)


@pytest.mark.xfail(
    reason="4-bit kernels of local engines are read too fast: 1.88 where 32 pairs measured 1.53"
)
def test_int4_speeds_up_one_stream_by_what_was_measured() -> None:
    """MLC on consumer and data-centre cards: 1.2-2.3x, no 4x, in the median 1.53; single pairs scatter."""
    where = {"source": "mlc-bench"}
    pairs = speedups(served(), of("16", **where), of("int4", **where), same_load)
    assert len(pairs) >= 30
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.15)
    assert off(pairs) < 0.25
    assert pairs[:, 1].max() < 3.0


def test_int8_raises_throughput_by_what_was_measured() -> None:
    where = {"source": "accelmark", "regime": "offline_burst"}
    pairs = speedups(served(), of("16", **where), of("int8", **where), same_load)
    assert off(pairs) < 0.15


@pytest.mark.xfail(reason="widening 4-bit weights costs too little in full batches: 0.96, measured 0.67")
def test_int4_loses_full_batches_by_what_was_measured() -> None:
    """vLLM 0.7 with packed weights computes in 16 bit: slower than 16 bit once products decide."""
    where = {"source": "accelmark", "regime": "offline_burst"}
    pairs = speedups(served(), of("16", **where), of("int4", **where), same_load)
    assert off(pairs) < 0.15


def test_pcie_boxes_stop_scaling_where_nvlink_goes_on() -> None:
    """70B from 4 to 8 cards: L40S 1,161 to 1,188 tokens/s, H100 6,933 to 10,730 [TensorRT-LLM]."""
    work = serving("Llama-3.1-70B", 128, 128, precisions=(Precision.FP8,), slo=Slo(5000, 200))
    table = estimator().serving([work], [sku("L40S", fabric=None), sku(H100, fabric=INFINIBAND)])
    rates = {
        config.tp: table.requests_per_s[0, :, c] for c, config in enumerate(table.configs) if config.pp == 1
    }
    gain = rates[8] / rates[4]
    assert gain[0] < 1.35 < gain[1] < 2.0
