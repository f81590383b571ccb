"""Words of a row that the prediction does not know: those that would change it refuse the row, all others are
named in its note.

Columns that state how something was run refuse an unknown word. Free text (``notes``, ``source``) describes
published tables and refuses nothing; a method that it names is noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from broker.catalogue import named_format
from broker.domain.basics.left_out import LeftOut
from broker.models.weight_formats import PLANNED
from optimizer.calibration.table_constants import load_table_constants
from optimizer.calibration.tables.cells import NOTHING, Unreadable
from optimizer.calibration.tables.serving_words import FORMATS, format_named
from optimizer.calibration.tables.training_methods import COLUMNS, OFF, is_usual
from optimizer.performance.training.layouts import RECOMPUTE

KINDS = ("training", "serving")
HOW_COLUMNS = ("zero", "zero_fsdp", "recompute", "schedule")
PRODUCTS = re.compile(
    r"(bf|fp|tf|int|mxfp|nvfp)\d+|bfloat16|float16|float8|half|mixed|e4m3|e5m2|hybrid|amp|16-?bit",
    re.IGNORECASE,
)
FEW_BITS = re.compile(r"q-?lora|nf4|int4|int-?[1-3]|(?<!\d)[2-8][- ]?bit|awq|gptq|bnb|uint", re.IGNORECASE)
OTHER_METHODS = re.compile(
    r"\b(q-?lora|dora|dpo|grpo|ppo|orpo|kto|rlhf|rloo|distill(ation|ed)?|(8|4)-?bit (adamw?|optimi[sz]er)|"
    r"adamw?8bit|adafactor|(cpu|nvme|optimi[sz]er|parameter|zero)[- ]?offload\w*|offload(ed|ing)?)\b",
    re.IGNORECASE,
)
EAGER = re.compile(r"enforce[-_ ]eager|\beager mode|(without|no) cuda[-_ ]?graphs?", re.IGNORECASE)
OTHER_ENGINES = ("atom", "habana", "optimum", "deepspeed", "petals", "flexgen")
"""Engines of published tables that have no class of their own and are predicted as the default one."""
ON_REFUSES: Mapping[str, str] = {
    "enforce_eager": "runs without CUDA graphs are not predicted",
    "eager": "runs without CUDA graphs are not predicted",
    "disable_cuda_graph": "runs without CUDA graphs are not predicted",
    "speculative": "speculative decoding is not predicted for rows; a workload has the field speculation",
    "draft": "speculative decoding is not predicted for rows; a workload has the field speculation",
    "num_speculative_tokens": "speculative decoding is not predicted for rows; a workload has speculation",
    "quantization": "write the format of the weights in the column weight_precision",
}
OFF_REFUSES = frozenset({"cuda_graph", "cuda_graphs", "use_cuda_graph"})
KNOWN = frozenset({
    "id", "kind", "source", "source_detail", "quality", "usable_step", "status", "model",
    "model_raw", "arch", "workload", "params_b", "active_params_b", "layers", "hidden", "heads",
    "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "vocab", "tied_embeddings", "experts",
    "topk", "moe_ffn", "seq_len", "global_batch", "micro_batch", "grad_accum", "gpu", "gpu_mem_gb",
    "gpus", "gpus_total", "gpus_per_node", "intra_node_gbps", "inter_node_gbps_per_gpu", "fabric",
    "virt", "precision", "tp", "pp", "dp", "cp", "ep", "interleave", "schedule", "zero",
    "zero_fsdp", "tp_mode", "tp_overlap", "recompute", "framework", "date", "flops_convention",
    "step_basis", "engine", "engine_version", "weight_precision", "moe_precision", "kv_precision",
    "isl", "osl", "concurrency_or_batch", "request_rate", "num_requests", "regime",
    "max_throughput", "notes", "method", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu",
    "mfu", "hfu", "mfu_reported", "samples_per_s", "gpu_hours", "tokens_b", "minutes", "mem_gib",
    "mem_gb", "output_tokens_per_s_total", "output_tokens_per_s_per_gpu", "requests_per_s",
})  # fmt: skip
"""Columns that are read, that describe a row, or that were measured."""
MEASURED = re.compile(r"(ttft|tpot|e2e|itl)_ms_\w+|pred_\w+")


def require_predictable(row: Mapping[str, str], *, serving: bool) -> None:
    """Raises Unreadable for a word that would change the prediction and that it does not know."""
    for column, cell in row.items():
        value = (cell or "").strip()
        if not column or value.lower() in NOTHING:
            continue
        reason = _reason(column.strip().lower(), value, row, serving=serving)
        if reason is not None:
            raise Unreadable(f"{column} {value[:60]!r}: {reason}")


def _reason(column: str, value: str, row: Mapping[str, str], *, serving: bool) -> str | None:
    """Why a cell cannot be predicted; None if it can."""
    word, is_on = value.lower(), value.lower() not in OFF
    if column == "kind" and word not in KINDS:
        return f"known are {' and '.join(KINDS)}"
    if column in HOW_COLUMNS and "offload" in word:
        return "write optimizer or all in the column offload"
    if is_on and column in ON_REFUSES:
        is_told = column == "quantization" and bool((row.get("weight_precision") or "").strip())
        return None if is_told else ON_REFUSES[column]
    if is_on and "offload" in column and (serving or column not in COLUMNS):
        return "not predicted; write optimizer or all in the column offload of a training row"
    if not is_on and column in OFF_REFUSES:
        return ON_REFUSES["eager"]
    if column == "model":
        return _format_reason(value, row, serving=serving)
    return _serving_reason(column, word, row) if serving else _training_reason(column, word, row)


def _format_reason(model: str, row: Mapping[str, str], *, serving: bool) -> str | None:
    """Why the number format that a model's name states cannot be predicted; None if it can."""
    stated = named_format(model)
    if stated is None or not serving or stated in PLANNED:
        return None
    if (row.get("weight_precision") or "").strip() or (format_named(model) or stated) in FORMATS:
        return None
    return f"weights in {stated}; known are {', '.join(FORMATS)}, in the column weight_precision"


