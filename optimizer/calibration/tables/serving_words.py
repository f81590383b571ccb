"""Meanings of words in published serving rows: number formats, regimes, engines, and defaults for missing
sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker.catalogue import named_format
from broker.domain.workloads.model_shape import Attention, GpuSpec, ModelShape
from optimizer.calibration.table_constants import BenchmarkClient, EarlyReleases, load_table_constants
from optimizer.calibration.tables.cells import NOTHING, Unreadable, number
from optimizer.performance.constants.serving import engine_on

REGIMES = {
    "offline_max": "offline",
    "offline_burst": "closed",
    "closed_loop": "closed",
    "open_loop": "open",
    "open_loop_slo": "open",
    "single_stream": "single",
    "single_stream_ttft": "single",
    "static_batch": "static",
    "decode_pool": "decode",
}
OTHER_REGIMES = (
    ("decode", "decode_pool"),
    ("offline", "offline_max"),
    ("throughput", "offline_max"),
    ("burst", "offline_burst"),
    ("server", "open_loop_slo"),
    ("interactive", "open_loop_slo"),
    ("poisson", "open_loop"),
    ("open", "open_loop"),
    ("closed", "closed_loop"),
    ("concurren", "closed_loop"),
    ("single", "single_stream"),
    ("static", "static_batch"),
    ("batch", "static_batch"),
)
FORMAT_WORDS = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (r"(?<![\d.])[12](\.\d+)?[- ]?bit|int[12](?!\d)|q[12]_|(?<![\d.])[123]\.?\d*bpw", ""),
        ("mxfp4", "mxfp4"),
        ("fp4", "fp4"),
        ("w4a", "int4"),
        ("w8a16", "w8a16"),
        ("int8", "int8"),
        ("fp8", "fp8"),
        ("float8", "fp8"),
        ("e4m3", "fp8"),
        ("e5m2", "fp8"),
        ("w8a8", "int8"),
        ("q8", "w8a16"),
        (r"(?<![\d.])8[- ]?bit", "w8a16"),
        ("q6|int6", "int6"),
        (r"(?<![\d.])6bit", "int6"),
        ("q5|int5", "int5"),
        (r"(?<![\d.])5bit", "int5"),
        ("q3|int3", "int3"),
        (r"(?<![\d.])3bit", "int3"),
        ("int4", "int4"),
        ("awq", "int4"),
        ("gptq", "int4"),
        (r"(?<![\d.])4[- ]?bit", "int4"),
        ("nf4", "int4"),
        ("q4", "int4"),
        (r"^(?!.*bpw).*exl[23]|(?<![\d.])4\.?\d*bpw", "int4"),
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("fp16", "fp16"),
        ("float16", "fp16"),
        ("f16", "fp16"),
        ("half", "fp16"),
    )
)
"""An empty meaning: so few bits that nothing was measured."""
FORMATS = ("bf16", "fp16", "fp8", "fp4", "mxfp4", "int8", "w8a16", "int6", "int5", "int4", "int3")
AT_ONCE, DECODE_POOL = "offline_burst", "decode_pool"
NARROW = frozenset({"fp4", "fp8", "mxfp4"})
MXFP4 = "mxfp4"
LOCAL, INTEGERS = (
    frozenset({"local", "llama_cpp"}),
    frozenset({"int3", "int4", "int5", "int6", "int8", "w8a16"}),
)
BENCHMARKS = ("mlperf",)
DATA_SETS = (
    ("openorca", "dialogue"),
    ("open-orca", "dialogue"),
    ("sharegpt", "chats"),
    ("wildchat", "chats"),
    ("lmsys-chat", "chats"),
)
DRAWN, RANGED, CHATS = "drawn", "ranged", "chats"
FEW_TOKENS = 16.0
RANGED_MEAN, WHOLE = 0.9, 1e-6
NATIVE_FORMATS = (
    ("gpt-oss", MXFP4),
    ("deepseek-v3", "fp8"),
    ("deepseek-r1", "fp8"),
    ("kimi-k2", "fp8"),
    ("minimax-m", "fp8"),
)
CACHE_WORDS = {"fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5, "fp16": 2.0, "bf16": 2.0}


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of dense weights and of experts, with the assumptions made."""

    dense: str
    experts: str
    note: str = ""


def formats_of(row: Mapping[str, str], model: ModelShape, spec: GpuSpec) -> Formats:
    """The formats given in the row, else in its model's name, else those in which the model was published.

    MXFP4 checkpoints store everything but their experts in 16 bits. Tables that call gpt-oss FP4 or FP8 mean
    that checkpoint, the only one there is. Raises Unreadable.
    """
    wide = "bf16" if spec.bf16_tflops else "fp16"
    told, note = (row.get("weight_precision") or "").strip(), ""
    dense = format_named(told)
    if told and dense is None:
        raise Unreadable(f"weight_precision {told!r} is not known; known are {', '.join(FORMATS)}")
    if dense is None:
        named = row.get("model", "")
        dense = format_named(named) or named_format(named) or _native(model.name.lower(), wide)
        note = f"weight precision not given, {dense} assumed"
    experts = format_named(row.get("moe_precision") or "")
    if dense in NARROW and _native(model.name.lower(), wide) == MXFP4:
        dense, experts = MXFP4, None
    narrow = "fp4" if experts == MXFP4 else experts
    if dense == MXFP4:
        return Formats(wide, narrow or "fp4", note) if model.is_moe else Formats("fp4", "fp4", note)
    return Formats(dense, narrow or dense, note)


def format_named(text: str) -> str | None:
    """The number format that a text names, None if it names none."""
    return next((name for pattern, name in FORMAT_WORDS if pattern.search(text.lower())), None) or None


