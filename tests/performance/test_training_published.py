"""Published runs that no constant was fitted to, in the conventions of their tables."""

from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.training_rows import read_row
from optimizer.performance.constants.calibrated import load_calibration

A100 = {
    "gpu": "A100-SXM-80GB",
    "intra_node_gbps": "2400",
    "inter_node_gbps_per_gpu": "200",
    "fabric": "IB-HDR",
    "virt": "bare-metal",
}
H100 = {
    "gpu": "H100-SXM-80GB",
    "intra_node_gbps": "3600",
    "inter_node_gbps_per_gpu": "400",
    "fabric": "IB-NDR",
    "virt": "bare-metal",
}
# TorchTitan's cards: 96 GB of HBM2e, held to 500 W.
H100_500W = H100 | {"gpu": "H100-SXM-96GB-500W"}
# Narayanan et al., SC21, table 1: parameters (1e9), hidden, layers, heads, tp, pp, GPUs, batch, TFLOPS.
SC21 = [
    (1.7, 2304, 24, 24, 1, 1, 32, 512, 137),
    (3.6, 3072, 30, 32, 2, 1, 64, 512, 138),
    (7.5, 4096, 36, 32, 4, 1, 128, 512, 142),
    (18.4, 6144, 40, 48, 8, 1, 256, 1024, 135),
    (39.1, 8192, 48, 64, 8, 2, 512, 1536, 138),
    (76.1, 10240, 60, 80, 8, 4, 1024, 1792, 140),
    (145.6, 12288, 80, 96, 8, 8, 1536, 2304, 148),
    (310.1, 16384, 96, 128, 8, 16, 1920, 2160, 155),
    (529.6, 20480, 105, 128, 8, 35, 2520, 2520, 163),
    (1008.0, 25600, 128, 160, 8, 64, 3072, 3072, 163),
]
LLAMA_8B = {
    "model": "Llama3-8B",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn_hidden": "14336",
    "gated_mlp": "1",
    "vocab": "128256",
    "seq_len": "8192",
}
GPT_175B = {
    "model": "GPT3-175B",
    "layers": "96",
    "hidden": "12288",
    "heads": "96",
    "kv_heads": "96",
    "ffn_hidden": "49152",
    "gated_mlp": "0",
    "vocab": "131072",
    "seq_len": "4096",
}

MEGASCALE = {
    "layers": "96",
    "hidden": "12288",
    "heads": "128",
    "kv_heads": "128",
    "ffn_hidden": "49152",
    "gated_mlp": "0",
    "vocab": "64000",
    "seq_len": "2048",
    "tp": "8",
    "pp": "8",
    "interleave": "6",
    "precision": "BF16",
    "date": "2024-02",
}


def predicted_step_s(**row: object) -> float:
    told = {"kind": "training", "arch": "dense", "gpus_per_node": "8"} | {k: str(v) for k, v in row.items()}
    found = predict_rows([told], load_calibration(), load_gpus(), load_models())[0]
    return float(found["pred_step_time_s"])


def software_of(row: dict[str, str]) -> str:
    return read_row(row, load_calibration(), load_gpus(), load_models()).software


def test_megatron_of_2021_on_a100() -> None:
    """Its TFLOPS count full recomputation: 96·B·S·L·h²·(1 + S/6h + V/16Lh) FLOPs a step."""
    ratios = []
    for _, hidden, layers, heads, tp, pp, gpus, batch, tflops in SC21:
        flops = 96.0 * batch * 2048 * layers * hidden**2
        flops *= 1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden)
        step_s = predicted_step_s(
            **A100,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            ffn_hidden=4 * hidden,
            gated_mlp=0,
            vocab=51200,
            seq_len=2048,
            global_batch=batch,
            gpus_total=gpus,
            tp=tp,
            pp=pp,
            recompute="full",
            precision="FP16",
            framework="Megatron-LM",
            date="2021-04",
        )
        ratios.append(step_s / (flops / (gpus * tflops * 1e12)))
    off = np.abs(np.asarray(ratios) - 1)
    assert off.mean() < 0.08
    assert off.max() < 0.12


@pytest.mark.parametrize(("gpus", "rate"), [(8, 6674), (128, 6482)])
def test_torchtitan_8b_compiled(gpus: int, rate: float) -> None:
    """TorchTitan paper, table 1: FSDP with torch.compile, tokens/s a GPU at two sequences each."""
    step_s = predicted_step_s(
        **H100_500W,
        **LLAMA_8B,
        global_batch=2 * gpus,
        gpus_total=gpus,
        tp=1,
        pp=1,
        micro_batch=2,
        zero_fsdp="FSDP2",
        recompute="selective",
        precision="BF16",
        framework="torchtitan, torch.compile",
    )
    assert 2 * 8192 / step_s == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize(("gpus", "tflops"), [(96, 462), (4608, 414)])
