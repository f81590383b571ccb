"""Rows of measured tables as evidence and as queries of the Gaussian process.

Every measured number is of one of five kinds, each with its own kernel: ``token_time`` (time between tokens),
``token_rate`` (tokens/s, as the time per token), ``first_token``, ``step`` and ``memory``. The first two are
evidence for each other. Residuals are log(measured / predicted) of a time or a size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.table_constants import fit_settings
from optimizer.calibration.tables.observations import Observation, identifier_front, log_errors, observations
from optimizer.calibration.tables.rows import ReadRows, read_rows
from optimizer.calibration.tables.serving_reading import ServingRow
from optimizer.calibration.tables.training_rows import TrainingRow
from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.own.features import (
    ANY,
    FIRST_TOKEN,
    MEMORY,
    OWN_SOURCE,
    STEP,
    TOKEN_RATE,
    TOKEN_TIME,
    Described,
    Features,
    stack_features,
    words_of,
)
from optimizer.performance.own.gaussian_process import Evidence

SHARED: Mapping[str, tuple[str, ...]] = {
    TOKEN_TIME: (TOKEN_TIME, TOKEN_RATE),
    TOKEN_RATE: (TOKEN_TIME, TOKEN_RATE),
}
BURST = "offline_burst"


@dataclass(frozen=True, slots=True)
class Measure:
    """The block of a metric, its name there, and its sign: +1 if more is slower or larger, −1 for a rate."""

    block: str
    word: str
    sign: float


MEASURES: Mapping[str, Measure] = {
    "time per output token": Measure(TOKEN_TIME, "itl", 1.0),
    "time per output token p95": Measure(TOKEN_TIME, "itl_p95", 1.0),
    "output tokens/s": Measure(TOKEN_RATE, "rate", -1.0),
    "time to first token": Measure(FIRST_TOKEN, "ttft", 1.0),
    "time to first token p95": Measure(FIRST_TOKEN, "ttft_p95", 1.0),
    "step time": Measure(STEP, "step", 1.0),
    "peak memory": Measure(MEMORY, "memory", 1.0),
}


def describe_serving(
    row: Mapping[str, str], read: ServingRow, gpus: Mapping[str, GpuSpec]
) -> tuple[dict[str, str], dict[str, float]]:
    """Words and numbers that describe a serving row; its source as given."""
    words = words_of(read.model, read.sku.gpu, gpus) | {
        "source": row.get("source", ANY),
        "engine": read.engine,
        "precision": f"{read.dense}/{read.experts}",
        "regime": "burst" if row.get("regime") == BURST else read.regime,
    }
    return words, {
        "size": read.model.active_params / 1e9,
        "gpus": read.tp * read.pp * read.dp,
        "tensor": read.tp,
        "pipeline": read.pp,
        "batch": max(read.batch, 1.0),
        "input": read.input_tokens,
        "output": read.output_tokens,
    }


def describe_training(
    row: Mapping[str, str], read: TrainingRow, gpus: Mapping[str, GpuSpec]
) -> tuple[dict[str, str], dict[str, float]]:
    """Words and numbers that describe a training row; its source is the beginning of its id."""
    words = words_of(read.model, read.sku.gpu, gpus) | {
        "source": identifier_front(row),
        "engine": read.software,
        "precision": read.recipe.number_format,
    }
    tensor, pipeline, _, expert, micro = read.layouts[0][:5]
    return words, {
        "size": read.model.active_params / 1e9,
        "gpus": read.gpus,
        "tensor": tensor,
        "pipeline": pipeline,
        "expert": expert,
        "batch": micro,
        "input": read.sequence_length,
    }


def describe(
    place: int, rows: Sequence[Mapping[str, str]], read: ReadRows, gpus: Mapping[str, GpuSpec]
) -> tuple[dict[str, str], dict[str, float]]:
    """Words and numbers that describe the row at ``place``, which must be readable."""
    if place in read.serving:
        return describe_serving(rows[place], read.serving[place], gpus)
    return describe_training(rows[place], read.training[place], gpus)


def features_of(
    observed: Sequence[Observation],
    rows: Sequence[Mapping[str, str]],
    read: ReadRows,
    gpus: Mapping[str, GpuSpec],
) -> Features:
    """Features [O] of observations of readable rows."""
    found: list[Described] = []
    for o in observed:
        words, numbers = describe(o.place, rows, read, gpus)
        nameless = o.source in {"", rows[o.place].get("id")}
        source = OWN_SOURCE if nameless else o.source
        found.append((words | {"source": source, "metric": MEASURES[o.metric].word}, numbers))
    return stack_features(found)


def residuals_of(observed: Sequence[Observation], errors: Array) -> Array:
    """log(measured / predicted) of times and sizes [O] from log(predicted / measured) of the metrics."""
    return -errors * np.asarray([MEASURES[o.metric].sign for o in observed], dtype=np.float64)


def is_evidence(observation: Observation) -> bool:
    """Whether the observation is fair and says something about the model: tokens/s of an open loop only
    reflect its arrivals."""
    arrivals = observation.metric == "output tokens/s" and observation.regime.startswith("open")
    return observation.fair and observation.metric in MEASURES and not arrivals


def by_block(observed: Sequence[Observation], errors: Array) -> dict[str, list[int]]:
    """Indices of the observations with a prediction, by the block that they are evidence for."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, o in enumerate(observed):
        if is_evidence(o) and np.isfinite(errors[index]):
            block = MEASURES[o.metric].block
            for name in SHARED.get(block, (block,)):
                places[name].append(index)
    return places


def evidence_of(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> dict[str, Evidence]:
    """The evidence in measured rows, by block; rows without a prediction give none."""
    read = read_rows(rows, calibration, gpus, models)
    observed = [o for o in observations(rows) if is_evidence(o)]
    errors = log_errors(read, observed, calibration, gpus)
    found = {}
    for block, places in by_block(observed, errors).items():
        mine = [observed[i] for i in places]
        found[block] = Evidence(features_of(mine, rows, read, gpus), residuals_of(mine, errors[places]))
    return found


def shrunk(half: Array, shrink: Array, metric: str) -> Array:
    """Sides of intervals (in log) after a correction: narrowed, but never below the metric's noise floor."""
    return np.minimum(half, np.maximum(half * shrink, np.log1p(noise_floor(metric))))


def noise_floor(metric: str) -> float:
    """The relative difference of two measurements of the same configuration."""
    table = fit_settings()["noise_floor"]
    plain = metric.removesuffix(" p95")
    return float(table.get(plain, table.get(f"{plain} dense", 0.0)))
