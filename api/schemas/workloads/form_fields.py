"""The fields of a workloads document that a form shows or a terminal asks for, by kind of workload.

The form edits the document: what is not listed here stays in it as it was written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from api.schemas.base.document import pointer_of
from broker.domain.market.offer import Tier
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.workload import Precision, ServingEngine, TrainingStack, WorkloadKind
from broker.domain.workloads.traffic import TrafficShape
from broker.domain.workloads.training_method import (
    AdapterKind,
    BaseFormat,
    Objective,
    Offload,
    OptimizerName,
    WeightMode,
)


class Entry(StrEnum):
    """How a field is written. ``list``: words with commas between them; ``time``: also in words."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    CHOICE = "choice"
    LIST = "list"


class Unit(StrEnum):
    """What a number counts, as it is said after it."""

    NONE = ""
    TOKENS = "tokens"
    REQUESTS = "requests"
    REQUESTS_PER_S = "requests/s"
    GPUS = "GPUs"
    USD = "USD"
    DAYS = "days"
    MINUTES = "minutes"
    MS = "ms"
    SHARE = "%"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field at ``path`` below its workload, or in the document. ``hint``: an example, or the default.

    ``folded``: it is shown with the further fields.
    """

    path: str
    label: str
    entry: Entry = Entry.TEXT
    hint: str = ""
    choices: tuple[str, ...] = ()
    needed: bool = False
    folded: bool = False
    unit: Unit = Unit.NONE

    @property
    def is_start(self) -> bool:
        """Whether it is the start of the horizon, which other times may count from."""
        return self.path == "horizon/start"

    @property
    def steps(self) -> tuple[str, ...]:
        """The names on the way to it."""
        return tuple(self.path.split("/"))


LARGE = 1e6
SHORT_FORMS: Mapping[str, str] = {
    "policy/gpus": "only",
    "gpus": "max",
    "budget": "usd",
    "starts": "at",
    "adapter": "kind",
    "optimizer": "name",
}
"""Objects for which one value may stand, and the field that the value is."""


def short_field(way: Sequence[str | int]) -> str | None:
    """The field whose value may stand for the object at the end of a way; None: no value may."""
    names = [str(step) for step in way[-2:]]
    return SHORT_FORMS.get("/".join(names)) or SHORT_FORMS.get("".join(names[-1:]))


def _more(path: str, label: str, entry: Entry = Entry.TEXT, hint: str = "", *choices: str) -> FormField:
    return FormField(path, label, entry, hint, choices, folded=True)


def _number(
    path: str, label: str, unit: Unit, hint: str = "", *, needed: bool = False, folded: bool = False
) -> FormField:
    return FormField(path, label, Entry.NUMBER, hint, needed=needed, folded=folded, unit=unit)


NAME = FormField("name", "Name", hint="finetune-8b", needed=True)
MODEL = FormField("model", "Model", hint="Llama-3.1-8B", needed=True)
WHERE = FormField("policy/geography", "Where", Entry.LIST, "anywhere; or eu, us, nordics …")
DEADLINE = FormField("deadline", "Done by", Entry.TIME, "+4d from the start, or next friday", needed=True)
INPUT_TOKENS = _number("input_tokens", "Input tokens each", Unit.TOKENS, "1200", needed=True)
OUTPUT_TOKENS = _number("output_tokens", "Output tokens each", Unit.TOKENS, "250", needed=True)
GPUS = FormField("policy/gpus/only", "Which GPUs", Entry.LIST, "any; or H100, L40S, RTX-PRO-6000*")
RULES = (
    _more("policy/gpus/exclude", "Without these GPUs", Entry.LIST, "none"),
    _number("policy/gpus/min_memory_gb", "GB of each GPU at least", Unit.NONE, "any", folded=True),
    _more("policy/gpus/vendor", "Vendors of GPUs", Entry.LIST, f"nvidia; or {', '.join(GpuVendor)}"),
    _more(
        "policy/gpus/classes", "Classes of GPUs", Entry.LIST, f"without consumer; or {', '.join(GpuClass)}"
    ),
    _more("policy/countries", "Countries", Entry.LIST, "any; or DE, NO"),
    _more("policy/providers/only", "Only these providers", Entry.LIST, "all; or lambda, aws"),
    _more("policy/providers/exclude", "Without these providers", Entry.LIST, "none"),
    _more("policy/tiers", "Tiers", Entry.LIST, f"any of {', '.join(Tier)}"),
    _more("policy/hosts", "Hosts", Entry.LIST, "datacenter; or datacenter, community"),
    _more("policy/compliance", "Compliance", Entry.LIST, "none; or soc2, iso27001"),
    _number("confidence", "Chance to meet its aim", Unit.SHARE, "the document's", folded=True),
    _number("unplaced_usd", "Cost of leaving it out, USD", Unit.USD, "it must be placed", folded=True),
)
PRECISIONS = _more("precisions", "Number formats", Entry.LIST, "as published; or bf16, fp8")
ENGINE = _more("engine", "Engine", Entry.CHOICE, ServingEngine.VLLM, *ServingEngine)
PREFIX = _number(
    "prefix_cache_hit_share", "Share of prompts in the prefix cache", Unit.SHARE, "0", folded=True
)
REPEAT = (
    _more("repeat/every", "Again every", hint="once; or 1d, 1w"),
    _more("repeat/times", "How many times", Entry.NUMBER, "as often as the horizon has room"),
)
EARLIEST = _more("earliest_start", "Not before", Entry.TIME, "the start of the horizon")

DOCUMENT_FIELDS = (
    FormField("team", "Team", needed=True),
    FormField("horizon/start", "Plan from", Entry.TIME, "now, tomorrow, next monday, 7 Dec", needed=True),
    _number("horizon/days", "For days", Unit.DAYS, "14", needed=True),
    _number("budget/usd", "Budget, USD", Unit.USD, "no limit"),
    _number("budget/confidence", "Chance to stay within it", Unit.SHARE, "of what is held", folded=True),
    _number("confidence", "Chance to meet each aim", Unit.SHARE, "0.8; 0.5 plans by medians", folded=True),
    _more("policy/mix_sandbox", "Sandbox and real sellers together", Entry.CHOICE, "false", "false", "true"),
)
WORKLOAD_FIELDS: Mapping[WorkloadKind, tuple[FormField, ...]] = {
    WorkloadKind.TRAINING: (
        NAME,
        MODEL,
        _number("tokens", "Tokens to train on", Unit.TOKENS, "500M, 2e9", needed=True),
        DEADLINE,
        _number("gpus/max", "GPUs at most", Unit.GPUS, "no limit"),
        WHERE,
        GPUS,
        _number("sequence_length", "Sequence length", Unit.TOKENS, "8192", needed=True, folded=True),
        _number("global_batch_tokens", "Tokens a step", Unit.TOKENS, "1e6", needed=True, folded=True),
        _more("precision", "Number format", Entry.CHOICE, "bf16", *(p for p in Precision if p != "int4")),
        _more("software", "Software", Entry.CHOICE, "tuned, or what the method needs", *TrainingStack),
        _more("method", "Learns from", Entry.CHOICE, Objective.PRETRAIN, *Objective),
        _more("teacher", "Teacher, of a distillation", hint="none; or Llama-3.1-70B"),
        _more("adapter/kind", "Adapters", Entry.CHOICE, "none: all weights are trained", *AdapterKind),
        _more("adapter/rank", "Rank of the adapters", Entry.NUMBER, "16"),
        _more(
            "adapter/targets", "Matrices with adapters", Entry.LIST, "all; or attention, or q_proj, v_proj"
        ),
        _more(
            "adapter/base", "Format of the frozen weights", Entry.CHOICE, "bf16; int4 is QLoRA", *BaseFormat
        ),
        _more("optimizer/name", "Optimizer", Entry.CHOICE, OptimizerName.ADAMW, *OptimizerName),
        _more("optimizer/offload", "In host memory", Entry.CHOICE, Offload.NONE, *Offload),
        _more("weights", "Master weights", Entry.CHOICE, WeightMode.MIXED, *WeightMode),
        _more("offload_activations", "Activations in host memory", Entry.CHOICE, "false", "false", "true"),
        _more("packed", "Packed sequences", Entry.CHOICE, "true", "true", "false"),
        _number("mean_tokens", "Mean length where not packed", Unit.TOKENS, "packed", folded=True),
        _number("gpus/min", "GPUs at least", Unit.GPUS, "1", folded=True),
        EARLIEST,
        *REPEAT,
        _number(
            "late_usd_per_hour", "Cost of an hour late, USD", Unit.USD, "the deadline is firm", folded=True
        ),
        _number("headroom", "Share of further work", Unit.SHARE, "0", folded=True),
        _number(
            "checkpoint/every_minutes",
            "Minutes between checkpoints",
            Unit.MINUTES,
            "the best interval",
            folded=True,
        ),
        _more("interruptible", "May be interrupted (spot)", Entry.CHOICE, "false", "false", "true"),
        *RULES,
    ),
    WorkloadKind.SERVING: (
        NAME,
        MODEL,
        _number("traffic/peak_requests_per_s", "Requests per second at the peak", Unit.REQUESTS_PER_S, "4"),
        _number("traffic/input_tokens", INPUT_TOKENS.label, Unit.TOKENS, INPUT_TOKENS.hint),
        _number("traffic/output_tokens", OUTPUT_TOKENS.label, Unit.TOKENS, OUTPUT_TOKENS.hint),
        _number("slo/ttft_p95_ms", "First token within ms (p95)", Unit.MS, "1500", needed=True),
        _number("slo/itl_p95_ms", "Each next token within ms (p95)", Unit.MS, "80", needed=True),
        WHERE,
        GPUS,
        _more("traffic/shape", "Traffic over the day", Entry.CHOICE, TrafficShape.FLAT, *TrafficShape),
        _number("traffic/trough_share", "Least traffic as a share of the peak", Unit.SHARE, "1", folded=True),
        _more("traffic/peak_hour_utc", "Hour of the peak, UTC", Entry.NUMBER, "0"),
        _more("traffic/peak_hour", "Or hour of the peak in the time zone", Entry.NUMBER, "9"),
        _more("traffic/time_zone", "Time zone", hint="UTC; or Europe/Berlin"),
        _number("traffic/uncertainty/level", "Uncertainty of its level", Unit.SHARE, "0", folded=True),
        _number("traffic/uncertainty/growth", "Uncertainty of a week's growth", Unit.SHARE, "0", folded=True),
        _more("starts/after", "Starts after the run", Entry.CHOICE, "none"),
        _more("starts/at", "Starts not before", Entry.TIME, "the start of the horizon"),
        _more("ends", "Ends", Entry.TIME, "with the horizon"),
        _more("min_replicas", "Replicas held without requests", Entry.NUMBER, "0"),
        _more("redundancy/zones", "In places", Entry.NUMBER, "1"),
        _more("redundancy/spare_replicas", "Spare replicas", Entry.NUMBER, "0"),
        PRECISIONS,
        ENGINE,
        PREFIX,
        *RULES,
    ),
    WorkloadKind.BATCH: (
        NAME,
        MODEL,
        _number("requests", "Requests in all", Unit.REQUESTS, "500k, 1e6", needed=True),
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        DEADLINE,
        WHERE,
        GPUS,
        EARLIEST,
        *REPEAT,
        _more("parts", "In parts at most", Entry.NUMBER, "any; 1 keeps it whole"),
        _more("interruptible", "May be interrupted (spot)", Entry.CHOICE, "true", "true", "false"),
        _number("chunk_minutes", "Minutes lost by an interruption", Unit.MINUTES, "10", folded=True),
        PRECISIONS,
        ENGINE,
        PREFIX,
        *RULES,
    ),
}
NEW_WORKLOADS: Mapping[WorkloadKind, Mapping[str, Any]] = {
    WorkloadKind.TRAINING: {
        "name": "training",
        "kind": "training",
        "model": "Llama-3.1-8B",
        "tokens": "2e9",
        "sequence_length": 8192,
        "global_batch_tokens": "1e6",
        "deadline": "+7d",
    },
    WorkloadKind.SERVING: {
        "name": "service",
        "kind": "serving",
        "model": "Llama-3.1-8B",
        "traffic": {"peak_requests_per_s": 4, "input_tokens": 1200, "output_tokens": 250},
        "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 80},
    },
    WorkloadKind.BATCH: {
        "name": "batch",
        "kind": "batch",
        "model": "Llama-3.1-8B",
        "requests": "1e6",
        "input_tokens": 1000,
        "output_tokens": 200,
        "deadline": "+7d",
    },
}
"""What a workload that is added begins with."""


def value_at(holder: Any, steps: Sequence[str]) -> Any:
    """The value of a field, also where one value stands for its object; None if it is not there."""
    value = holder
    for index, step in enumerate(steps):
        if isinstance(value, dict):
            value = value.get(step)
        elif value is not None and short_field(steps[:index]) == step:
            return value
        else:
            return None
    return value


def shown(value: Any) -> str:
    """A value as a form shows it; lists with commas. What has another form is not shown."""
    if isinstance(value, list):
        plain = all(isinstance(one, str) and "," not in one for one in value)
        return ", ".join(value) if plain else ""
    if value is None or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return figure(value) if isinstance(value, int | float) else str(value)


def figure(value: float) -> str:
    """A number as people write it: ``2e9``, ``12000``, ``0.35``; one beyond every float as ``inf``."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= LARGE:
        mantissa, _, exponent = f"{value:.6e}".partition("e")
        written = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        if float(written) == value:
            return written
    return str(int(value)) if float(value).is_integer() else str(value)


def kind_of_workload(workload: Any) -> WorkloadKind | None:
    """The kind that a workload of a document names; None for another word."""
    told = workload.get("kind") if isinstance(workload, dict) else None
    return WorkloadKind(told) if told in set(WorkloadKind) else None


def beyond(workload: Mapping[str, Any], fields: Sequence[FormField]) -> tuple[str, ...]:
    """Fields of a workload that no field of the form shows, as paths with dots."""
    known = {one.path for one in fields if shown(value_at(workload, one.steps))} | {"kind"}
    return tuple(".".join(path) for path in _leaves(workload, ()) if not _is_shown(path, known))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    elif value not in (None, []):
        yield path


def _is_shown(path: tuple[str, ...], known: set[str]) -> bool:
    written = "/".join(path)
    return written in known or f"{written}/{short_field(path)}" in known


def pointer_to(field: FormField, workload: int | None) -> str:
    """The JSON pointer of a field of a workload, or of the document."""
    return pointer_of(*(() if workload is None else ("workloads", workload)), *field.steps)