def test_megatron_177b_scales_strongly(gpus: int, tflops: float) -> None:
    """Megatron-LM's H100 table, 1,152 sequences whatever the GPU count; attention without the causal half."""
    layers, hidden, tokens = 96, 12288, 1152 * 4096
    flops = tokens * (6 * (12 * layers * hidden**2 + 131072 * hidden) + 12 * layers * 4096 * hidden)
    step_s = predicted_step_s(
        **H100,
        **GPT_175B,
        global_batch=1152,
        gpus_total=gpus,
        tp=8,
        pp=6,
        precision="BF16",
        framework="Megatron-LM",
        date="2024-07",
    )
    assert flops / step_s / gpus / 1e12 == pytest.approx(tflops, rel=0.12)


@pytest.mark.parametrize(
    ("gpus", "batch", "measured_s"), [(1536, 768, 10.3), (3072, 1536, 10.3), (6144, 2304, 8.0)]
)
def test_nemotron_340b(gpus: int, batch: int, measured_s: float) -> None:
    """Nemotron-4 340B report, table 2: tensor 8, pipeline 12 in 8 chunks."""
    step_s = predicted_step_s(
        **H100,
        layers=96,
        hidden=18432,
        heads=96,
        kv_heads=8,
        ffn_hidden=73728,
        gated_mlp=0,
        vocab=256000,
        seq_len=4096,
        global_batch=batch,
        gpus_total=gpus,
        tp=8,
        pp=12,
        interleave=8,
        micro_batch=1,
        precision="BF16",
        framework="Megatron-LM",
        date="2024-06",
    )
    assert step_s == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(
    ("framework", "gpus", "batch", "measured_s"),
    [
        ("MegaScale", 256, 768, 32.0),
        ("MegaScale", 1024, 768, 8.9),
        ("MegaScale", 3072, 6144, 23.66),
        ("MegaScale", 12288, 6144, 6.34),
        ("Megatron-LM", 256, 768, 40.0),
        ("Megatron-LM", 1024, 768, 11.9),
        ("Megatron-LM", 3072, 6144, 29.02),
        ("Megatron-LM", 12288, 6144, 8.57),
    ],
)
def test_175b_on_a100_with_and_without_overlap(
    framework: str, gpus: int, batch: int, measured_s: float
) -> None:
    """MegaScale paper, table 2: tensor 8, pipeline 8 in 6 chunks; 65 to 55 % of peak, baseline 53 to 41."""
    step_s = predicted_step_s(**A100, **MEGASCALE, global_batch=batch, gpus_total=gpus, framework=framework)
    assert step_s == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(("chunks", "rate"), [(1, 100), (2, 130)])
def test_torchtitan_405b_with_and_without_interleaving(chunks: int, rate: float) -> None:
    """TorchTitan paper: 512 H100, FSDP 8, tensor 8, pipeline 8, 32 sequences a rank, FP8, tokens/s a GPU.
    Chunks gain 30 %: as many micro-batches as ranks in both."""
    step_s = predicted_step_s(
        **H100_500W,
        layers=126,
        hidden=16384,
        heads=128,
        kv_heads=8,
        ffn_hidden=53248,
        gated_mlp=1,
        vocab=128256,
        seq_len=8192,
        global_batch=256,
        gpus_total=512,
        tp=8,
        pp=8,
        interleave=chunks,
        precision="FP8",
        recompute="full",
        zero_fsdp="FSDP2",
        framework="torchtitan",
    )
    assert 256 * 8192 / 512 / step_s == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize(("gpus", "rate"), [(8, 4062), (1024, 2271)])
def test_internevo_7b_on_50_gbit_s(gpus: int, rate: float) -> None:
    """InternEvo's own table, tokens/s a GPU at 4 M tokens a step: by default it shares the optimizer."""
    step_s = predicted_step_s(
        **(A100 | {"inter_node_gbps_per_gpu": "50"}),
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=32,
        ffn_hidden=11008,
        gated_mlp=1,
        vocab=103168,
        seq_len=2048,
        global_batch=2048,
        micro_batch=1,
        gpus_total=gpus,
        tp=1,
        pp=1,
        precision="BF16",
        framework="InternEvo",
        date="2023-12",
    )
    assert 2048 * 2048 / step_s / gpus == pytest.approx(rate, rel=0.12)


