"""Serving rows → predictions (contract, section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from broker.domain.market.sku import Sku
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.regimes.closed_loops import uneven_share
from optimizer.calibration.regimes.finite_runs import run_share
from optimizer.calibration.regimes.load import Answer, LoadSpec, raised
from optimizer.calibration.regimes.regimes import ANSWERS, capacity
from optimizer.calibration.table_constants import load_table_constants
from optimizer.calibration.tables.cells import Prediction, assumptions_in
from optimizer.calibration.tables.serving_reading import RUN, ServingRow
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import SERVING, Question, load_spread, question_words
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.queueing import P90, P95, P99, Lengths
from optimizer.performance.serving.served_model import Format, Replica, ServedModel, cache_tokens
from optimizer.performance.shapes import stack_shapes

METRICS = (
    "pred_output_tokens_per_s_total",
    "pred_ttft_ms_p50",
    "pred_ttft_ms_p95",
    "pred_tpot_ms_p50",
    "pred_tpot_ms_p95",
)
FIRST_MEDIAN, FIRST_MEAN = "pred_ttft_ms_p50", "pred_ttft_ms_mean"
RATIOS = {
    f"pred_{name}_{end}_over_p50": (name, normal)
    for name in ("ttft", "tpot")
    for end, normal in (("p90", P90), ("p95", P95), ("p99", P99))
}
RATIO_NAMES = {column: column.removeprefix("pred_").removesuffix("_over_p50") for column in RATIOS}
TENSOR = (1, 2, 4, 8)
CROWDED, CROWDED_ABOVE = "crowded", 64.0
FEW, FEW_UP_TO = "few", 8.0
BURST, FIRST_ALONE, OBJECTIVE, OVERLOAD = "burst", "first", "objective", "overload"
RUNS_AT_ONCE = 256
OVER_CAPACITY = {
    False: "over capacity: the state at the limit is given",
    True: "over capacity: requests queue until the last one has come",
}


def predict_serving(
    rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[Prediction]:
    """Predictions in the order of ``rows``; rows with equal formats, engine and regime are computed together.

    A row without a layout is computed with every tensor degree, and the one with the largest capacity is
    used.
    """
    ways = [(index, way) for index, row in enumerate(rows) for way in _ways(row)]
    found: list[tuple[float, Prediction] | None] = [None] * len(rows)
    groups: dict[tuple[str, str, str, str, str], list[int]] = {}
    for place, (_, way) in enumerate(ways):
        key = (way.dense, way.experts, way.products, way.engine, way.predicted_as)
        groups.setdefault(key, []).append(place)
    for members in (part for group in groups.items() for part in _parts(*group)):
        results = _predict_group([ways[i][1] for i in members], calibration, gpus)
        for place, result in zip(members, results, strict=True):
            index = ways[place][0]
            best = found[index]
            if best is None or result[0] > best[0]:
                found[index] = result
    return [entry[1] for entry in found if entry is not None]


def _parts(key: tuple[str, ...], members: Sequence[int]) -> Iterator[Sequence[int]]:
    """A group, or parts of one whose rows need much memory."""
    most = RUNS_AT_ONCE if key[-1] == RUN else len(members)
    return (members[start : start + most] for start in range(0, len(members), most))


def _ways(row: ServingRow) -> list[ServingRow]:
    if row.layout_given:
        return [row]
    total = round(row.tp * row.pp * row.dp * row.copies)
    degrees = [tp for tp in TENSOR if total % (tp * row.pp * row.dp) == 0]
    per_copy = [(tp, tp * row.pp * row.dp) for tp in degrees]
    return [
        replace(row, tp=tp, copies=total / gpus, sku=_resized(row.sku, gpus)) for tp, gpus in per_copy
    ] or [row]


def _resized(sku: Sku, gpus: int) -> Sku:
    return replace(sku, gpus_per_node=max(1, min(gpus, 8)))


def _predict_group(
    rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[tuple[float, Prediction]]:
    """Capacity (requests/s of all replicas) and prediction of rows with equal formats, engine and regime."""
    served = _served(rows, calibration, gpus)
    lengths = Lengths(
        as_array([max(r.input_tokens * r.client.mean_share, 1.0) for r in rows]),
        as_array([max(r.output_tokens * r.client.mean_share, 1.0) for r in rows]),
        as_array([_cv(r, r.client.input_cv) for r in rows]),
        as_array([_cv(r, r.client.output_cv) for r in rows]),
        as_array([r.client.cached_share for r in rows]),
    )
    copies = as_array([row.copies for row in rows])
    asked = LoadSpec(
        as_array([row.batch for row in rows]) / copies,
        as_array([row.request_rate for row in rows]) / copies,
        as_array([row.requests for row in rows]) / copies,
        as_array([_rounds(row) for row in rows]),
        as_array([row.client.of_means for row in rows]),
        as_array([row.objective_s for row in rows]),
        as_array([0.0 if row.in_process else served.engine.client_overhead_s for row in rows]),
        as_array([row.client.polled.get(gpus[row.sku.gpu].arch, 0.0) for row in rows]),
        as_array([row.client.burst_dense for row in rows]),
        as_array([row.client.longest_output for row in rows]),
        first_objective_s=as_array([row.first_objective_s for row in rows]),
    )
    ends = as_array([row.ends for row in rows])
    uneven = uneven_share(as_array([_cv(r, r.client.output_cv) for r in rows]), asked)
    asked = replace(asked, parted=np.maximum(ends, uneven if rows[0].regime == "closed" else 0.0))
    answer = ANSWERS[rows[0].predicted_as](served, lengths, asked)
    kept = run_share(served, lengths, asked, answer.tokens_per_s)
    answer = replace(answer, tokens_per_s=answer.tokens_per_s * kept)
    fits = cache_tokens(raised(served)) >= lengths.input_tokens + lengths.output_tokens
    searched = not all(row.layout_given for row in rows)
    most = capacity(served, lengths) * copies if searched else copies
    shown = _shown(answer, copies)
    return [
        (
            float(most[index]),
            _prediction(
                row,
                {name: float(column[index]) for name, column in shown.items()},
                bool(answer.stable[index]),
                bool(fits[index]),
                gpus,
            ),
        )
        for index, row in enumerate(rows)
    ]


def _shown(answer: Answer, copies: Array) -> dict[str, Array]:
    """The columns of ``METRICS`` and ``RATIOS``, and the mean first token."""
    ttft, tpot = answer.ttft, answer.tpot
    first_mean = ttft.p50 if answer.first_mean is None else answer.first_mean
    columns = (
        answer.tokens_per_s * copies,
        1e3 * ttft.p50,
        1e3 * ttft.quantile(P95),
        1e3 * tpot.p50,
        1e3 * tpot.quantile(P95),
    )
    spreads = {"ttft": ttft, "tpot": tpot}
    ratios = {
        column: spreads[name].quantile(normal) / spreads[name].p50
        for column, (name, normal) in RATIOS.items()
    }
    return dict(zip(METRICS, columns, strict=True)) | {FIRST_MEAN: 1e3 * first_mean} | ratios


def _cv(row: ServingRow, value: float) -> float:
    return value if row.input_tokens <= row.client.varied_up_to else 0.0


def _rounds(row: ServingRow) -> float:
    """Requests of each client of a closed loop: as given in the row, else as the benchmark usually sends."""
    return row.requests / row.batch if np.isfinite(row.requests) and row.batch else row.client.rounds


def _served(rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]) -> ServedModel:
    kinds = list(dict.fromkeys(row.sku for row in rows))
    place = {kind: index for index, kind in enumerate(kinds)}
    hw = build_hardware(kinds, gpus, calibration).take(np.asarray([place[row.sku] for row in rows]))
    replica = Replica(*(as_array([getattr(row, name) for row in rows]) for name in ("tp", "pp", "dp", "ep")))
    form = Format(rows[0].dense, rows[0].experts, as_array([r.kv_bytes for r in rows]), rows[0].products)
    shapes = stack_shapes([row.model for row in rows])
    inside = as_array([0.0 if row.burst else row.client.inside for row in rows])
    early = [(row.early.prompts, row.early.layer_s) if row.early else (1.0, 0.0) for row in rows]
    return ServedModel(
        shapes,
        form,
        replica,
        hw,
        calibration,
        rows[0].engine,
        inside=inside,
        early_prompts=as_array([prompts for prompts, _ in early]),
        early_layer_s=as_array([layer_s for _, layer_s in early]),
        buffered=as_array([float(row.buffered) for row in rows]),
        memory_told=as_array([row.options.memory_share for row in rows]),
        sequences_told=as_array([row.options.sequences for row in rows]),
        beams=as_array([row.options.beams for row in rows]),
    )


def _kind(row: ServingRow, stable: bool) -> str:
    """The regime by which intervals are distinguished."""
    if row.burst:
        return BURST
    if row.in_process:
        return FIRST_ALONE
    if np.isfinite(row.objective_s):
        return OBJECTIVE
    if row.predicted_as == RUN and not stable:
        return OVERLOAD
    if row.regime != "closed":
        return row.regime
    return CROWDED if row.batch > CROWDED_ABOVE else FEW if row.batch <= FEW_UP_TO else row.regime


def _prediction(
    row: ServingRow, values: Mapping[str, float], stable: bool, fits: bool, gpus: Mapping[str, GpuSpec]
) -> Prediction:
    spread, question = load_spread(), question_of(row, gpus)
    beyond = "" if stable else OVER_CAPACITY[row.predicted_as == RUN]
    notes = (row.note, beyond)
    return Prediction(
        values=values,
        spread={column: spread.of(*key, question) for column, key in keys_of(row, stable).items()},
        fits=fits,
        note="; ".join(note for note in notes if note),
        stable=stable,
    )


def keys_of(row: ServingRow, stable: bool) -> dict[str, tuple[str, str]]:
    """Block and regime of the interval of each column."""
    kind = _kind(row, stable)
    late = f"{kind}_p95" if kind == OBJECTIVE else kind
    end = f"_{OVERLOAD}" if kind == OVERLOAD else ""
    blocks = (("rate", kind), ("ttft", kind), ("ttft", late), ("itl", kind), ("itl", late))
    ratios = {column: ("ratio", f"{name}{end}") for column, name in RATIO_NAMES.items()}
    return dict(zip(METRICS, blocks, strict=True)) | {FIRST_MEAN: ("ttft", kind)} | ratios


def question_of(row: ServingRow, gpus: Mapping[str, GpuSpec]) -> Question:
    """What the row is asked for.

    Releases of engines before their present scheduler are slowed down by the host in many ways.
    """
    gpu, model = row.sku.gpu, row.model
    words = question_words(gpu, gpus[gpu].arch, model.name, row.engine, f"{row.dense}/{row.experts}")
    numbers = {
        "size": model.active_params / 1e9,
        "gpus": float(row.tp * row.pp * row.dp),
        "batch": max(row.batch, 1.0),
        "input": row.input_tokens,
        "output": row.output_tokens,
    }
    older = load_table_constants().is_old(row.engine) or row.early is not None
    assumed = assumptions_in(row.note) + (not row.layout_given)
    return Question(SERVING, words, numbers, assumed, model.is_moe, older)
