"""A workloads document without its wrong fields, so that all other fields can be checked in the same round.

A wrong field is left out; where a document needs it, a stand-in takes its place. What the checks say of
stand-ins, and of fields that are compared with them, is not a problem of the document.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from api.schemas.base.document import Document, pointer_of
from api.schemas.base.validation import without_tags
from api.schemas.workloads.workload_forms import MOST_DAYS, WorkloadsForm
from broker.domain.basics.errors import FieldProblem

MOST_ROUNDS = 12
"""A wrong field inside a wrong field is found a round later; documents are at most that deep."""
UNREADABLE = "?"
"""Neither a time nor a model nor a GPU, so that nothing is derived from it."""
WORKLOAD: Mapping[str, Any] = {
    "name": "x",
    "kind": "batch",
    "model": UNREADABLE,
    "requests": 1,
    "input_tokens": 1,
    "output_tokens": 1,
    "deadline": UNREADABLE,
}
STAND_INS: Mapping[str, Any] = {
    **WORKLOAD,
    "team": "x",
    "horizon": {"start": UNREADABLE, "days": MOST_DAYS},
    "start": UNREADABLE,
    "days": MOST_DAYS,
    "usd": 0,
    "workloads": [WORKLOAD],
    "gpu": UNREADABLE,
    "every_minutes": 1,
    "gb": 0,
    "provider": UNREADABLE,
    "region": UNREADABLE,
    "share": 1,
    "ttft_p95_ms": 1,
    "itl_p95_ms": 1,
    "drafted_tokens": 1,
    "acceptance": 0,
    "tokens": 1,
    "sequence_length": 1,
    "global_batch_tokens": 1,
    "traffic": {"peak_requests_per_s": 1, "input_tokens": 1, "output_tokens": 1},
    "slo": {"ttft_p95_ms": 1, "itl_p95_ms": 1},
}
"""A value for each field that some form needs."""
COMPARED = (
    frozenset({"input_tokens", "output_tokens", "mix"}),
    frozenset({"shape", "hourly", "peak_requests_per_s"}),
    frozenset({"tokens", "global_batch_tokens", "sequence_length"}),
    frozenset({"min", "max"}),
    frozenset({"after", "at", "delay_usd_per_hour"}),
    frozenset({"earliest_start", "deadline"}),
    frozenset({"gpu", "gpus", "tokens_per_s", "requests_per_s"}),
    frozenset({"countries", "geography"}),
)
"""Fields of one object that are checked against each other."""
OF_HORIZON = frozenset({"deadline", "earliest_start", "starts", "at", "hourly"})
"""Fields that are checked against the horizon."""

_NAMES_RUN = re.compile(r"/workloads(/\d+(/(name|kind))?)?")
"""Without these nobody knows which runs there are."""


@dataclass(frozen=True, slots=True)
class Mended:
    """A form that could be read, and the pointers of what was left out or replaced for it."""

    form: WorkloadsForm
    wrong: frozenset[str]

    def is_sound(self, problem: FieldProblem) -> bool:
        """Whether a problem of ``form`` is one of the document too."""
        at = problem.pointer
        parent, _, name = at.rpartition("/")
        if any(_within(at, wrong) or _within(wrong, at) for wrong in self.wrong):
            return False
        if name in OF_HORIZON and any(_within(wrong, "/horizon") for wrong in self.wrong):
            return False
        if name == "after" and any(_NAMES_RUN.fullmatch(wrong) for wrong in self.wrong):
            return False
        rivals = [group for group in COMPARED if name in group]
        beside = [wrong[len(parent) + 1 :].split("/")[0] for wrong in self.wrong if _within(wrong, parent)]
        if any(other in group for group in rivals for other in beside):
            return False
        # A misspelt field is missing too.
        return problem.found != "nothing" or not beside


def _within(pointer: str, around: str) -> bool:
    return pointer == around or pointer.startswith(f"{around}/")


def mend(document: Document, error: ValidationError) -> Mended | None:
    """``document``, which has ``error``, without its wrong fields; None where that is no document."""
    if not isinstance(document.data, dict) or not error.errors(include_url=False)[0]["loc"]:
        return None
    data, wrong = copy.deepcopy(document.data), set[str]()
    for _ in range(MOST_ROUNDS):
        for path in sorted({_path(details) for details in error.errors(include_url=False)}, reverse=True):
            wrong.update(_repair(data, path))
        try:
            return Mended(WorkloadsForm.model_validate(data), frozenset(wrong))
        except ValidationError as next_error:
            error = next_error
    return None


def _path(details: Mapping[str, Any]) -> tuple[str, ...]:
    location = without_tags(details["loc"])
    if details["type"].startswith("union_tag"):
        location = (*location, "kind")
    return tuple(str(token) for token in location)


def _repair(data: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Takes out what is wrong at ``path``, or puts a stand-in there. The pointers of stand-ins and gaps."""
    holder, at = list(_objects(data, path))[-1]
    name = path[len(at)] if len(path) > len(at) else ""
    if at == () and name == "workloads" and len(path) > 1 and isinstance(data.get(name), list):
        data[name][int(path[1])] = dict(WORKLOAD)  # no object: others keep their places
        return [pointer_of(*path[:2])]
    if name == "kind":
        kept: dict[str, Any] = {
            field: holder[field] for field in ("name", "model", "policy") if field in holder
        }
        changed = (holder.keys() | WORKLOAD.keys()) - kept.keys()
        holder.clear()
        holder.update({**WORKLOAD, **kept})
        return [pointer_of(*at, field) for field in changed]
    if name in holder:
        del holder[name]
    elif name in STAND_INS:
        holder[name] = copy.deepcopy(STAND_INS[name])
    return [pointer_of(*at, name)]


def _objects(data: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """The objects on the way to ``path``, outer ones first, each with its own path."""
    value: Any = data
    for depth, token in enumerate(path):
        if isinstance(value, dict):
            yield value, path[:depth]
            value = value.get(token)
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return
