"""The worked examples of *How performance is predicted*: each figure again, by the formulas as the page has
them and not by the arrays of the core, and what comes of them beside what the core says."""

from __future__ import annotations

import math
import re

import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.planning.workload import Precision, Slo
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.estimate import TrainingCore
from tests.docs.fences import DOCS
from tests.performance.builders import decode_s, estimator, served, serving, sku, training

PAGE = DOCS / "performance-model.md"
ACCURACY = DOCS / "performance-accuracy.md"
GPU, MODEL = "H100-SXM-80GB", "Llama-3.1-8B"
NODES, GPUS, SEQUENCE, SEQUENCES = 8, 64, 8192.0, 128
IN_FLIGHT, CONTEXT = 32.0, 1100.0
Rows = list[tuple[str, str]]


def rows_under(heading: str) -> Rows:
    """The first table under a heading of the page: its first and its last column."""
    part = PAGE.read_text().split(f"\n### {heading}\n", 1)[1]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", part, flags=re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return [(row[0], row[-1]) for row in cells]


def training_rows() -> Rows:
    """One optimizer step of an 8B model on 64 GPUs."""
    model, gpu, constants = build_shape(load_models()[MODEL]), load_gpus()[GPU], load_calibration()
    compute, stack = constants.compute, constants.software["tuned"]
    hidden, ffn, vocabulary = float(model.hidden), float(model.ffn), float(model.vocab)
    assert gpu.matmul_best_bf16_tflops
    assert gpu.bf16_tflops
    gemm = gpu.matmul_best_bf16_tflops * 1e12 * compute.long_run_share[gpu.arch]
    memory = gpu.hbm_gbyte_s * 1e9 * compute.hbm_share

    def share(width: float) -> float:
        return compute.sustained_share / (1 + compute.width_half / width + compute.rows_half / SEQUENCE)

    slices = 2 / (1 / ffn + 1 / float(model.attention_width))
    products = stack.slowdown * 2 * SEQUENCE * float(model.layer_params) / (gemm * share(slices))
    filled = 1 / (1 + compute.attention_length_half / SEQUENCE)
    fused = gpu.bf16_tflops * 1e12 * compute.attention_share[gpu.arch] * filled
    attention = stack.slowdown * 2 * SEQUENCE * SEQUENCE * float(model.attention_width) / fused
    moved = compute.elementwise_bytes_hidden * hidden + compute.elementwise_bytes_ffn * ffn
    small = stack.slowdown * SEQUENCE * moved / memory
    logits = stack.logit_bytes_moved * SEQUENCE * vocabulary / memory
    head = 2 * SEQUENCE * float(model.head_params) / (gemm * share(hidden)) + logits
    pass_s = float(model.layers) * (3 * products + 3.5 * attention + 3 * small) + 3 * head
    case = TrainingCore(load_gpus(), constants).case(
        training(MODEL, global_batch_tokens=SEQUENCES * SEQUENCE),
        sku(GPU),
        NODES,
        Parallelism(dp=GPUS, micro_batch=1),
    )
    assert case is not None
    exchange, rest = float(case.step.data), float(case.step.optimizer) + float(case.step.between)
    drag = 1 + compute.straggler_per_doubling * math.log2(NODES)
    step_s = (SEQUENCES / GPUS * pass_s + exchange + rest) * drag
    assert step_s == pytest.approx(case.step_s, rel=1e-6), "the page's formulas are those of the core"
    held_gb = float(case.step.held_bytes) / 1e9
    flops = 6 * float(model.active_matrix_params) + 12 * float(model.layers) * SEQUENCE * float(
        model.attention_width
    )
    mfu = flops * SEQUENCES * SEQUENCE / step_s / (GPUS * gpu.bf16_tflops * 1e12)
    return [
        ("products of a layer", f"{products * 1e3:.2f} ms"),
        ("attention of a layer", f"{attention * 1e3:.2f} ms"),
        ("small kernels of a layer", f"{small * 1e3:.2f} ms"),
        ("head", f"{head * 1e3:.1f} ms"),
        ("one micro-batch, forward and backward", f"{pass_s:.3f} s"),
        ("two micro-batches", f"{SEQUENCES / GPUS * pass_s:.3f} s"),
        ("gradients and weights, what stays visible", f"{exchange:.3f} s"),
        ("optimizer, and between two steps", f"{rest:.3f} s"),
        ("stragglers", f"× {drag:.4f}"),
        ("**step**", f"**{step_s:.2f} s**"),
        ("tokens per second", f"{SEQUENCES * SEQUENCE / step_s:,.0f}"),
        ("MFU", f"{mfu:.1%}".replace("%", " %")),
        ("memory held", f"{held_gb:.1f} GB"),
    ]


