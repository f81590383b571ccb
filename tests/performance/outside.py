"""Published and reported rows that no fit saw, against what the core predicts of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from broker.catalogue import load_gpus, load_models
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Precision
from broker.domain.workloads.model_shape import ModelShape
from optimizer.calibration.tables.cells import Prediction, Unreadable
from optimizer.calibration.tables.names import find_model
from optimizer.calibration.tables.observations import Observation, observations
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import GIB, build_hardware
from optimizer.performance.serving.estimate import format_of
from optimizer.performance.serving.served_model import (
    Replica,
    ServedModel,
    cache_bytes_per_token,
    cache_tokens,
    weight_bytes_per_gpu,
)
from optimizer.performance.shapes import build_shape
from tests.bench.calibration.bundled import FOLDER
from tests.bench.calibration.collectives import predict_collectives, read_collectives

STEP, PEAK, CACHE = "step time", "peak memory", "cache memory"
UNLIKE = ("VL", "Omni", "EAGLE", "llava")


@dataclass(frozen=True)
class Figure:
    """One number that somebody told: predicted over told, and whether the 80 % interval holds it."""

    row: Mapping[str, str]
    metric: str
    ratio: float
    inside: bool | None = None


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a table of ``fixtures/performance``."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def serving_figures(name: str) -> tuple[Figure, ...]:
    """Every measured cell of a serving table that the core answers."""
    return _figures(name)


@cache
def training_figures(name: str) -> tuple[Figure, ...]:
    """Steps and peaks of a training table that tells them, where the core answers."""
    return _figures(name)


def _figures(name: str) -> tuple[Figure, ...]:
    rows, gpus, calibration = rows_of(name), load_gpus(), load_calibration()
    found = predictions(read_rows(rows, calibration, gpus, load_models()), calibration, gpus)
    return tuple(
        _figure(rows[o.place], o, found[o.place])
        for o in observations(rows)
        if math.isfinite(found[o.place].values.get(o.column, math.nan))
    )


def _figure(row: Mapping[str, str], told: Observation, predicted: Prediction) -> Figure:
    ratio, sides = predicted.values[told.column] / told.measured, predicted.spread[told.column]
    return Figure(row, told.metric, ratio, -sides.above <= math.log(ratio) <= sides.below)


def cache_figures(name: str) -> tuple[Figure, ...]:
    """GiB a GPU that vLLM kept for its cache, of text models whose layers all cache alike, from the memory,
    the share of it and the weights that are told."""
    gpus, models, calibration = load_gpus(), load_models(), load_calibration()
    found = []
    for row in rows_of(name):
        spec, model = gpus.get(row["gpu"]), _alike(row["model"], models)
        told = row["gpu_mem_util"] and row["weights_gib"]
        if spec is None or model is None or row["engine"] != "vLLM" or not told:
            continue
        sku = Sku(name="", gpu=spec.gpu, gpus_per_node=8, gpu_memory_gb=spec.memory_gb)
        one, told = as_array([1.0]), row["max_num_seqs"]
        served = ServedModel(
            build_shape(model),
            format_of(Precision.BF16, calibration),
            Replica(as_array([float(row["tp"])]), one, one),
            build_hardware([sku], gpus, calibration),
            calibration,
            memory_share=float(row["gpu_mem_util"]),
            sequences_told=as_array([float(told or 0.0)]),
        )
        cache_bytes = float(cache_tokens(served)[0] * cache_bytes_per_token(served)[0])
        other_weights = float(weight_bytes_per_gpu(served)[0]) - float(row["weights_gib"]) * GIB
        found.append(Figure(row, CACHE, (cache_bytes + other_weights) / (float(row["kv_gib"]) * GIB)))
    return tuple(found)


def _alike(name: str, models: Mapping[str, ModelShape]) -> ModelShape | None:
    try:
        model, _ = find_model(name, models)
    except Unreadable:
        return None
    return None if model.sliding_window or any(word in name for word in UNLIKE) else model


def collective_figures(name: str) -> tuple[Figure, ...]:
    """Collectives of 16 MB and more."""
    calibration, gpus = load_calibration(), load_gpus()
    rows = [row for row in read_collectives(rows_of(name), gpus, calibration) if row.large]
    times = predict_collectives(rows, calibration, gpus)
    return tuple(
        Figure({"system": row.system, "source": row.source}, row.operation, float(time) / row.seconds)
        for row, time in zip(rows, times, strict=True)
    )
