"""How runs train: bytes, passes, checkpoints and host memory of adapters, optimizers and teachers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.catalogue import load_models
from broker.domain.moving.moving_costs import checkpoint_gb, finished_weights_gb
from broker.domain.planning.workload import Training, TrainingStack
from broker.domain.workloads.training_method import (
    Adapter,
    AdapterKind,
    BaseFormat,
    Objective,
    Offload,
    Optimizer,
    OptimizerName,
    Target,
    TrainingMethod,
    WeightMode,
    adapter_params,
    target_params,
)
from optimizer.performance.arrays import number
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import training_needs
from optimizer.performance.training.compute import model_flops_per_token
from optimizer.performance.training.scenario import trained_model
from tests.performance.builders import estimator, rows_of, sku, training
from tests.performance.outside import training_figures
from tests.performance.test_rows import predict

EIGHT_B, SEVENTY_B = (load_models()[name] for name in ("Llama-3.1-8B", "Llama-3.1-70B"))
QLORA = Adapter(base=BaseFormat.INT4)
ROW = {
    "id": "r", "kind": "training", "model": "Llama-3.1-8B", "gpu": "A100-SXM-80GB", "gpus_total": "8",
    "gpus_per_node": "8", "seq_len": "2048", "global_batch": "32", "micro_batch": "2", "tp": "1", "pp": "1",
    "dp": "8", "precision": "BF16", "framework": "Hugging Face transformers", "recompute": "full",
}  # fmt: skip


def told(**cells: str) -> dict[str, float]:
    """Seconds of a step, GiB, and share of the peak of the row with other cells."""
    (found,) = predict([ROW | cells])
    assert found["pred_step_time_s"], found["note"]
    return {name: float(found[f"pred_{name}"]) for name in ("step_time_s", "mem_gib", "mfu")}


def run(**changes: Any) -> Training:
    return training(model="Llama-3.1-8B", **changes)


@pytest.mark.parametrize(
    ("model", "adapter", "params"),
    [
        ("Llama-3.2-3B", Adapter(rank=32, targets=(Target.Q_PROJ, Target.V_PROJ)), 9_175_040),
        ("Llama-3.2-3B", Adapter(rank=64, targets=(Target.Q_PROJ, Target.V_PROJ)), 18_350_080),
        ("Llama-3.2-3B", Adapter(rank=10, targets=(Target.MLP,)), 9_461_760),
        ("Llama-3.2-3B", Adapter(AdapterKind.DORA, 32, (Target.Q_PROJ, Target.V_PROJ)), 9_289_728),
    ],
)
def test_adapters_have_as_many_parameters_as_peft_counts(model: str, adapter: Adapter, params: int) -> None:
    """num_trainable_params of PEFT's own benchmark (method_comparison/MetaMathQA)."""
    assert adapter_params(load_models()[model], adapter) == params


def test_every_expert_has_adapters_but_a_token_meets_the_active_ones() -> None:
    moe, mlp = load_models()["Mixtral-8x7B"], Adapter(rank=16, targets=(Target.MLP,))
    each = 16 * 3 * (moe.hidden + moe.moe_ffn)
    assert adapter_params(moe, mlp) == 32 * 8 * each
    assert target_params(moe, mlp) == pytest.approx(moe.moe_layers * 8 * moe.expert_params)


def test_the_floats_of_a_method_are_those_that_it_computes() -> None:
    """6·N for all weights, 4·N with frozen ones, 8·N with a reference, 6·N + 2·N' with a teacher; attention
    apart (Kaplan et al., 2020).
    """
    length, params = number(1), float(trained_model(EIGHT_B, TrainingMethod()).shapes.active_matrix_params)

    def passes(method: TrainingMethod) -> float:
        return float(model_flops_per_token(trained_model(EIGHT_B, method), length)) / params

    assert passes(TrainingMethod()) == pytest.approx(6.0, rel=1e-3)
    assert passes(TrainingMethod(adapter=Adapter(rank=1))) == pytest.approx(4.0, rel=1e-2)
    assert passes(TrainingMethod(Objective.DPO)) == pytest.approx(8.0, rel=1e-3)
    taught = TrainingMethod(Objective.DISTILL, teacher=SEVENTY_B)
    assert passes(taught) == pytest.approx(6.0 + 2.0 * 69.5e9 / params, rel=2e-2)


def test_a_base_in_fewer_bits_takes_less_memory_and_more_time() -> None:
    wide, narrow = (told(adapter="lora", base=base) for base in ("bf16", "int4"))
    saved = (2.0 - 0.516) * 6.98e9 / 2**30
    widened = 2.0 * 32 * 4096 * 2 * 2048 / 2**30  # PEFT puts hidden states of quantised models into FP32
    assert wide["mem_gib"] - narrow["mem_gib"] == pytest.approx(saved - widened, rel=0.02)
    assert 1.0 < narrow["step_time_s"] / wide["step_time_s"] < 1.3