def serving_rows() -> Rows:
    """One decode step of the same model on one GPU, and what a replica gives under an objective."""
    model, gpu, constants = build_shape(load_models()[MODEL]), load_gpus()[GPU], load_calibration()
    rates, engine = constants.serving, constants.engines["vllm"]
    hidden, ffn, layers = float(model.hidden), float(model.ffn), float(model.layers)
    assert gpu.matmul_best_bf16_tflops
    gemm, memory = gpu.matmul_best_bf16_tflops * 1e12, gpu.hbm_gbyte_s * 1e9
    weights = 2 * float(model.active_matrix_params) / (memory * rates.hbm_share_weights)
    token_bytes = 2.0 * 2 * layers * 8 * 128
    cache = IN_FLIGHT * CONTEXT * token_bytes / (memory * rates.hbm_share_kv)
    moved = constants.compute.elementwise_bytes_hidden * hidden
    moved += constants.compute.elementwise_bytes_ffn * ffn
    small = rates.small_share * IN_FLIGHT * layers * moved / (memory * constants.compute.hbm_share)
    slices = 2 / (1 / ffn + 1 / float(model.attention_width))
    filling = math.sqrt(IN_FLIGHT * (IN_FLIGHT + rates.tokens_half))
    parameters = layers * float(model.layer_params)
    products = 2 * parameters * filling * (1 + rates.width_half / slices) / (gemm * rates.product_share)
    launches = layers * rates.layer_s * engine.overhead + rates.step_s * engine.step * engine.overhead
    step_s = decode_s(served(MODEL), IN_FLIGHT, as_array(CONTEXT))
    busy = ((weights + cache + small) ** 3 + products**3) ** (1 / 3)
    books = rates.sequence_s * IN_FLIGHT
    by_hand = (busy**rates.host_norm + books**rates.host_norm) ** (1 / rates.host_norm) + launches
    assert by_hand == pytest.approx(step_s, rel=0.02), "the head and attention's products are left out here"
    estimate = estimator().serving_at(
        serving(MODEL, 1000, 200, slo=Slo(1000, 30)),
        sku(GPU, 1, fabric=None),
        Precision.BF16,
        Parallelism(),
        3.0,
    )
    assert estimate is not None
    rate = estimate["requests_per_s_per_replica"]
    return [
        ("weights", f"{weights * 1e3:.2f} ms"),
        ("cache", f"{cache * 1e3:.2f} ms"),
        ("small kernels", f"{small * 1e3:.2f} ms"),
        ("products of the layers", f"{products * 1e3:.2f} ms"),
        ("GPU at work", f"{busy * 1e3:.2f} ms"),
        ("launches and host", f"{launches * 1e3:.2f} ms"),
        ("**step**", f"**{step_s * 1e3:.2f} ms**"),
        ("tokens per second at 32 in flight", f"{IN_FLIGHT / step_s:,.0f}"),
        ("cache in tokens", f"{estimate['kv_tokens']:,.0f}"),
        ("**requests per second under the objective**", f"**{rate:.1f}**"),
        ("TTFT p95 there", f"{estimate['ttft_p95_ms']:.0f} ms"),
        ("dollars per million tokens", f"${estimate['usd_per_million_tokens']:.2f}"),
    ]


def test_the_example_of_training_is_what_the_formulas_give() -> None:
    assert rows_under("A run, worked out") == training_rows()


def test_the_example_of_serving_is_what_the_formulas_give() -> None:
    assert rows_under("A replica, worked out") == serving_rows()


def test_the_summary_of_errors_repeats_the_tables_below_it() -> None:
    summary, tables = ACCURACY.read_text().split("\n## Errors", 1)
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+) \| (?:right in )?([\d.]+) % \|$", summary, flags=re.MULTILINE)
    assert len(rows) == 9
    for count, figure in rows:
        pattern = rf"^\|.*\| {count.replace(',', '')} \|.*\b{re.escape(figure)}\b.*$"
        assert re.search(pattern, tables, flags=re.MULTILINE), f"{count} rows, {figure} %"
