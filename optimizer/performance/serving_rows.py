"""Rows of published serving tables → predictions (contract, section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.model_shape import GpuSpec, ModelShape
from broker.domain.sku import Fabric, FabricKind, Sku
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.calibration import Calibration
from optimizer.performance.cells import Unreadable, number
from optimizer.performance.closed_loops import uneven_share
from optimizer.performance.finite_runs import run_share
from optimizer.performance.hardware import build_hardware
from optimizer.performance.intervals import (
    BURST,
    FIRST_ALONE,
    OBJECTIVE,
    OVERLOAD,
    ratio_relative,
    serving_row_relative,
)
from optimizer.performance.names import find_gpu, find_model
from optimizer.performance.prediction import Prediction
from optimizer.performance.queueing import P90, P95, P99, Lengths
from optimizer.performance.served_model import Format, Replica, ServedModel, cache_tokens
from optimizer.performance.serving_asked import Answer, Asked, raised
from optimizer.performance.serving_constants import Harness
from optimizer.performance.serving_regimes import ANSWERS, capacity
from optimizer.performance.serving_words import (
    AT_ONCE,
    REGIMES,
    Formats,
    cache_bytes,
    early_slowdown,
    engine_of,
    formats_of,
    harness_of,
    products_of,
    regime_of,
    release_of,
)
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
RATIO_KEYS = {column: column.removeprefix("pred_").removesuffix("_over_p50") for column in RATIOS}
ATTENTION_DP = "attention-dp"
LAYER_SPLIT = ("llama.cpp", "exllama")
IN_PROCESS = "single_stream_ttft"
USUAL_INPUT_TOKENS, USUAL_OUTPUT_TOKENS = 512.0, 256.0
USUAL_REQUESTS = 1000.0  # what benchmark tools of vLLM and SGLang send
TENSOR = (1, 2, 4, 8)
ROOM_FOR_WEIGHTS = 0.75
CROWDED, CROWDED_ABOVE = "crowded", 64.0
FEW, FEW_UP_TO = "few", 8.0
RUN, RUNS_AT_ONCE = "run", 256
OVER_CAPACITY = {
    False: "over capacity: the state at the limit is given",
    True: "over capacity: requests queue until the last one has come",
}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One row, read: what is served, where, under which load."""

    model: ModelShape
    sku: Sku
    tp: int
    pp: int
    dp: int
    ep: int
    copies: float
    dense: str
    experts: str
    products: str
    kv_bytes: float
    input_tokens: float
    output_tokens: float
    regime: str
    batch: float
    request_rate: float
    requests: float
    ends: bool
    engine: str
    harness: Harness
    objective_s: float
    layout_given: bool
    note: str
    burst: bool = False
    in_process: bool = False
    early_slowdown: float = 1.0
    first_objective_s: float = math.inf
    buffered: bool = True

    @property
    def answered_as(self) -> str:
        """The regime that answers for it: an open loop that ends is a run of its own, unless its rate was
        chosen at an objective."""
        ends = self.regime == "open" and math.isfinite(self.requests) and math.isinf(self.objective_s)
        return RUN if ends else self.regime


