"""Pairs of published rows that differ in one thing, and what the core says of the same two rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.tables.observations import observations
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.performance.constants.calibrated import load_calibration
from tests.bench.calibration.bundled import FOLDER, table_rows

Row = Mapping[str, str]
Told = tuple[float, float]
Ratios = NDArray[np.float64]

FORMATS = {
    "BF16": "16",
    "BF16-pure": "16",
    "bf16": "16",
    "fp16": "16",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "FP8-MX": "fp8",
    "MXFP8": "fp8",
    "fp8": "fp8",
    "NVFP4": "fp4",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "int4": "int4",
    "int8": "int8",
}
SAME_RUN = ("model", "arch", "workload", "seq_len", "global_batch", "gpus_total")
SAME_LAYOUT = ("tp", "pp", "cp", "ep", "micro_batch", "interleave", "recompute")
SAME_LOAD = (
    *("source", "engine", "engine_version", "model", "gpus", "tp", "pp", "ep", "dp", "isl", "osl"),
    *("regime", "concurrency_or_batch", "request_rate", "num_requests"),
)


@cache
def trained() -> tuple[tuple[Row, float, float], ...]:
    """Usable training rows with measured and predicted step time."""
    return _told("train_measured.csv.gz", ("step time",))


@cache
def gridded() -> tuple[tuple[Row, float, float], ...]:
    """Runs of the grid with measured and predicted step time."""
    return _told("train_grid.csv.gz", ("step time",))


@cache
def served() -> tuple[tuple[Row, float, float], ...]:
    """Serving rows with measured and predicted seconds a token: of a request, or of the whole replica."""
    return _told("serving_measured.csv.gz", ("output tokens/s", "time per output token"))


def _told(table: str, metrics: Sequence[str]) -> tuple[tuple[Row, float, float], ...]:
    rows = table_rows(FOLDER / table)
    calibration, gpus = load_calibration(), load_gpus()
    found = predictions(read_rows(rows, calibration, gpus, load_models()), calibration, gpus)
    told = []
    for seen in observations(rows):
        said = found[seen.place].values.get(seen.column, np.nan)
        if seen.metric in metrics and np.isfinite(said) and said > 0:
            power = -1.0 if seen.metric == "output tokens/s" else 1.0
            row = rows[seen.place] | {"metric": seen.metric}
            told.append((row, seen.measured**power, said**power))
    return tuple(told)


def format_of(row: Row) -> str:
    """The family of a row's number format; empty where the table itself is not sure."""
    return FORMATS.get(row.get("precision") or row.get("weight_precision", ""), "")


def speedups(
    told: Sequence[tuple[Row, float, float]],
    slower: Callable[[Row], bool],
    faster: Callable[[Row], bool],
    same: Callable[[Row], Hashable],
) -> Ratios:
    """Measured and predicted speed-up (columns) of every pair whose key is the same: medians of each side."""
    sides: dict[Hashable, tuple[list[Told], list[Told]]] = {}
    for row, measured, predicted in told:
        for side, belongs in enumerate((slower, faster)):
            if belongs(row):
                sides.setdefault(same(row), ([], []))[side].append((measured, predicted))
    pairs = [
        np.median(np.asarray(one), axis=0) / np.median(np.asarray(other), axis=0)
        for one, other in sides.values()
        if one and other
    ]
    return np.asarray(pairs, dtype=np.float64).reshape(-1, 2)


def same_run(row: Row) -> Hashable:
    """Same table (whatever format its heading names), model, batch and GPU count."""
    heading = re.sub(r"BF16|FP8|MXFP8|NVFP4", "", row["source"])
    return heading, row["gpu"], *(row[name] for name in SAME_RUN)


def same_layout(row: Row) -> Hashable:
    """Also the same layout."""
    return same_run(row), *(row[name] for name in SAME_LAYOUT)


def same_load(row: Row) -> Hashable:
    """Same engine and version, model, GPU, layout, lengths and load; the same thing measured."""
    return row["gpu"], row["metric"], *(row[name] for name in SAME_LOAD)


def off(pairs: Ratios) -> float:
    """Median relative error of the predicted speed-ups."""
    return float(np.median(np.abs(pairs[:, 1] / pairs[:, 0] - 1)))


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
