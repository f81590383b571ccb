"""Rows of published serving tables → predictions (contract, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.model_shape import GpuSpec, ModelShape
from broker.domain.sku import Fabric, FabricKind, Sku
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.calibration import Calibration
from optimizer.performance.cells import Unreadable, number
from optimizer.performance.hardware import build_hardware
from optimizer.performance.queueing import Lengths, Load, batch_limit, harness, load_at, load_at_rate
from optimizer.performance.serving import Format, Replica, ServedModel, cache_tokens, decode_step, prefill
from optimizer.performance.shapes import stack_shapes

METRICS = (
    "pred_output_tokens_per_s_total",
    "pred_ttft_ms_p50",
    "pred_ttft_ms_p95",
    "pred_tpot_ms_p50",
    "pred_tpot_ms_p95",
)
REGIMES = {
    "offline_max": "offline",
    "offline_burst": "closed",
    "closed_loop": "closed",
    "open_loop": "open",
    "open_loop_slo": "open",
    "single_stream": "single",
    "single_stream_ttft": "single",
    "static_batch": "static",
}
WEIGHT_WORDS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "int4": "int4",
    "q4_k_m": "int4",
    "int8": "int8",
    "int8-w8a16": "int8",
}
CACHE_BYTES = {"fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp16": 2.0, "bf16": 2.0, "": 2.0}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One row, read: what is served, where, under which load."""

    model: ModelShape
    sku: Sku
    tp: int
    pp: int
    dp: int
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


def read_row(
    row: Mapping[str, str], gpus: Mapping[str, GpuSpec], models: Mapping[str, ModelShape]
) -> ServingRow:
    """A CSV row in the core's words. Raises Unreadable."""
    spec = gpus.get(row.get("gpu", ""))
    if spec is None:
        raise Unreadable(f"unknown GPU {row.get('gpu', '')!r}")
    model = models.get(row.get("model", ""))
    if model is None:
        raise Unreadable(f"unknown model {row.get('model', '')!r}")
    regime = REGIMES.get(row.get("regime", ""))
    if regime is None:
        raise Unreadable(f"regime {row.get('regime', '')!r} is not one of {', '.join(REGIMES)}")
    dense = WEIGHT_WORDS.get(row.get("weight_precision", "").strip().lower())
    if dense is None:
        raise Unreadable(f"weight precision {row.get('weight_precision', '')!r} is not known")
    experts = WEIGHT_WORDS.get(row.get("moe_precision", "").strip().lower(), dense)
    total = number(row, "gpus") or 1.0
    tp, pp, dp, copies = _degrees(row, int(total))
    return ServingRow(
        model=model,
        sku=_sku(spec, tp * pp * dp),
        tp=tp,
        pp=pp,
        dp=dp,
        copies=copies,
        dense=dense,
        experts=experts,
        products=_products(dense),
        kv_bytes=CACHE_BYTES.get(row.get("kv_precision", "").strip().lower(), 2.0),
        input_tokens=number(row, "isl") or 1.0,
        output_tokens=max(number(row, "osl") or 1.0, 1.0),
        regime=regime,
        batch=_size(row, regime),
        request_rate=_rate(row, regime),
    )


def _degrees(row: Mapping[str, str], total: int) -> tuple[int, int, int, float]:
    """Tensor, pipeline, data degree and independent copies; without a layout one tensor group of all."""
    tp, pp = int(number(row, "tp") or 0), int(number(row, "pp") or 1)
    dp = int(number(row, "dp") or 1)
    if not tp:
        return max(1, total // (pp * dp)), pp, dp, 1.0
    return tp, pp, dp, max(1.0, total / (tp * pp * dp))


def _products(dense: str) -> str:
    return {"fp8": "fp8", "fp4": "fp4", "fp16": "fp16", "int8": "bf16", "int4": "bf16"}.get(dense, "bf16")


def _sku(spec: GpuSpec, gpus: int) -> Sku:
    fabric = Fabric(FabricKind.INFINIBAND, 3200.0, 64) if gpus > 8 else None
    return Sku("", spec.gpu, max(1, min(gpus, 8)), spec.memory_gb, fabric=fabric)


def _size(row: Mapping[str, str], regime: str) -> float:
    size = number(row, "concurrency_or_batch")
    if regime == "single":
        return 1.0
    if size is None and regime in {"closed", "static"}:
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
) -> list[dict[str, str]]:
    """Predictions in the order of ``rows``; rows of one format and regime are computed together."""
    out: list[dict[str, str]] = [{} for _ in rows]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.dense, row.experts, row.products, row.regime), []).append(index)
    for (_, _, _, regime), members in groups.items():
        results = _predict_group([rows[i] for i in members], regime, calibration, gpus)
        for index, result in zip(members, results, strict=True):
            out[index] = result
    return out