def test_frozen_weights_save_a_third_of_the_products() -> None:
    full, frozen = (
        told(recompute="none", micro_batch="1"),
        told(recompute="none", micro_batch="1", adapter="lora"),
    )
    assert 0.6 < frozen["step_time_s"] / full["step_time_s"] < 0.85


@pytest.mark.parametrize(
    ("cells", "bytes_per_param"),
    [
        ({"optimizer": "adamw8bit"}, 8.0 - 2.03),
        ({"optimizer": "paged_adamw8bit"}, 8.0),
        ({"optimizer": "adafactor"}, 8.0 - 0.01),
        ({"optimizer": "muon"}, 4.0),
        ({"optimizer": "sgd"}, 8.0),
    ],
)
def test_an_optimizer_saves_the_bytes_of_its_moments(cells: dict[str, str], bytes_per_param: float) -> None:
    usual = {"zero_fsdp": "0", "gpu": "B300-SXM-288GB"}
    saved = told(**usual)["mem_gib"] - told(**usual, **cells)["mem_gib"]
    assert saved * 2**30 == pytest.approx(bytes_per_param * EIGHT_B.total_params, rel=1e-2)


def test_pure_bf16_holds_ten_bytes_a_parameter_while_adamw_steps() -> None:
    """2 of weights, gradients and each moment, and 2 of what AdamW holds while it steps: 67.46 GiB of
    Mistral 7B, whatever the batch (fms-acceleration).
    """
    one = {"model": "Mistral-7B", "gpus_total": "1", "gpus_per_node": "1", "dp": "1", "weights": "bf16"}
    found = told(**one, seq_len="4096", global_batch="4", micro_batch="4")
    assert found["mem_gib"] == pytest.approx(67.46, rel=0.03)


def test_offloaded_states_leave_the_card_and_wait_for_the_host() -> None:
    kept, states, everything = (
        told(zero_fsdp="ZeRO-3", offload=word) for word in ("none", "optimizer", "all")
    )
    assert kept["mem_gib"] > states["mem_gib"] > everything["mem_gib"]
    assert kept["step_time_s"] < states["step_time_s"] <= everything["step_time_s"]
    coherent = [
        told(zero_fsdp="ZeRO-3", offload="all", gpu=gpu, gpus_total="1", gpus_per_node="1", dp="1")
        for gpu in ("H100-SXM-80GB", "GH200-96GB")
    ]
    assert coherent[1]["step_time_s"] < coherent[0]["step_time_s"]


def test_paged_states_move_only_where_the_card_is_full() -> None:
    roomy = {"zero_fsdp": "0", "gpu": "B300-SXM-288GB", "micro_batch": "1"}
    fast, paged = (told(**roomy, optimizer=name) for name in ("adamw8bit", "paged_adamw8bit"))
    assert paged["step_time_s"] == pytest.approx(fast["step_time_s"])
    tight = {"zero_fsdp": "0", "micro_batch": "1", "weights": "bf16", "gpu": "A100-SXM-40GB"}
    fast, paged = (told(**tight, optimizer=name) for name in ("adamw8bit", "paged_adamw8bit"))
    assert paged["step_time_s"] > fast["step_time_s"]


def test_offloaded_activations_leave_two_layers() -> None:
    kept, moved = (
        told(adapter="lora", offload_activations=word, micro_batch="8", global_batch="64")
        for word in ("false", "true")
    )
    inputs = 2.0 * 4096 * 8 * 2048 / 2**30
    assert kept["mem_gib"] - moved["mem_gib"] == pytest.approx(30 * inputs, rel=0.02)
    assert moved["step_time_s"] >= kept["step_time_s"]


def test_preferences_hold_a_reference_and_run_it_forward() -> None:
    sft, dpo, frozen = told(workload="sft"), told(method="dpo"), told(method="dpo", adapter="lora")
    reference = 2.0 * EIGHT_B.total_params / 2**30
    assert dpo["mem_gib"] - sft["mem_gib"] == pytest.approx(reference, rel=0.02)
    assert 1.15 < dpo["step_time_s"] / sft["step_time_s"] < 1.4
    assert frozen["mem_gib"] < told(adapter="lora")["mem_gib"] + 0.1
    (odd,) = predict([ROW | {"method": "dpo", "micro_batch": "1"}])
    assert odd["fits"] == "false"