def _training_reason(column: str, word: str, row: Mapping[str, str]) -> str | None:
    if column == "precision" and (FEW_BITS.search(word) or not PRODUCTS.search(word)):
        return "no format of products; known are BF16, FP16, FP8, MXFP8, FP4, NVFP4, MXFP4"
    if column == "framework" and OTHER_METHODS.search(word) and is_usual(row):
        return "a method that no column states: write it in method, adapter, optimizer or offload"
    return None


def _serving_reason(column: str, word: str, row: Mapping[str, str]) -> str | None:
    if column in ("kv_precision", "moe_precision") and word != "auto" and format_named(word) is None:
        return f"no known format; known are {', '.join(FORMATS)}"
    if column == "engine" and EAGER.search(word):
        return ON_REFUSES["eager"]
    if column == "engine" and not _is_known_engine(row) and not _is_other_engine(word):
        known = ", ".join((*load_table_constants().engine_by_name, *OTHER_ENGINES))
        return f"an engine that is not predicted; known are {known}"
    return None


def _is_known_engine(row: Mapping[str, str]) -> bool:
    text = f"{row.get('source') or ''} {row.get('engine') or ''}".lower()
    return any(word in text for word in load_table_constants().engine_by_name)


def _is_other_engine(word: str) -> bool:
    return any(name in word for name in OTHER_ENGINES)


def left_out_of(row: Mapping[str, str], *, serving: bool) -> Iterator[LeftOut]:
    """What of a row is not used: unknown columns, software without a class, methods in notes."""
    constants = load_table_constants()
    for column, cell in row.items():
        value = (cell or "").strip().lower()
        name = (column or "").strip().lower()
        if not column or value in NOTHING or name in KNOWN or MEASURED.fullmatch(name):
            continue
        if serving or name not in COLUMNS:
            yield LeftOut(column, "a column that is not read")
    rebuilt = (row.get("recompute") or "").strip().split("(")[0].lower()
    if not serving and rebuilt not in RECOMPUTE and rebuilt not in NOTHING:
        yield LeftOut(f"recompute {rebuilt}", f"known are {', '.join(RECOMPUTE)}; every kind is tried")
    engine, framework = (row.get("engine") or "").strip(), (row.get("framework") or "").strip()
    if serving and engine and not _is_known_engine(row):
        yield LeftOut(f"engine {engine}", f"predicted as {constants.default_engine}")
    if (
        not serving
        and framework
        and not any(word in framework.lower() for word in constants.software_by_framework)
    ):
        yield LeftOut(f"framework {framework[:60]}", f"predicted as {constants.default_software}")
    for pattern in (EAGER,) if serving else (OTHER_METHODS,):
        found = pattern.search(row.get("notes") or "")
        if found is not None and (serving or is_usual(row)):
            yield LeftOut(f"notes: {found[0]}", "not predicted")