def read_row(
    row: Mapping[str, str],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> ServingRow:
    """A CSV row in the core's words. Raises Unreadable."""
    spec, gpu_note = find_gpu(row.get("gpu", ""), gpus)
    model, model_note = find_model(
        row.get("model", ""), models, number(row, "params_b"), number(row, "active_params_b")
    )
    published, regime_note = regime_of(row)
    regime = REGIMES[published]
    formats = formats_of(row, model, spec)
    dense = formats.dense
    lengths, length_note = _lengths(row, published)
    total, count_note = _gpus(row, model, formats, spec, calibration)
    early = early_slowdown(row, model, calibration)
    early_note = f"a first release with such a model's cache: {early:g} times slower" if early > 1.0 else ""
    requests, requests_note = _requests(row, published)
    notes = (
        *(gpu_note, model_note, count_note, regime_note, formats.note),
        *(length_note, requests_note, early_note),
    )
    tp, pp, dp, copies = _degrees(row, total, model.is_moe)
    engine = engine_of(row, spec, calibration)
    objectives = _objectives_s(row, model, published, calibration)
    at_once = published == AT_ONCE
    batch = _size(row, regime, at_once)
    return ServingRow(
        model=model,
        sku=_sku(spec, tp * pp * dp),
        tp=tp,
        pp=pp,
        dp=dp,
        ep=max(int(number(row, "ep") or 1), dp),
        copies=copies,
        dense=dense,
        experts=formats.experts,
        products=products_of(dense, engine),
        kv_bytes=cache_bytes(row, dense, engine, spec),
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        regime=regime,
        batch=batch,
        request_rate=_rate(row, regime),
        requests=requests or (batch if at_once else np.inf),
        ends=at_once or regime == "offline",
        engine=engine,
        harness=harness_of(row, calibration),
        objective_s=objectives[0],
        layout_given=number(row, "tp") is not None,
        note="; ".join(note for note in notes if note),
        burst=at_once,
        in_process=published == IN_PROCESS,
        early_slowdown=early,
        first_objective_s=objectives[1],
        buffered=calibration.buffers_states(*release_of(row)),
    )


def _lengths(row: Mapping[str, str], published: str) -> tuple[tuple[float, float], str]:
    """Tokens in and out; usual ones where the row leaves them open."""
    told, answer = number(row, "isl"), number(row, "osl")
    notes = []
    if not told:
        notes.append(f"input length not given, {USUAL_INPUT_TOKENS:.0f} assumed")
    if answer is None and published != IN_PROCESS:
        answer = USUAL_OUTPUT_TOKENS
        notes.append(f"output length not given, {USUAL_OUTPUT_TOKENS:.0f} assumed")
    return (told or USUAL_INPUT_TOKENS, max(answer or 1.0, 1.0)), "; ".join(notes)


def _requests(row: Mapping[str, str], published: str) -> tuple[float | None, str]:
    """Requests of a run; a usual number where an open loop does not say, since every benchmark ends."""
    told = number(row, "num_requests")
    if told or published != "open_loop":
        return told, ""
    return USUAL_REQUESTS, f"count of requests not given, {USUAL_REQUESTS:,.0f} assumed"


def _gpus(
    row: Mapping[str, str], model: ModelShape, formats: Formats, spec: GpuSpec, calibration: Calibration
) -> tuple[int, str]:
    """GPUs in all; where nothing says how many, the smallest power of two whose memory holds the weights."""
    told = number(row, "gpus")
    if told or number(row, "tp"):
        return int(told or 1.0), ""
    widest = max(calibration.serving.weight_bytes[name] for name in (formats.dense, formats.experts))
    cards = model.total_params * widest / (ROOM_FOR_WEIGHTS * spec.memory_gb * 1e9)
    count = 1 << max(0, math.ceil(math.log2(cards)))
    return count, f"count of GPUs not given, {count} assumed"


def _degrees(row: Mapping[str, str], total: int, moe: bool) -> tuple[int, int, int, float]:
    """Tensor, pipeline, data degree and independent copies; without a layout one tensor group of all.

    llama.cpp and ExLlama split layers over GPUs, which take turns. Where the notes of a mixture of experts
    say that attention ran data-parallel, its tensor ranks did.
    """
    tp, pp = int(number(row, "tp") or 0), int(number(row, "pp") or 1)
    dp = int(number(row, "dp") or 1)
    if not tp:
        return max(1, total // (pp * dp)), pp, dp, 1.0
    if any(word in row.get("engine", "").lower() for word in LAYER_SPLIT):
        tp, pp = 1, tp * pp
    if moe and ATTENTION_DP in row.get("notes", "").lower() and dp == 1:
        tp, dp = 1, tp
    return tp, pp, dp, max(1.0, total / (tp * pp * dp))


def _sku(spec: GpuSpec, gpus: int) -> Sku:
    fabric = Fabric(FabricKind.INFINIBAND, 3200.0, 64) if gpus > 8 else None
    return Sku("", spec.gpu, max(1, min(gpus, 8)), spec.memory_gb, fabric=fabric)


def _size(row: Mapping[str, str], regime: str, at_once: bool) -> float:
    """Requests in flight together; where all come at once, as many as there are."""
    size = number(row, "concurrency_or_batch") or (number(row, "num_requests") if at_once else None)
    if regime == "single":
        return 1.0
    if size is None and regime in {"closed", "static", "decode"}:
        raise Unreadable("concurrency_or_batch is missing")
    return size or 0.0


def _rate(row: Mapping[str, str], regime: str) -> float:
    text = (row.get("request_rate") or "").strip().lower()
    rate = np.inf if text == "inf" else number(row, "request_rate")
    if regime == "open" and not rate:
        raise Unreadable("request_rate is missing")
    return float(rate or 0.0)


def predict_serving(
    rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[Prediction]:
    """Predictions in the order of ``rows``; rows of one format, engine and regime are computed together.

    A row without a layout is computed in every tensor degree; the one of the largest capacity stands.
    """
    ways = [(index, way) for index, row in enumerate(rows) for way in _ways(row)]
    found: list[tuple[float, Prediction] | None] = [None] * len(rows)
    groups: dict[tuple[str, str, str, str, str], list[int]] = {}
    for place, (_, way) in enumerate(ways):
        key = (way.dense, way.experts, way.products, way.engine, way.answered_as)
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
    """A group, or parts of one whose rows take much memory."""
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
    """Capacity (requests/s of all copies) and prediction of rows that share formats, engine and regime."""
    served = _served(rows, calibration, gpus)
    lengths = Lengths(
        as_array([max(r.input_tokens * r.harness.mean_share, 1.0) for r in rows]),
        as_array([max(r.output_tokens * r.harness.mean_share, 1.0) for r in rows]),
        as_array([_cv(r, r.harness.input_cv) for r in rows]),
        as_array([_cv(r, r.harness.output_cv) for r in rows]),
        as_array([r.harness.cached_share for r in rows]),
    )
    copies = as_array([row.copies for row in rows])
    asked = Asked(
        as_array([row.batch for row in rows]) / copies,
        as_array([row.request_rate for row in rows]) / copies,
        as_array([row.requests for row in rows]) / copies,
        as_array([_rounds(row) for row in rows]),
        as_array([row.harness.of_means for row in rows]),
        as_array([row.objective_s for row in rows]),
        as_array([0.0 if row.in_process else served.engine.harness_s for row in rows]),
        as_array([row.harness.polled.get(gpus[row.sku.gpu].arch, 0.0) for row in rows]),
        as_array([row.harness.burst_dense for row in rows]),
        as_array([row.harness.longest_output for row in rows]),
        first_objective_s=as_array([row.first_objective_s for row in rows]),
    )
    ends = as_array([row.ends for row in rows])
    uneven = uneven_share(as_array([_cv(r, r.harness.output_cv) for r in rows]), asked)
    asked = replace(asked, parted=np.maximum(ends, uneven if rows[0].regime == "closed" else 0.0))
    answer = ANSWERS[rows[0].answered_as](served, lengths, asked)
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
                calibration,
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


def _objectives_s(
    row: Mapping[str, str], model: ModelShape, published: str, calibration: Calibration
) -> tuple[float, float]:
    """The objectives on the time between tokens and to the first one that the rate of an MLPerf row was
    chosen for; inf for other rows."""
    if published != "open_loop_slo":
        return np.inf, np.inf
    chosen = calibration.chosen
    interactive = "interactive" in row.get("notes", "").lower()
    between = chosen.interactive_itl_p99_s if interactive else chosen.server_itl_p99_s
    first = chosen.interactive_ttft_p99_s if interactive else chosen.server_ttft_p99_s
    return between.get(model.name, np.inf), first.get(model.name, np.inf)


def _cv(row: ServingRow, value: float) -> float:
    return value if row.input_tokens <= row.harness.varied_up_to else 0.0


def _rounds(row: ServingRow) -> float:
    """Requests of each client of a closed loop: as the row says, else as the harness usually sends."""
    return row.requests / row.batch if np.isfinite(row.requests) and row.batch else row.harness.rounds


def _served(rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]) -> ServedModel:
    kinds = list(dict.fromkeys(row.sku for row in rows))
    place = {kind: index for index, kind in enumerate(kinds)}
    hw = build_hardware(kinds, gpus, calibration).take(np.asarray([place[row.sku] for row in rows]))
    replica = Replica(*(as_array([getattr(row, name) for row in rows]) for name in ("tp", "pp", "dp", "ep")))
    form = Format(rows[0].dense, rows[0].experts, as_array([r.kv_bytes for r in rows]), rows[0].products)
    shapes = stack_shapes([row.model for row in rows])
    inside = as_array([0.0 if row.burst else row.harness.inside for row in rows])
    early = as_array([row.early_slowdown for row in rows])
    return ServedModel(
        shapes,
        form,
        replica,
        hw,
        calibration,
        rows[0].engine,
        inside=inside,
        early_slowdown=early,
        buffered=as_array([float(row.buffered) for row in rows]),
    )


def _kind(row: ServingRow, stable: bool) -> str:
    """The regime as intervals tell them apart."""
    if row.burst:
        return BURST
    if row.in_process:
        return FIRST_ALONE
    if np.isfinite(row.objective_s):
        return OBJECTIVE
    if row.answered_as == RUN and not stable:
        return OVERLOAD
    if row.regime != "closed":
        return row.regime
    return CROWDED if row.batch > CROWDED_ABOVE else FEW if row.batch <= FEW_UP_TO else row.regime


def _prediction(
    row: ServingRow, values: Mapping[str, float], stable: bool, fits: bool, calibration: Calibration
) -> Prediction:
    known = row.sku.gpu in calibration.calibrated_gpus
    kind = _kind(row, stable)
    old = calibration.is_old(row.engine) or row.early_slowdown > 1.0
    relative = serving_row_relative(kind, known, calibration.intervals, row.model.is_moe, old)
    spread = dict(zip(METRICS, relative, strict=True))
    spread[FIRST_MEAN] = spread[FIRST_MEDIAN]
    for column, name in RATIO_KEYS.items():
        spread[column] = ratio_relative(name, calibration.intervals, old, kind == OVERLOAD)
    beyond = "" if stable else OVER_CAPACITY[row.answered_as == RUN]
    notes = (row.note, beyond)
    return Prediction(
        values=values,
        spread=spread,
        fits=fits,
        note="; ".join(note for note in notes if note),
        stable=stable,
    )