def test_a_teacher_takes_its_weights_and_a_forward_pass() -> None:
    alone = told(workload="sft", model="Llama-3.2-1B")
    small, large = (
        told(method="distill", model="Llama-3.2-1B", teacher=teacher)
        for teacher in ("Llama-3.2-3B", "Llama-3.1-8B")
    )
    assert alone["step_time_s"] < small["step_time_s"] < large["step_time_s"]
    assert large["mem_gib"] - alone["mem_gib"] == pytest.approx(2.0 * EIGHT_B.total_params / 2**30, rel=0.02)


def test_batches_that_are_not_packed_are_padded() -> None:
    """Tokens over those without padding, by sequences in a micro-batch: Orca-Math of fms-acceleration."""
    packed = told(seq_len="600", global_batch="64", micro_batch="8")
    for batch, padding in (("2", 1.27), ("4", 1.54), ("8", 1.81)):
        cells = {"global_batch": "64", "micro_batch": batch, "packed": "false", "mean_tokens": "300"}
        longer = told(**cells, seq_len="4096")
        short = told(seq_len="300", global_batch="64", micro_batch=batch)
        share = longer["step_time_s"] / short["step_time_s"]
        assert 0.8 * padding < share < 1.1 * padding
        assert longer["mfu"] < packed["mfu"]
    capped = told(seq_len="300", global_batch="64", packed="false", mean_tokens="300")
    assert capped["step_time_s"] == pytest.approx(told(seq_len="300", global_batch="64")["step_time_s"])


def test_dora_costs_more_than_lora() -> None:
    lora, dora = (told(adapter=kind, targets="all") for kind in ("lora", "dora"))
    assert 1.0 < dora["step_time_s"] / lora["step_time_s"] < 1.5
    assert dora["mem_gib"] > lora["mem_gib"]


def test_checkpoints_of_adapters_are_small() -> None:
    full, frozen = run(), run(adapter=Adapter(rank=16))
    assert checkpoint_gb(full) == pytest.approx(14 * EIGHT_B.total_params / 1e9)
    assert checkpoint_gb(frozen) == pytest.approx(14 * adapter_params(EIGHT_B, Adapter(rank=16)) / 1e9)
    assert finished_weights_gb(frozen) < 0.01 * finished_weights_gb(full)
    core = estimator()
    assert core.begun_again_hours(frozen, 1, 8) < core.begun_again_hours(full, 1, 8)
    eight = run(optimizer=Optimizer(OptimizerName.ADAMW8BIT), weights=WeightMode.BF16)
    assert checkpoint_gb(eight) == pytest.approx(4.03 * EIGHT_B.total_params / 1e9)


def test_the_host_holds_what_is_offloaded() -> None:
    calibration = load_calibration()

    def memory(**changes: Any) -> float:
        return training_needs(run(**changes), 1, 8, calibration).memory_gb

    offloads = {one: Optimizer(offload=one) for one in Offload}
    states, everything = (
        memory(optimizer=offloads[one]) - memory() for one in (Offload.OPTIMIZER, Offload.ALL)
    )
    assert states == pytest.approx(16 * EIGHT_B.total_params / 1e9, rel=1e-3)
    assert everything - states == pytest.approx(2 * EIGHT_B.total_params / 1e9)
    disk = training_needs(run(adapter=QLORA), 1, 8, calibration).disk_gb
    assert disk == pytest.approx(30.0 + 2 * EIGHT_B.total_params / 1e9, rel=0.05)


def test_a_quantised_base_is_planned_on_one_card() -> None:
    small = replace(
        run(adapter=QLORA, software=TrainingStack.EAGER, sequence_length=2048, global_batch_tokens=65_536.0),
        model=SEVENTY_B,
    )
    table = estimator().training([small, replace(small, adapter=None)], [sku("A100-SXM-80GB", gpus=1)], [1])
    assert np.isfinite(table.hours[0, 0, 0])
    assert not np.isfinite(table.hours[1, 0, 0])
    layout = table.layout(0, 0, 0)
    assert (layout.tp, layout.pp, layout.dp) == (1, 1, 1)


def test_published_rows_of_methods_are_predicted() -> None:
    """38 rows of fms-acceleration, PEFT and torchtune that no fit saw; without their words, full training in
    mixed precision would be predicted, four times too large in the median.
    """
    figures = training_figures("published_methods")
    steps, peaks = (
        np.abs(np.log([figure.ratio for figure in figures if figure.metric == metric]))
        for metric in ("step time", "peak memory")
    )
    assert (len(steps), len(peaks)) == (36, 38)
    assert np.median(steps) < 0.22
    assert np.median(peaks) < 0.13
    found = predict(rows_of("published_methods.csv"))
    assert sum(row["fits"] == "false" for row in found) <= 2
