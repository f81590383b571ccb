"""Reads rows of published serving tables: the model, the node, the engine and the load."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.market.sku import Fabric, FabricKind, Sku
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.table_constants import BenchmarkClient, EarlyReleases, load_table_constants
from optimizer.calibration.tables.cells import Unreadable, number
from optimizer.calibration.tables.names import find_gpu, find_model
from optimizer.calibration.tables.serving_words import (
    AT_ONCE,
    REGIMES,
    Formats,
    benchmark_of,
    cache_bytes,
    client_of,
    early_release,
    engine_of,
    formats_of,
    products_of,
    regime_of,
    release_of,
)
from optimizer.calibration.tables.unread import require_predictable
from optimizer.performance.constants.calibrated import Calibration

ATTENTION_DP = "attention-dp"
LAYER_SPLIT = ("llama.cpp", "exllama")
IN_PROCESS = "single_stream_ttft"
USUAL_INPUT_TOKENS, USUAL_OUTPUT_TOKENS = 512.0, 256.0
USUAL_REQUESTS = 1000.0  # the default of the benchmark tools of vLLM and SGLang
ROOM_FOR_WEIGHTS = 0.75
NODE_RANKS = 8
RUN = "run"
MEMORY = re.compile(
    r"(?:mem[-_ ]fraction(?:[-_ ]static)?|gpu[-_ ]mem(?:ory)?[-_ ]util(?:ization)?)[ =:]+(0?\.\d+)"
)
A_RANK = re.compile(r"max[-_ ]num[-_ ]seqs[ =:]+(\d+)")
IN_ALL = re.compile(r"max[-_ ]running[-_ ]requests[ =:]+(\d+)")
BEAMS = re.compile(r"beams?(?:[-_ ](?:width|search))?[ =:]+(\d+)")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The share of each GPU's memory for weights and cache, and the most sequences in flight on a rank; 0 if
    not given.

    ``beams``: the number of sequences that are searched in parallel for one answer.
    """

    memory_share: float = 0.0
    sequences: float = 0.0
    beams: float = 1.0


