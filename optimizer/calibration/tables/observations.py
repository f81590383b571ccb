"""Measured numbers of published rows, with the columns that predict them.

A row counts if its step is usable or its load below saturation, and if nothing marks it as something else,
such as undeclared speculative decoding or weights on a disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.tables.cells import Prediction
from optimizer.calibration.tables.rows import ReadRows, is_serving, predictions
from optimizer.calibration.tables.serving_reading import RUN
from optimizer.calibration.tables.serving_rows import OVERLOAD
from optimizer.calibration.tables.serving_words import benchmark_of
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration

TRAINING_PAIRS = (
    ("step time", "pred_step_time_s", ("step_time_s",)),
    ("peak memory", "pred_mem_gib", ("mem_gib", "mem_gb")),
)
BETWEEN, FIRST, RATE = "time per output token", "time to first token", "output tokens/s"
RATE_COLUMN = "pred_output_tokens_per_s_total"
SERVING_PAIRS = (
    (RATE, RATE_COLUMN, ("output_tokens_per_s_total",)),
    (BETWEEN, "pred_tpot_ms_p50", ("tpot_ms_p50", "tpot_ms_mean")),
    (FIRST, "pred_ttft_ms_p50", ("ttft_ms_p50",)),
    ("time per output token p95", "pred_tpot_ms_p95", ("tpot_ms_p95",)),
    ("time to first token p95", "pred_ttft_ms_p95", ("ttft_ms_p95",)),
)
MEAN_PAIR = (FIRST, "pred_ttft_ms_mean", ("ttft_ms_mean",))
RATIO_REGIME = "percentile ratio"
RATIO_PAIRS = tuple(
    (f"{metric} {end}/p50", f"pred_{name}_{end}_over_p50", f"{name}_ms_{end}", f"{name}_ms_p50")
    for metric, name in (("time to first token", "ttft"), ("time per output token", "tpot"))
    for end in ("p90", "p95", "p99")
)
OTHER_THINGS = ("SUSPECT", "offloading")
LENGTH_MATTERS = frozenset({"offline_max", "open_loop", "open_loop_slo", "closed_loop"})
SENSIBLE_MFU = 0.20
SENSIBLE_TENSOR = 8.0
LOADED = 8.0
CROWDED = 64.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured number of the row at ``place``; ``column`` is the prediction that it is compared with.

    ``fair``: its value counts, not only its rank (grid runs with unsuitable layouts only have a rank).
    """

    place: int
    source: str
    regime: str
    metric: str
    column: str
    measured: float
    model: str
    gpu: str
    fair: bool = True


def observations(rows: Sequence[Mapping[str, str]]) -> list[Observation]:
    """All measured numbers of ``rows`` that can be predicted."""
    return [found for place, row in enumerate(rows) for found in _of_row(place, row)]


def with_overload(
    observed: Sequence[Observation], read: ReadRows, found: Sequence[Prediction]
) -> list[Observation]:
    """The same; runs whose load exceeds the predicted capacity are a regime of their own."""
    runs = {place for place, row in read.serving.items() if row.predicted_as == RUN}
    beyond = {place for place in runs if not found[place].stable}
    return [replace(o, regime=f"{OVERLOAD} {o.regime}") if o.place in beyond else o for o in observed]


