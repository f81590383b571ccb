"""Rows of start-up reports, one phase each, compared with the phases of ``coldstart``.

``PHASES`` maps the reports' names of phases. Two kinds of rows are left out: waking a sleeping engine, which
is not a cold start, and half an hour of compiler search, which nobody waits for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.calibration.fitting.table_fit import Table
from optimizer.calibration.tables.cells import Unreadable, needed, number
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.serving import ColdStart
from optimizer.performance.serving.cold_start import (
    PAGE_CACHE,
    PLAIN,
    STREAMER,
    Start,
    capture_s,
    cold_start_s,
    compile_s,
    weights_s,
)

WEIGHTS, TRACE, COMPILE, CAPTURE = "weights", "trace", "compile", "graph capture"
ENGINE, TOTAL, DISTRIBUTED = "engine start", "process to first token", "communicators"
PHASES = (
    ("wake", None),
    ("p2p", DISTRIBUTED),
    ("init engine", ENGINE),
    ("process start", TOTAL),
    ("switch without sleep", TOTAL),
    ("dynamo", TRACE),
    ("capture", CAPTURE),
    ("compile", COMPILE),
    ("load", WEIGHTS),
    ("stream", WEIGHTS),
    ("weights", WEIGHTS),
    ("trace", TRACE),
    ("engine start", ENGINE),
    ("first token", TOTAL),
    ("communicat", DISTRIBUTED),
)
OUTLIER = "outlier"
HOT = ("page cache", "reused", "local cache", "just downloaded", "prefetched", "warm")
CACHED = ("cached", "reused", "compile cache present", "warm compile")
EAGER = "eager"
GIB = float(2**30)
BYTES_BY_WORD = {"fp8": 1.0, "q8": 1.0, "nvfp4": 0.57, "int4": 0.57}
PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)B\b")
ACTIVE = re.compile(r"-A\d+(?:\.\d+)?B\b")
STORAGE_CLASS = re.compile(r"(\d+(?:\.\d+)?) GB/s class")


@dataclass(frozen=True, slots=True)
class ColdStartRow:
    """One timed phase. ``layers`` is None if the size of the model is unknown; ``compiled``, ``captured``:
    whether graphs are compiled and captured; ``separate``: tracing was timed separately.
    """

    source: str
    phase: str
    condition: str
    weight_bytes: float
    gpus: float
    layers: float | None
    start: Start
    compiled: bool
    captured: bool
    separate: bool
    seconds: float

    @property
    def weight(self) -> float:
        """1: all rows have the same weight."""
        return 1.0


def read_cold_starts(rows: Sequence[Mapping[str, str]]) -> list[ColdStartRow]:
    """The rows that time a phase of a cold start and, if it matters, give the loaded size."""
    separate = {row.get("source", "") for row in rows if "dynamo" in row.get("phase", "").lower()}
    found = []
    for row in rows:
        try:
            found.append(_read(row, row.get("source", "") in separate))
        except Unreadable:
            continue
    return found


def _read(row: Mapping[str, str], separate: bool) -> ColdStartRow:
    words = row.get("phase", "").lower()
    phase = next((name for word, name in PHASES if word in words), None)
    if phase is None or OUTLIER in row.get("notes", "").lower():
        raise Unreadable("not a phase of a cold start")
    model = row.get("model", "")
    size, billions = _weight_bytes(row, model), _billions(model)
    if phase in {WEIGHTS, TOTAL} and size is None:
        raise Unreadable("size of the weights not told")
    again = "switch" in words
    eager = EAGER in row.get("storage_or_condition", "").lower()
    return ColdStartRow(
        source=row.get("source", ""),
        phase=phase,
        condition=row.get("storage_or_condition", ""),
        weight_bytes=size or 0.0,
        gpus=number(row, "gpus") or 1.0,
        layers=_layers(billions) if billions and not ACTIVE.search(model) else None,
        start=_start(row, words, again),
        compiled="no compile" not in words and not eager,
        captured=not eager,
        separate=separate,
        seconds=needed(row, "seconds"),
    )


def _start(row: Mapping[str, str], words: str, again: bool) -> Start:
    condition = row.get("storage_or_condition", "").lower()
    told = f"{words} {condition}"
    storage = STORAGE_CLASS.search(row.get("storage_or_condition", ""))
    hot = again or any(word in condition for word in HOT)
    loader = STREAMER if "streamer" in words else PAGE_CACHE if hot else PLAIN
    cached = again or any(word in told for word in CACHED)
    rate = 1e9 * float(storage[1]) if storage else None
    return Start(loader, storage_bytes_per_s=rate, compile_cached=cached)


def _billions(model: str) -> float | None:
    found = PARAMETERS.search(model)
    return float(found[1]) if found else None


def _weight_bytes(row: Mapping[str, str], model: str) -> float | None:
    gib, billions = number(row, "gib_loaded"), _billions(model)
    if gib:
        return gib * GIB
    if billions is None:
        return None
    word = next((word for word in BYTES_BY_WORD if word in model.lower()), "")
    return billions * 1e9 * BYTES_BY_WORD.get(word, 2.0)


def _layers(billions: float) -> float:
    """The number of layers of a dense model of that size: at least 28, 32 at 8B, 80 at 70B. Experts make
    models wider, not deeper.
    """
    return float(max(28.0, np.round(12.3 * billions**0.44)))


def predict_cold_starts(rows: Sequence[ColdStartRow], calibration: Calibration) -> Array:
    """The duration of each row's phase in seconds [R]."""
    return as_array([_predict(row, calibration.coldstart) for row in rows])


def _predict(row: ColdStartRow, constants: ColdStart) -> float:
    depth = as_array(constants.usual_layers if row.layers is None else row.layers)
    size, gpus = as_array(row.weight_bytes), as_array(row.gpus)
    compiled = compile_s(depth, constants, row.start)
    traced = depth * constants.trace_layer_s
    if row.phase == WEIGHTS:
        return float(weights_s(size, gpus, constants, row.start))
    if row.phase == TOTAL:
        return float(cold_start_s(size, gpus, constants, depth, row.start))
    if row.phase == TRACE:
        return float(compiled if row.start.compile_cached else traced)
    if row.phase == COMPILE:
        return float(compiled - traced if row.separate else compiled)
    if row.phase == CAPTURE:
        return float(capture_s(depth, constants))
    if row.phase == DISTRIBUTED:
        return float(constants.distributed_s * (gpus - 1.0))
    captured = capture_s(depth, constants) if row.captured else 0.0
    return float(constants.profile_s + captured + (compiled if row.compiled else 0.0))


def cold_starts_table(rows: Sequence[ColdStartRow]) -> Table[ColdStartRow]:
    """The rows with their prediction function and their constants."""
    return Table(rows, predict_cold_starts, "coldstart")
