"""A workloads document without its wrong fields, so that all other fields can be checked in the same round.

A wrong field is left out; where a document needs it, a stand-in takes its place. What the checks say of
stand-ins, and of fields that are compared with them, is not a problem of the document.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from api.schemas.base.document import pointer_of
from api.schemas.base.validation import without_tags
from broker.catalogue import load_models
from broker.domain.basics.errors import FieldProblem
from broker.domain.workloads.document_fields import LONG_AGO
from broker.domain.workloads.model_shape import ModelShape

MOST_ROUNDS = 12
"""A wrong field inside a wrong field is found a round later; documents are at most that deep."""
COMPARED = (
    frozenset({"input_tokens", "output_tokens", "mix"}),
    frozenset(
        {"shape", "hourly", "peak_requests_per_s", "peak_hour", "peak_hour_utc", "time_zone", "bursts"}
    ),
    frozenset({"tokens", "global_batch_tokens", "sequence_length"}),
    frozenset({"min", "max"}),
    frozenset({"after", "at", "delay_usd_per_hour"}),
    frozenset({"earliest_start", "deadline", "repeat"}),
    frozenset({"starts", "ends"}),
    frozenset({"gpu", "gpus", "tokens_per_s", "requests_per_s"}),
    frozenset({"countries", "geography"}),
)
"""Fields of one object that are checked against each other."""
OF_HORIZON = frozenset({"deadline", "earliest_start", "starts", "at", "ends", "hourly", "times", "every"})
"""Fields that are checked against the horizon."""

_NAMES_RUN = re.compile(r"/workloads(/\d+(/(name|kind))?)?")
"""Without these nobody knows which runs there are."""


@cache
def unknown_model() -> ModelShape:
    """A model in place of one that is unknown: its context has no limit."""
    return replace(next(iter(load_models().values())), context=0)


@cache
def _workload() -> Mapping[str, Any]:
    return {
        "name": "x",
        "kind": "batch",
        "model": unknown_model(),
        "requests": 1,
        "input_tokens": 1,
        "output_tokens": 1,
        "deadline": LONG_AGO,
    }


@cache
def _stand_ins() -> Mapping[str, Any]:
    """A value for each field that some object needs."""
    return {
        **_workload(),
        "team": "x",
        "horizon": {"start": "x", "days": 1},
        "start": "x",
        "days": 1,
        "usd": 0,
        "workloads": [_workload()],
        "gpu": "x",
        "every_minutes": 1,
        "gb": 0,
        "provider": "x",
        "region": "x",
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


def is_sound(problem: FieldProblem, wrong: Collection[str]) -> bool:
    """Whether a problem of a document without the fields at ``wrong`` is one of the document too."""
    at = problem.pointer
    parent, _, name = at.rpartition("/")
    if any(_within(at, one) or _within(one, at) for one in wrong):
        return False
    if name in OF_HORIZON and any(_within(one, "/horizon") for one in wrong):
        return False
    if name == "after" and any(_NAMES_RUN.fullmatch(one) for one in wrong):
        return False
    rivals = [group for group in COMPARED if name in group]
    beside = [one[len(parent) + 1 :].split("/")[0] for one in wrong if _within(one, parent)]
    if any(other in group for group in rivals for other in beside):
        return False
    # A misspelt field is missing too.
    return problem.found != "nothing" or not beside


def _within(pointer: str, around: str) -> bool:
    return pointer == around or pointer.startswith(f"{around}/")


def mend(data: dict[str, Any], error: ValidationError) -> set[str]:
    """Takes out of ``data`` what has an ``error``, or puts a stand-in there. The pointers of both."""
    paths = {_path(details) for details in error.errors(include_url=False)}
    return {pointer for path in sorted(paths, reverse=True) for pointer in _repair(data, path)}


def _path(details: Mapping[str, Any]) -> tuple[str, ...]:
    location = without_tags(details["loc"])
    if details["type"].startswith("union_tag"):
        location = (*location, "kind")
    return tuple(str(token) for token in location)


def _repair(data: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    holder, at = list(_objects(data, path))[-1]
    name = path[len(at)] if len(path) > len(at) else ""
    if at == () and name == "workloads" and len(path) > 1 and isinstance(data.get(name), list):
        data[name][int(path[1])] = dict(_workload())  # no object: others keep their places
        return [pointer_of(*path[:2])]
    if name == "kind":
        kept: dict[str, Any] = {
            field: holder[field] for field in ("name", "model", "policy") if field in holder
        }
        changed = (holder.keys() | _workload().keys()) - kept.keys()
        holder.clear()
        holder.update({**_workload(), **kept})
        return [pointer_of(*at, field) for field in changed]
    if name in holder:
        del holder[name]
    elif name in _stand_ins():
        holder[name] = copy.deepcopy(_stand_ins()[name])
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
