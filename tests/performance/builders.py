from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.domain.planning.workload import Batch, Precision, Serving, Slo, Training
from broker.domain.workloads.traffic import Traffic, TrafficShape
from optimizer.calibration.evaluation.report import Report
from optimizer.calibration.tables.serving_reading import ServingRow, read_row
from optimizer.calibration.tables.serving_rows import predict_serving
from optimizer.calibration.tables.serving_words import products_of
from optimizer.performance.arrays import Array, as_array, stacked
from optimizer.performance.constants.calibrated import Calibration, load_calibration, load_priors
from optimizer.performance.estimator import Estimator
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.served_model import Format, Replica, ServedModel
from optimizer.performance.serving.steps import decode_step
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.layouts import Layouts, ways_of
from tests.bench.calibration.bundled_report import evaluate_bundled

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "performance"
EARLIEST, DEADLINE = datetime(2026, 11, 24, tzinfo=UTC), datetime(2026, 12, 20, tzinfo=UTC)
INFINIBAND = Fabric(FabricKind.INFINIBAND, 3200, 512)
ETHERNET = Fabric(FabricKind.ETHERNET, 100, 512)


@cache
def estimator() -> Estimator:
    return Estimator(load_gpus(), load_calibration())


@cache
def bundled_report() -> Report:
    """Errors of every bundled table: seconds of work, so tests of it share the group ``report``."""
    return evaluate_bundled(load_calibration(), load_priors(), load_gpus(), load_models())


def served(
    model: str,
    gpu: str = "H100-SXM-80GB",
    tp: int = 1,
    dp: int = 1,
    ep: int = 1,
    precision: str = "bf16",
    cache_bytes: float = 2.0,
    calibration: Calibration | None = None,
) -> ServedModel:
    """One replica of a named model on one kind of GPU, all its weights in ``precision``."""
    calibration = calibration or load_calibration()
    hw = build_hardware([sku(gpu)], load_gpus(), calibration)
    replica = Replica(*(as_array([degree]) for degree in (tp, 1, dp, ep)))
    form = Format(precision, precision, as_array(cache_bytes), products_of(precision))
    return ServedModel(build_shape(load_models()[model]), form, replica, hw, calibration)


def decode_s(model: ServedModel, batch: float, context: Array) -> float:
    """Seconds of one decoding step of ``batch`` sequences."""
    return float(decode_step(model, as_array([batch]), context).total[0])


def layouts_of(parallelism: Parallelism) -> Layouts:
    """Every way to run a given layout, as arrays."""
    ways = ways_of(parallelism)
    return stacked(ways, np.arange(len(ways)))


def rows_of(name: str) -> list[dict[str, str]]:
    with (FIXTURES / name).open(newline="") as file:
        return list(csv.DictReader(file))


def sku(gpu: str, gpus: int = 8, fabric: Fabric | None = INFINIBAND, **changes: Any) -> Sku:
    values: dict[str, Any] = {
        "name": f"{gpu}x{gpus}",
        "gpu": gpu,
        "gpus_per_node": gpus,
        "gpu_memory_gb": load_gpus()[gpu].memory_gb if gpu in load_gpus() else 80.0,
        "form": Form.BARE_METAL,
        "fabric": fabric,
    }
    return Sku(**(values | changes))


def training(model: str, **changes: Any) -> Training:
    values: dict[str, Any] = {
        "name": f"train-{model}",
        "team": "research",
        "model": load_models()[model],
        "tokens": 2.0e11,
        "sequence_length": 8192,
        "global_batch_tokens": 4.0e6,
        "precision": Precision.BF16,
        "earliest_start": EARLIEST,
        "deadline": DEADLINE,
    }
    return Training(**(values | changes))


def serving(model: str, input_tokens: int = 1500, output_tokens: int = 300, **changes: Any) -> Serving:
    values: dict[str, Any] = {
        "name": f"serve-{model}",
        "team": "research",
        "model": load_models()[model],
        "traffic": Traffic(input_tokens, output_tokens, TrafficShape.FLAT, 12.0),
        "slo": Slo(1000, 60),
    }
    return Serving(**(values | changes))


def batch(model: str, **changes: Any) -> Batch:
    values: dict[str, Any] = {
        "name": f"batch-{model}",
        "team": "research",
        "model": load_models()[model],
        "requests": 5.0e6,
        "input_tokens": 4000,
        "output_tokens": 200,
        "earliest_start": EARLIEST,
        "deadline": DEADLINE,
    }
    return Batch(**(values | changes))


def read(**cells: str) -> ServingRow:
    """A row of a serving table in the core's words: a 70B on four cards unless ``cells`` say otherwise."""
    row = {
        "gpu": "A100-PCIe-80GB",
        "model": "Llama-2-70B",
        "regime": "single_stream",
        "weight_precision": "fp16",
        "gpus": "4",
        "tp": "4",
        "isl": "8",
        "osl": "256",
    }
    return read_row(row | cells, load_calibration(), load_gpus(), load_models())


def values_of(row: ServingRow) -> Mapping[str, float]:
    """What is predicted of it."""
    return predict_serving([row], load_calibration(), load_gpus())[0].values