@dataclass(frozen=True, slots=True)
class _Answer:
    """Arrays over the rows of a group; tokens/s of one copy, times in seconds, nan where not defined."""

    tokens_per_s: Array
    ttft_p50_s: Array
    ttft_p95_s: Array
    tpot_p50_s: Array
    tpot_p95_s: Array
    stable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def _predict_group(
    rows: Sequence[ServingRow], regime: str, calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[dict[str, str]]:
    served = _served(rows, calibration, gpus)
    lengths = Lengths(as_array([r.input_tokens for r in rows]), as_array([r.output_tokens for r in rows]))
    asked = as_array([row.batch for row in rows]) / as_array([row.copies for row in rows])
    answer = _ANSWERS[regime](served, lengths, asked, as_array([r.request_rate / r.copies for r in rows]))
    fits = cache_tokens(served) >= lengths.input_tokens + lengths.output_tokens
    return [
        _written(row, answer, index, bool(fits[index]), regime, calibration) for index, row in enumerate(rows)
    ]


def _served(rows: Sequence[ServingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]) -> ServedModel:
    kinds = list(dict.fromkeys(row.sku for row in rows))
    place = {kind: index for index, kind in enumerate(kinds)}
    hw = build_hardware(kinds, gpus, calibration).take(np.asarray([place[row.sku] for row in rows]))
    replica = Replica(*(as_array([getattr(row, name) for row in rows]) for name in ("tp", "pp", "dp")))
    form = Format(rows[0].dense, rows[0].experts, as_array([r.kv_bytes for r in rows]), rows[0].products)
    return ServedModel(stack_shapes([row.model for row in rows]), form, replica, hw, calibration)


def _closed(served: ServedModel, lengths: Lengths, asked: Array, rate: Array) -> _Answer:
    """``asked`` requests always in flight: those beyond the cache wait a share of an answer's time."""
    constants = served.calibration.queueing
    most = np.maximum(batch_limit(served, lengths, served.rates.offline_batch_most), 1.0)
    batch = np.minimum(np.maximum(asked, 1.0), most)
    load = load_at(served, lengths, batch, most, harness(constants))
    first = prefill(served, lengths.input_tokens)
    together = constants.closed_loop_wait * np.sqrt(np.maximum(batch - 1.0, 0.0)) * first.work
    queue = np.maximum(asked - batch, 0.0) / np.maximum(load.requests_per_s, 1e-9)
    return _answer(load, lengths, together + queue, constants.ttft_p95_idle)


def _answer(load: Load, lengths: Lengths, wait: Array, tail: float) -> _Answer:
    return _Answer(
        load.requests_per_s * lengths.output_tokens,
        load.ttft_p50_s + wait,
        load.ttft_p95_s + tail * wait,
        load.itl_p50_s,
        load.itl_p95_s,
        np.ones_like(wait, dtype=np.bool_),
    )


def _offline(served: ServedModel, lengths: Lengths, asked: Array, rate: Array) -> _Answer:
    most = np.maximum(batch_limit(served, lengths, served.rates.offline_batch_most), 1.0)
    load = load_at(served, lengths, most, most, harness(served.calibration.queueing))
    unknown = np.full_like(most, np.nan)
    return _Answer(
        load.requests_per_s * lengths.output_tokens,
        unknown,
        unknown,
        load.itl_p50_s,
        load.itl_p95_s,
        np.ones_like(most, dtype=np.bool_),
    )


def _open(served: ServedModel, lengths: Lengths, asked: Array, rate: Array) -> _Answer:
    most = np.maximum(batch_limit(served, lengths, served.rates.offline_batch_most), 1.0)
    load, stable = load_at_rate(served, lengths, rate, most, harness(served.calibration.queueing))
    found = _answer(load, lengths, np.zeros_like(most), 1.0)
    tokens = np.minimum(found.tokens_per_s, rate * lengths.output_tokens)
    return _Answer(tokens, found.ttft_p50_s, found.ttft_p95_s, found.tpot_p50_s, found.tpot_p95_s, stable)


def _static(served: ServedModel, lengths: Lengths, asked: Array, rate: Array) -> _Answer:
    """A fixed batch from prefill to the last token, nothing joins."""
    first = prefill(served, lengths.input_tokens)
    step = decode_step(served, asked, lengths.mean_context).total
    begin = first.latency + (asked - 1.0) * first.work * served.replica.pp
    tokens = asked * lengths.output_tokens / (begin + (lengths.output_tokens - 1.0) * step)
    return _Answer(tokens, begin, begin, step, step, np.ones_like(step, dtype=np.bool_))


def _single(served: ServedModel, lengths: Lengths, asked: Array, rate: Array) -> _Answer:
    """One request at a time."""
    constants = served.calibration.queueing
    first = prefill(served, lengths.input_tokens).latency + harness(constants)
    step = decode_step(served, np.ones_like(first), lengths.mean_context).total
    tokens = lengths.output_tokens / (first + (lengths.output_tokens - 1.0) * step)
    return _Answer(
        tokens,
        first,
        first * constants.ttft_p95_idle,
        step,
        step * constants.itl_p95_idle,
        np.ones_like(step, dtype=np.bool_),
    )


_ANSWERS = {"closed": _closed, "offline": _offline, "open": _open, "static": _static, "single": _single}


def _written(
    row: ServingRow, answer: _Answer, index: int, fits: bool, regime: str, calibration: Calibration
) -> dict[str, str]:
    intervals = calibration.intervals
    more = 0.0 if row.sku.gpu in calibration.calibrated_gpus else intervals.serving_unseen_gpu
    ttft = intervals.ttft_idle if regime in {"single", "static"} else intervals.ttft
    spread = (
        intervals.throughput + more,
        ttft + more,
        ttft + more,
        intervals.decode + more,
        intervals.decode + more,
    )
    values = (
        float(answer.tokens_per_s[index]) * row.copies,
        1e3 * float(answer.ttft_p50_s[index]),
        1e3 * float(answer.ttft_p95_s[index]),
        1e3 * float(answer.tpot_p50_s[index]),
        1e3 * float(answer.tpot_p95_s[index]),
    )
    note = "" if answer.stable[index] else "over capacity: the state at the limit is given"
    written = {"fits": "true" if fits else "false", "note": note}
    for name, value, share in zip(METRICS, values, spread, strict=True):
        if np.isfinite(value):
            written[name] = f"{value:.6g}"
            written[f"{name}_low"] = f"{value / (1 + share):.6g}"
            written[f"{name}_high"] = f"{value * (1 + share):.6g}"
    return written
