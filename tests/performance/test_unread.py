"""Rows of other methods, formats and engines are refused; what is not used of a row stands in its note."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optimizer.calibration.tables.rows import is_serving
from optimizer.calibration.tables.unread import require_predictable
from tests.bench.calibration.bundled import beside_rows, bundled_rows
from tests.cli.running import broker
from tests.performance.test_rows import predict, serving_row

TRAINING = {
    "id": "t",
    "kind": "training",
    "model": "Llama-3.1-8B",
    "gpu": "H100-SXM-80GB",
    "gpus_total": "8",
    "gpus_per_node": "8",
    "seq_len": "4096",
    "global_batch": "64",
    "precision": "BF16",
    "workload": "finetune",
}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"workload": "grpo"}, "known are distill"),
        ({"method": "ppo"}, "known are distill"),
        ({"method": "distill"}, "the column teacher is missing"),
        ({"precision": "QLoRA"}, "known are BF16, FP16, FP8"),
        ({"precision": "nf4"}, "known are BF16, FP16, FP8"),
        ({"precision": "posit"}, "known are BF16, FP16, FP8"),
        ({"optimizer": "paged_lion"}, "known are adamw, adamw8bit"),
        ({"optimizer": "adagrad"}, "known are adamw, adamw8bit"),
        ({"adapter": "ia3"}, "known are lora, sft-lora, dora"),
        ({"use_lora": "true", "targets": "embed_tokens"}, "known are all, attention, mlp"),
        ({"use_lora": "true", "base": "int3"}, "known are bf16, fp8, int8, int4"),
        ({"offload": "true"}, "known are none, optimizer, all"),
        ({"param_offload": "true"}, "in the column offload"),
        ({"weights": "fp32"}, "known are mixed, bf16"),
        ({"packed": "false"}, "mean_tokens is missing"),
        ({"offload_activations": "some"}, "known are true and false"),
        ({"load_in_4bit": "True"}, "frozen weights need adapters"),
        ({"zero_fsdp": "ZeRO-3 offload"}, "in the column offload"),
        ({"kind": "tuning"}, "known are training and serving"),
        ({"framework": "TRL GRPO"}, "a method that no column states"),
        ({"model": "Llama-3.1-8B-Instruct-GPTQ-Int4"}, "frozen weights need adapters"),
        ({"model": "Llama-3.1-8B-HQQ-1bit"}, "weights in few bits are not trained"),
        ({"model": "Llama-3.1-8B-SmoothQuant"}, "frozen weights need adapters"),
    ],
)
def test_a_training_row_of_another_method_is_blank(cells: dict[str, str], reason: str) -> None:
    sound, other = predict([TRAINING, TRAINING | cells])
    assert sound["pred_step_time_s"]
    assert (other["pred_step_time_s"], other["fits"]) == ("", "")
    assert reason in other["note"]
    assert any(column in other["note"] for column in cells) or "distill" in other["note"]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"enforce_eager": "1"}, "without CUDA graphs"),
        ({"cuda_graph": "false"}, "without CUDA graphs"),
        ({"engine": "vLLM --enforce-eager"}, "without CUDA graphs"),
        ({"engine": "tgi"}, "known are mlperf"),
        ({"weight_precision": "posit8"}, "known are bf16, fp16, fp8"),
        ({"kv_precision": "turbo3"}, "known are bf16, fp16, fp8"),
        ({"cpu_offload_gb": "20"}, "not predicted"),
        ({"weight_precision": "", "quantization": "awq"}, "in the column weight_precision"),
        ({"weight_precision": "GPTQ 2-bit"}, "known are bf16, fp16, fp8"),
        ({"weight_precision": "1.58bit"}, "known are bf16, fp16, fp8"),
        ({"weight_precision": "", "model": "Llama-3.1-8B-Instruct-FP6"}, "weights in fewer than 8 bits"),
        ({"weight_precision": "", "model": "Llama-3.1-8B-AQLM-2Bit-1x16"}, "weights in fewer than 8 bits"),
        ({"weight_precision": "", "model": "Llama-3.1-8B-IQ2_XXS"}, "weights in a format of local engines"),
        ({"weight_precision": "", "model": "Llama-3.1-8B-2.5bpw-exl2"}, "weights in a format of local"),
        (
            {"weight_precision": "", "model": "Llama-3.1-8B-SpinQuant"},
            "weights in a format that is not known",
        ),
    ],
)
def test_a_serving_row_of_another_way_is_blank(cells: dict[str, str], reason: str) -> None:
    (found,) = predict([serving_row(**cells)])
    assert (found["pred_tpot_ms_p50"], found["fits"]) == ("", "")
    assert reason in found["note"]


@pytest.mark.parametrize(
    ("word", "same_as"), [("HQQ", "int4"), ("SmoothQuant", "int8"), ("W4A8FP8", "int4"), ("Q5_K_M", "int5")]
)
def test_the_format_of_a_name_is_predicted(word: str, same_as: str) -> None:
    model = serving_row()["model"]
    named, stated = predict(
        [serving_row(model=f"{model}-{word}", weight_precision=""), serving_row(weight_precision=same_as)]
    )
    assert named["pred_tpot_ms_p50"] == stated["pred_tpot_ms_p50"] != ""


def test_what_changes_nothing_is_noted_and_predicted() -> None:
    plain = predict([serving_row(), TRAINING | {"workload": "lora"}])
    rows = [
        serving_row(rack="7", enforce_eager="false", notes="run with --enforce-eager"),
        TRAINING
        | {
            "workload": "lora",
            "lora_r": "16",
            "lora_alpha": "32",
            "optimizer": "adamw_torch",
            "notes": "like QLoRA",
        },
    ]
    found = predict(rows)
    assert found[0]["pred_tpot_ms_p50"] == plain[0]["pred_tpot_ms_p50"] != ""
    assert found[1]["pred_step_time_s"] == plain[1]["pred_step_time_s"] != ""
    assert "rack (a column that is not read)" in found[0]["note"]
    assert "notes: enforce-eager (not predicted)" in found[0]["note"]
    assert "lora_alpha (a column that is not read)" in found[1]["note"]
    assert "notes: QLoRA (not predicted)" in found[1]["note"]


def test_the_bundled_tables_refuse_no_row() -> None:
    for row in bundled_rows() + beside_rows():
        require_predictable(row, serving=is_serving(row))


def test_the_command_lists_columns_and_refuses_cells_without_one(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text(
        "id,kind,model,gpu,gpus_total,seq_len,global_batch,rack\na,training,Llama-3.1-8B,H100,8,4096,64,7\n"
    )
    told = broker("perf", "predict", file, out, "--json")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["left_out"] == [{"what": "rack", "why": "a column that is not read"}]
    assert "left out: rack: a column that is not read" in broker("perf", "predict", file, out).stderr
    file.write_text("id,kind\na,training,7\n")
    beyond = broker("perf", "predict", file, out)
    assert beyond.exit_code == 2
    assert "(line 2): found '7' after the last column" in beyond.stderr