def log_errors(
    read: ReadRows, observed: Sequence[Observation], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """log(predicted / measured) [O]; nan if there is no prediction, or if the load is over capacity and the
    observation does not say so (``with_overload``).
    """
    found = predictions(read, calibration, gpus)
    ratios = [
        found[o.place].values.get(o.column, np.nan) / o.measured
        if found[o.place].stable or o.regime.startswith(OVERLOAD)
        else np.nan
        for o in observed
    ]
    return np.log(as_array(ratios))


def loop_rates(rows: Sequence[Mapping[str, str]]) -> list[Observation]:
    """Tokens/s of closed loops with published latencies only: C·output / (first token + output·ITL)."""
    by_place: dict[int, dict[str, Observation]] = defaultdict(dict)
    for o in observations(rows):
        if o.regime.startswith("closed_loop"):
            by_place[o.place][o.metric] = o
    return [
        replace(found[FIRST], metric=RATE, column=RATE_COLUMN, measured=rate)
        for place, found in by_place.items()
        if RATE not in found and {FIRST, BETWEEN} <= set(found) and (rate := _rate(rows[place], found)) > 0
    ]


def _rate(row: Mapping[str, str], found: Mapping[str, Observation]) -> float:
    output, batch = _value(row, "osl"), _value(row, "concurrency_or_batch")
    return 1e3 * batch * output / (found[FIRST].measured + output * found[BETWEEN].measured)


def _of_row(place: int, row: Mapping[str, str]) -> Iterator[Observation]:
    serving = is_serving(row)
    if not _counts(row, serving):
        return
    source, regime = _source(row, serving), _regime(row, serving)
    for metric, column, measured_columns in _pairs(row, serving):
        measured = next((value for name in measured_columns if (value := _value(row, name)) > 0), 0.0)
        if measured > 0:
            yield Observation(
                place,
                source,
                regime,
                metric,
                column,
                measured,
                row.get("model", ""),
                row.get("gpu", ""),
                metric != "step time" or _is_plausible(row),
            )
    if serving:
        yield from _ratios(place, row, source)


def _pairs(row: Mapping[str, str], serving: bool) -> Sequence[tuple[str, str, tuple[str, ...]]]:
    """Measured and predicted columns that are compared; a mean first token is compared with the mean if there
    is no median."""
    if not serving:
        return TRAINING_PAIRS
    median_told = _value(row, "ttft_ms_p50") > 0
    return SERVING_PAIRS if median_told else (*SERVING_PAIRS, MEAN_PAIR)


def _ratios(place: int, row: Mapping[str, str], source: str) -> Iterator[Observation]:
    """Ratios of the tails of latencies to their medians."""
    for metric, column, tail, middle in RATIO_PAIRS:
        high, median = _value(row, tail), _value(row, middle)
        if high > 0 and median > 0:
            names = row.get("model", ""), row.get("gpu", "")
            yield Observation(place, source, RATIO_REGIME, metric, column, high / median, *names)


def _is_plausible(row: Mapping[str, str]) -> bool:
    """Whether a grid run used a plausible layout: tensor groups within the node, and an MFU above a fifth."""
    if not row.get("status"):
        return True
    return _value(row, "mfu_reported") > SENSIBLE_MFU and _value(row, "tp") <= SENSIBLE_TENSOR


def _counts(row: Mapping[str, str], serving: bool) -> bool:
    if serving:
        if row.get("regime") in LENGTH_MATTERS and not _value(row, "isl") and not benchmark_of(row):
            return False
        return not any(word in row.get("notes", "") for word in OTHER_THINGS)
    return row.get("usable_step", "1") != "0" and row.get("status", "ok") == "ok"


def _source(row: Mapping[str, str], serving: bool) -> str:
    """The table of a row; training rows of one table have the beginning of their id in common."""
    named = row.get("source", "") if serving else ""
    return named or identifier_front(row)


def identifier_front(row: Mapping[str, str]) -> str:
    """The common beginning of the ids of one training table."""
    return row.get("id", "").rsplit("-", 1)[0]


def _regime(row: Mapping[str, str], serving: bool) -> str:
    if not serving:
        if row.get("status"):
            return "grid"
        return f"{row.get('arch') or 'dense'} {row.get('precision', '')}".strip()
    regime = row.get("regime", "")
    if regime != "closed_loop":
        return regime
    size = _value(row, "concurrency_or_batch")
    return f"{regime} C{'≤8' if size <= LOADED else '≤64' if size <= CROWDED else '>64'}"


def _value(row: Mapping[str, str], name: str) -> float:
    try:
        return float(row.get(name) or 0.0)
    except ValueError:
        return 0.0