def _native(model: str, wide: str) -> str:
    return next((name for word, name in NATIVE_FORMATS if model.startswith(word)), wide)


def cache_bytes(row: Mapping[str, str], dense: str, engine: str, spec: GpuSpec) -> float:
    """Bytes per cached number, as given; else 2, but 1 for 8- and 4-bit checkpoints on Blackwell and in
    TensorRT-LLM."""
    told = format_named(row.get("kv_precision") or "")
    given = CACHE_WORDS.get(told or "")
    if given is not None:
        return given
    small = engine == "tensorrt_llm" or spec.arch.startswith("Blackwell")
    return 1.0 if small and dense in {"fp8", "fp4"} else 2.0


def products_of(dense: str, engine: str = "") -> str:
    """The format of matrix products: weights that are only stored in 4 or 8 bits are widened, except that
    local engines multiply quantized weights as 8-bit integers."""
    if engine in LOCAL and dense in INTEGERS:
        return "int8"
    return {"fp8": "fp8", "fp4": "fp4", "fp16": "fp16", "int8": "int8"}.get(dense, "bf16")


def benchmark_of(row: Mapping[str, str]) -> str:
    """The benchmark with known lengths by model, from the row's source; empty if there is none."""
    source = (row.get("source") or "").lower()
    return next((name for name in BENCHMARKS if name in source), "")


def regime_of(row: Mapping[str, str]) -> tuple[str, str]:
    """The published name of the regime, with a note if it was derived from other cells. Raises Unreadable."""
    text = (row.get("regime") or "").strip().lower()
    if text == "open_loop" and _all_at_once(row):
        return AT_ONCE, "arrivals without end: all requests at once"
    if text in REGIMES:
        return text, ""
    named = next((name for word, name in OTHER_REGIMES if word in text), None)
    if named is None and text:
        raise Unreadable(f"regime {text!r} is not one of {', '.join(REGIMES)}")
    if named is None:
        named = _told_by_load(row)
        return named, f"regime not given, {named} assumed"
    return named, ""


def _all_at_once(row: Mapping[str, str]) -> bool:
    """Whether arrivals have a number but no rate: benchmark tools then send all requests together."""
    unbound = (row.get("request_rate") or "").strip().lower() in {"inf", "infinity"}
    return unbound and bool(number(row, "num_requests"))


def _told_by_load(row: Mapping[str, str]) -> str:
    if (row.get("request_rate") or "").strip().lower() not in NOTHING:
        return "open_loop"
    size = number(row, "concurrency_or_batch")
    if size is None:
        return "offline_max"
    return "closed_loop" if size > 1.0 else "single_stream"


def engine_of(row: Mapping[str, str], spec: GpuSpec) -> str:
    """The class of the row's engine and release; vLLM on AMD GPUs is a class of its own."""
    return engine_on(spec, load_table_constants().engine_of(*_own_release(row), row.get("regime") or ""))


def release_of(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Source, engine and release of a row; empty if not given."""
    return row.get("source") or "", row.get("engine") or "", row.get("engine_version") or ""


def _own_release(row: Mapping[str, str]) -> tuple[str, str, str]:
    """The same without the release for tables of disaggregated deployments, which give the orchestrator's
    release."""
    source, engine, release = release_of(row)
    return source, engine, "" if (row.get("regime") or "") == DECODE_POOL else release


def early_release(row: Mapping[str, str], model: ModelShape) -> EarlyReleases | None:
    """The extra time of the row's release if it was among the first with such a model's kernels."""
    if model.attention is not Attention.MLA:
        return None
    return load_table_constants().early_latent(*_own_release(row))


def client_of(row: Mapping[str, str]) -> BenchmarkClient:
    """The benchmark client of a row: by its source, else by the data set that it names, else by its lengths.

    Means that are not whole numbers were drawn at random and are taken as means; whole numbers that nobody
    would request are means of a data set.
    """
    constants = load_table_constants()
    found = constants.client_of(row.get("source") or "")
    lengths = [number(row, name) or 0.0 for name in ("isl", "osl")]
    drawn = any(length % 1.0 for length in lengths)
    if found is constants.clients[constants.default_client]:
        text = " ".join(row.get(name) or "" for name in ("source_detail", "notes")).lower()
        named = next((name for word, name in DATA_SETS if word in text), None)
        if named is None and drawn:
            named = RANGED if all(_is_ranged(length) for length in lengths) else DRAWN
        found = _as_chats(found, lengths) if named is None else constants.clients[named]
    return replace(found, mean_share=1.0) if drawn else found


def _as_chats(found: BenchmarkClient, lengths: Sequence[float]) -> BenchmarkClient:
    """The same, with lengths that vary as in chats if the mean length is one that nobody would request."""
    chats = load_table_constants().clients[CHATS]
    odd_prompts, odd_answers = (_is_odd(length) for length in lengths)
    if odd_prompts:
        found = replace(found, input_cv=chats.input_cv)
    if odd_answers:
        found = replace(found, output_cv=chats.output_cv, longest_output=chats.longest_output)
    return found


def _is_odd(tokens: float) -> bool:
    """Whether a length of more than a few tokens is a multiple of neither 5 nor 8."""
    return tokens > FEW_TOKENS and bool(tokens % 5.0) and bool(tokens % 8.0)


def _is_ranged(tokens: float) -> bool:
    """Whether a mean length is that of draws from the last fifth below a round length, as in InferenceMAX."""
    nominal = tokens / RANGED_MEAN
    return tokens > 0.0 and abs(nominal - round(nominal)) < WHOLE