@pytest.mark.parametrize(
    ("gpus", "context", "length", "batch", "tflops"),
    [(8192, 1, 8192, 2048, 430), (16384, 1, 8192, 2048, 400), (16384, 16, 131072, 128, 380)],
)
def test_llama_3_405b(gpus: int, context: int, length: int, batch: int, tflops: float) -> None:
    """The Llama 3 Herd of Models, table 4: tensor 8, pipeline 16, chunks not told; causal FLOPs."""
    step_s = predicted_step_s(
        **(H100 | {"fabric": "RoCE"}),
        layers=126,
        hidden=16384,
        heads=128,
        kv_heads=8,
        ffn_hidden=53248,
        gated_mlp=1,
        vocab=128256,
        seq_len=length,
        global_batch=batch,
        gpus_total=gpus,
        tp=8,
        pp=16,
        cp=context,
        micro_batch=1,
        recompute="none",
        precision="BF16",
        framework="Meta in-house",
    )
    flops = batch * length * (6 * 405e9 + 6 * 126 * length * 16384)
    assert flops / step_s / gpus / 1e12 == pytest.approx(tflops, rel=0.13)


@pytest.mark.parametrize(
    ("framework", "date", "software"),
    [
        ("Megatron-LM", "2021-04", "megatron_2021"),
        ("Megatron-LM", "2022-05", "megatron_2022"),
        ("Meta in-house", "2024-07", "megatron_lm"),
        ("Megatron-LM", "2024-07", "megatron_lm"),
        ("Megatron-Core MoE", "", "tuned"),
        ("MegaScale", "2024-02", "tuned"),
        ("NeMo 24.05", "", "tuned"),
        ("torchtitan", "2024-10", "fsdp"),
        ("torchtitan (FSDP2, torch.compile)", "2024-10", "fsdp_compiled"),
        ("torchtitan without torch.compile", "2024-10", "fsdp"),
        ("InternEvo", "2023-12", "fsdp"),
        ("DeepSpeed ZeRO-3", "2024-01", "fsdp"),
        ("PyTorch FSDP", "2022-10", "fsdp_2022"),
        ("Megatron-DeepSpeed", "2022-02", "deepspeed_2022"),
        ("Megatron-DeepSpeed", "", "deepspeed_2022"),
        ("Megatron-DeepSpeed 11f2d934", "2024-03", "megatron_2023"),
        ("FlagScale (Megatron)", "2024-01", "megatron_lm"),
        ("OneFlow 0.3.5", "2021-06", "megatron_2021"),
        ("Hugging Face Trainer", "2024", "eager"),
    ],
)
def test_stacks_are_told_by_name_and_date(framework: str, date: str, software: str) -> None:
    row = {
        **H100,
        **LLAMA_8B,
        "gpus_total": "8",
        "global_batch": "8",
        "precision": "BF16",
        "framework": framework,
        "date": date,
    }
    assert software_of(row) == software


@pytest.mark.parametrize(
    ("head_dim", "date", "software"),
    [("128", "2023-03", "fsdp"), ("192", "2023-03", "fsdp_2022"), ("192", "2023-09", "fsdp")],
)
def test_wide_heads_waited_for_the_second_flash_attention(head_dim: str, date: str, software: str) -> None:
    row = {**H100, **LLAMA_8B, "head_dim": head_dim, "gpus_total": "8", "framework": "FSDP", "date": date}
    assert software_of(row) == software


@pytest.mark.parametrize(
    ("model", "gpu", "date", "software"),
    [
        ("Qwen3-30B-A3B", "GB200-186GB", "26.06.01", "tuned_2026"),
        ("Qwen3-30B-A3B", "B200-SXM-180GB", "2026-09", "tuned_2026"),
        ("Qwen3-30B-A3B", "GB200-186GB", "26.04", "tuned"),
        ("Qwen3-30B-A3B", "H100-SXM-80GB", "26.06", "tuned"),
        ("Llama-3.1-8B", "GB200-186GB", "26.06", "tuned"),
    ],
)
def test_containers_of_mid_2026_fuse_what_routes_tokens_on_blackwell(
    model: str, gpu: str, date: str, software: str
) -> None:
    row = {"model": model, "gpu": gpu, "gpus_total": "8", "framework": "Megatron-Bridge", "date": date}
    assert software_of(row) == software


@pytest.mark.parametrize(
    ("gpu", "framework", "workload", "software"),
    [
        ("H100-SXM-80GB", "DeepSpeed ZeRO-3 (PyTorch)", "lora", "eager"),
        ("H100-SXM-80GB", "NeMo (Megatron)", "lora", "tuned"),
        ("Gaudi2", "DeepSpeed ZeRO-3 (PyTorch 2.2.0)", "lora", "tuned"),
        ("Gaudi2", "Megatron with DeepSpeed", "pretrain", "tuned"),
    ],
)
def test_submissions_that_run_the_reference_code_are_not_tuned(
    gpu: str, framework: str, workload: str, software: str
) -> None:
    """MLPerf Training 4.0: three submissions of Llama 2 70B with adapters, two to three times as slow."""
    told = {"source": "mlperf-train-v4.0", "framework": framework, "workload": workload, "gpu": gpu}
    row = {**told, "model": "Llama-2-70B", "seq_len": "8192", "gpus_total": "8", "global_batch": "8"}
    assert software_of(row) == software
