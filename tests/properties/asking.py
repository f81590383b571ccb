"""Questions in the words of published rows, answered by the core as it stands, in full precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import settings

from broker.catalogue import load_gpus, load_models
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.tables.cells import Prediction
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import Calibration, load_calibration
from tests.depth import examples

FEW = settings(max_examples=examples(10), derandomize=True, deadline=None)
SLACK = 1 + 1e-9
STEP, MEMORY = "pred_step_time_s", "pred_mem_gib"
TOKENS, FIRST, FIRST_P95, BETWEEN, BETWEEN_P95 = (
    "pred_output_tokens_per_s_total",
    "pred_ttft_ms_p50",
    "pred_ttft_ms_p95",
    "pred_tpot_ms_p50",
    "pred_tpot_ms_p95",
)
DENSE = ("Qwen2.5-7B", "Llama-3.1-8B", "Qwen3-32B", "Llama-3.1-70B")
CARDS = ("H100-SXM-80GB", "A100-SXM-80GB", "L40S", "MI300X-192GB", "B200-SXM-180GB")

Row = dict[str, str]


def run_row(**changes: object) -> Row:
    """A training step of a tuned stack on four H100 nodes, 8 x 1 x 4, 4096 tokens a sequence."""
    row = {"kind": "training", "model": "Llama-3.1-70B", "gpu": "H100-SXM-80GB", "gpus_total": 32}
    row |= {"gpus_per_node": 8, "seq_len": 4096, "global_batch": 256, "precision": "BF16"}
    row |= {"tp": 8, "pp": 1, "dp": 4, "cp": 1, "micro_batch": 1, "recompute": "none", "zero_fsdp": "1"}
    row |= {"fabric": "InfiniBand", "inter_node_gbps_per_gpu": 400, "framework": "NeMo"}
    return {name: str(value) for name, value in (row | changes).items()}


def served_row(**changes: object) -> Row:
    """A copy of an 8B on one H100 under vLLM, 1024 tokens in, 256 out, 16 in flight."""
    row = {"kind": "serving", "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "gpus": 1, "tp": 1}
    row |= {"weight_precision": "bf16", "isl": 1024, "osl": 256, "concurrency_or_batch": 16}
    row |= {"regime": "closed_loop", "engine": "vLLM"}
    return {name: str(value) for name, value in (row | changes).items()}


def answers(
    rows: Sequence[Mapping[str, str]],
    gpus: Mapping[str, GpuSpec] | None = None,
    calibration: Calibration | None = None,
) -> list[Prediction]:
    """One prediction a row; a row that cannot be read fails the test with the reason."""
    gpus, calibration = gpus or load_gpus(), calibration or load_calibration()
    read = read_rows(rows, calibration, gpus, load_models())
    assert not read.unreadable, read.unreadable
    return predictions(read, calibration, gpus)


def asked(
    metric: str,
    *rows: Mapping[str, str],
    gpus: Mapping[str, GpuSpec] | None = None,
    calibration: Calibration | None = None,
) -> Array:
    """One metric of every row, finite."""
    found = np.asarray([p.values[metric] for p in answers(rows, gpus, calibration)], dtype=np.float64)
    assert np.isfinite(found).all()
    return found


def never_rises(values: Array) -> bool:
    """Whether each value is at most the one before, but for rounding."""
    return never_falls(-values)


def never_falls(values: Array, slack: float = SLACK) -> bool:
    """Whether each value is at least the one before, but for rounding."""
    return bool((values[1:] >= values[:-1] - (slack - 1) * np.abs(values[:-1])).all())