NONE_TOLD = LaunchOptions()


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One row, read: model, node, engine and load."""

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
    client: BenchmarkClient
    objective_s: float
    layout_given: bool
    note: str
    burst: bool = False
    in_process: bool = False
    early: EarlyReleases | None = None
    first_objective_s: float = math.inf
    buffered: bool = True
    options: LaunchOptions = NONE_TOLD

    @property
    def predicted_as(self) -> str:
        """The regime that predicts it: a finite open loop is a run of its own, unless its rate was chosen at
        an objective."""
        ends = self.regime == "open" and math.isfinite(self.requests) and math.isinf(self.objective_s)
        return RUN if ends else self.regime


def read_row(
    row: Mapping[str, str],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> ServingRow:
    """A CSV row, read. Raises Unreadable."""
    require_predictable(row, serving=True)
    spec, gpu_note = find_gpu(row.get("gpu", ""), gpus)
    model, model_note = find_model(
        row.get("model", ""), models, number(row, "params_b"), number(row, "active_params_b")
    )
    published, regime_note = regime_of(row)
    regime = REGIMES[published]
    formats = formats_of(row, model, spec)
    dense = formats.dense
    lengths, length_note = _lengths(row, published, model)
    total, count_note = _gpus(row, model, formats, spec, calibration)
    early = early_release(row, model)
    early_note = "" if early is None else "a first release with such a model's cache, slower"
    requests, requests_note = _requests(row, published)
    notes = (
        *(gpu_note, model_note, count_note, regime_note, formats.note),
        *(length_note, requests_note, early_note),
    )
    tp, pp, dp, copies = _degrees(row, total, model.is_moe)
    engine = engine_of(row, spec)
    objectives = _objectives_s(row, model, published)
    at_once = published == AT_ONCE
    batch = _size(row, regime, at_once)
    return ServingRow(
        model=model,
        sku=_sku(spec, tp * pp * dp),
        tp=tp,
        pp=pp,
        dp=dp,
        ep=_whole_experts(row, dp),
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
        client=client_of(row),
        objective_s=objectives[0],
        layout_given=number(row, "tp") is not None,
        note="; ".join(note for note in notes if note),
        burst=at_once,
        in_process=published == IN_PROCESS,
        early=early,
        first_objective_s=objectives[1],
        buffered=load_table_constants().buffers_states(*release_of(row)),
        options=options_of(row, dp),
    )


def _lengths(row: Mapping[str, str], published: str, model: ModelShape) -> tuple[tuple[float, float], str]:
    """Input and output tokens; missing ones are those of the benchmark for the model, or else usual ones."""
    told, answer = number(row, "isl"), number(row, "osl")
    asked = load_table_constants().benchmarks.get(benchmark_of(row))
    usual_input = asked.input_tokens.get(model.name, USUAL_INPUT_TOKENS) if asked else USUAL_INPUT_TOKENS
    usual_output = asked.output_tokens.get(model.name, USUAL_OUTPUT_TOKENS) if asked else USUAL_OUTPUT_TOKENS
    notes = []
    if not told:
        notes.append(f"input length not given, {usual_input:.0f} assumed")
    if answer is None and published != IN_PROCESS:
        answer = usual_output
        notes.append(f"output length not given, {usual_output:.0f} assumed")
    return (told or usual_input, max(answer or 1.0, 1.0)), "; ".join(notes)


def _requests(row: Mapping[str, str], published: str) -> tuple[float | None, str]:
    """The number of requests of a run; a usual number for an open loop without one, because every benchmark
    ends."""
    told = number(row, "num_requests")
    if told or published != "open_loop":
        return told, ""
    return USUAL_REQUESTS, f"count of requests not given, {USUAL_REQUESTS:,.0f} assumed"


def _gpus(
    row: Mapping[str, str], model: ModelShape, formats: Formats, spec: GpuSpec, calibration: Calibration
) -> tuple[int, str]:
    """The total number of GPUs; if it is missing, the smallest power of two whose
    memory holds the weights."""
    told = number(row, "gpus")
    if told or number(row, "tp"):
        return int(told or 1.0), ""
    widest = max(calibration.serving.weight_bytes[name] for name in (formats.dense, formats.experts))
    cards = model.total_params * widest / (ROOM_FOR_WEIGHTS * spec.memory_gb * 1e9)
    count = 1 << max(0, math.ceil(math.log2(cards)))
    return count, f"count of GPUs not given, {count} assumed"


def _degrees(row: Mapping[str, str], total: int, moe: bool) -> tuple[int, int, int, float]:
    """Tensor, pipeline and data degree, and independent replicas; without a layout, one tensor group of all
    GPUs.

    llama.cpp and ExLlama split layers over GPUs, which take turns. Data-parallel ranks without shared experts
    are replicas. If the notes of a mixture-of-experts model say that attention ran data-parallel, its tensor
    ranks did. SGLang and TensorRT-LLM count attention ranks within the tensor group: this is assumed if the
    degrees would need more GPUs than there are.
    """
    tp, pp = int(number(row, "tp") or 0), int(number(row, "pp") or 1)
    dp = int(number(row, "dp") or 1) if moe else 1
    if not tp:
        return max(1, total // (pp * dp)), pp, dp, 1.0
    if any(word in row.get("engine", "").lower() for word in LAYER_SPLIT):
        tp, pp = 1, tp * pp
    if moe and ATTENTION_DP in row.get("notes", "").lower() and dp == 1:
        tp, dp = 1, tp
    if tp * pp * dp > total and tp % dp == 0:
        tp //= dp
    return tp, pp, dp, max(1.0, total / (tp * pp * dp))


def _whole_experts(row: Mapping[str, str], dp: int) -> int:
    """Groups that hold whole experts, as given. If not given, or if slices would be cut over more ranks than
    a node has, one for each attention rank."""
    told = int(number(row, "ep") or 0)
    return told if told > 1 or (told and dp <= NODE_RANKS) else dp


def _sku(spec: GpuSpec, gpus: int) -> Sku:
    fabric = Fabric(FabricKind.INFINIBAND, 3200.0, 64) if gpus > 8 else None
    return Sku("", spec.gpu, max(1, min(gpus, 8)), spec.memory_gb, fabric=fabric)


def _size(row: Mapping[str, str], regime: str, at_once: bool) -> float:
    """Requests in flight together; if all come at once, their number."""
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


def _objectives_s(row: Mapping[str, str], model: ModelShape, published: str) -> tuple[float, float]:
    """The objectives on the time between tokens and on the first token for which the rate of an MLPerf row
    was chosen; inf for other rows."""
    if published != "open_loop_slo":
        return np.inf, np.inf
    chosen = load_table_constants().chosen
    interactive = "interactive" in row.get("notes", "").lower()
    between = chosen.interactive_itl_p99_s if interactive else chosen.server_itl_p99_s
    first = chosen.interactive_ttft_p99_s if interactive else chosen.server_ttft_p99_s
    return between.get(model.name, np.inf), first.get(model.name, np.inf)


def options_of(row: Mapping[str, str], ranks: int) -> LaunchOptions:
    """Options in the notes: vLLM counts sequences per data-parallel rank, SGLang over all ``ranks``."""
    notes = (row.get("notes") or "").lower()
    sequences = _option_value(A_RANK, notes) or _option_value(IN_ALL, notes) / ranks
    return LaunchOptions(_option_value(MEMORY, notes), sequences, max(_option_value(BEAMS, notes), 1.0))


def _option_value(option: re.Pattern[str], notes: str) -> float:
    found = option.search(notes)
    return float(found.group(1)) if found else 0.0
