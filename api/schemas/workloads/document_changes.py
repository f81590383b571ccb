"""Short changes of a workloads document, such as ``chat.traffic*=1.5``, as operations of JSON Patch.

``PATH=VALUE`` sets a field, ``PATH*=FACTOR`` multiplies a number or a list of numbers, ``PATH+=VALUE`` adds a
number, shifts a time by a span such as ``48h`` or ``-2d``, or appends to a list, and ``PATH=`` removes a
field. A path begins with the name of a workload, with ``*`` for all workloads that have the field, or with a
field of the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import jsonpatch

from api.schemas.base.document import describe, pointer_of, read_document
from api.schemas.base.times import format_time, parse_time
from broker.catalogue import load_models
from broker.domain.basics.errors import FieldProblem, InputError

EXPECTED = "PATH=VALUE, PATH*=FACTOR or PATH+=VALUE, such as chat.traffic*=1.5 or finetune.deadline+=48h"
_CHANGE = re.compile(r"(?P<path>[^=]*?)\s*(?P<verb>\*=|\+=|=)\s*(?P<value>.*)", re.DOTALL)
_SPAN = re.compile(r"(?P<sign>[+-]?)(?P<count>\d+(?:\.\d+)?)(?P<unit>[mhdw])", re.ASCII)
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_DEMAND = ("peak_requests_per_s", "hourly")

Operation = dict[str, Any]
Step = str | int


def operations_of(document: Mapping[str, Any], changes: Sequence[str], at: str = "") -> list[Operation]:
    """The operations that make ``changes`` to ``document``, a stored workloads document.

    Raises InputError; pointers of its problems begin with ``at``, and the index of a change follows.
    """
    found: list[Operation] = []
    problems: list[FieldProblem] = []
    for index, change in enumerate(changes):
        try:
            operations = list(_operations(document, change))
        except _Unclear as unclear:
            problems.append(FieldProblem(f"{at}/{index}", unclear.found, unclear.expected))
            continue
        document = jsonpatch.apply_patch(document, json.dumps(operations))  # a later change builds on it
        found += operations
    if problems:
        raise InputError("request", tuple(problems))
    return found


class _Unclear(Exception):
    """A change that has no meaning: what was found, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected


def _operations(document: Mapping[str, Any], change: str) -> Iterator[Operation]:
    parts = _CHANGE.fullmatch(change.strip())
    if parts is None or not parts["path"].strip():
        raise _Unclear(describe(change), EXPECTED)
    verb, text = parts["verb"], parts["value"].strip()
    targets = _targets(document, parts["path"].strip(), must_exist=verb != "=" or not text)
    for steps, old in targets:
        yield from _change_at(document, steps, old, verb, text)


def _change_at(
    document: Mapping[str, Any], steps: Sequence[Step], old: Any, verb: str, text: str
) -> Iterator[Operation]:
    path = pointer_of(*steps)
    if verb == "=" and not text:
        yield {"op": "remove", "path": path}
        return
    if verb == "=":
        yield from _missing_parents(document, steps)
        yield {"op": "add", "path": path, "value": _value(text)}
        if steps[0] == "workloads" and steps[2:] == ("name",):
            yield from _followers(document["workloads"], str(old), _value(text))
        if steps[0] == "workloads" and steps[-1] == "model":
            yield from _forget_published_format(document["workloads"][steps[1]], steps)
        return
    if verb == "*=":
        factor = _number(text, "a factor such as 1.5")
        for field, value in _scaled(old, factor, text):
            yield {"op": "replace", "path": path + field, "value": value}
        return
    yield {"op": "replace", "path": path, "value": _added(old, text)}


def _targets(
    document: Mapping[str, Any], path: str, *, must_exist: bool
) -> list[tuple[tuple[Step, ...], Any]]:
    """The places that a path names, each as steps with the value there (None: nothing)."""
    workloads: list[Mapping[str, Any]] = document["workloads"]
    names = sorted((str(row["name"]) for row in workloads), key=len, reverse=True)
    if path.startswith("*."):
        fields = tuple(path[2:].split("."))
        places: list[tuple[Step, ...]] = [("workloads", index, *fields) for index in range(len(workloads))]
        having = [(place, value) for place in places if (value := _at(document, place)) is not None]
        if not having:
            raise _Unclear(path, f"a field that some workload has: {', '.join(_fields_of(workloads))}")
        return having
    for name in names:
        if path.startswith(f"{name}."):
            index = next(i for i, row in enumerate(workloads) if row["name"] == name)
            fields = tuple(path[len(name) + 1 :].split("."))
            return [_existing(document, ("workloads", index, *fields), path, must_exist=must_exist)]
    fields = tuple(path.split("."))
    if fields[0] not in ("policy", "budget", "horizon"):
        raise _Unclear(
            path, f"a path that begins with policy, budget, horizon, * or a workload: {', '.join(names)}"
        )
    return [_existing(document, fields, path, must_exist=must_exist)]


def _existing(
    document: Mapping[str, Any], steps: tuple[Step, ...], path: str, *, must_exist: bool
) -> tuple[tuple[Step, ...], Any]:
    value = _at(document, steps)
    if value is None and must_exist:
        parent = _at(document, steps[:-1])
        fields = ", ".join(parent) if isinstance(parent, dict) else "nothing"
        raise _Unclear(f"no field {path}", f"a field that is there: {fields}")
    return steps, value


def _fields_of(workloads: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({field for row in workloads for field in row})


def _at(value: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _missing_parents(document: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[Operation]:
    """Adds the objects around a field that are not there yet: JSON Patch wants them."""
    for length in range(1, len(steps)):
        if _at(document, steps[:length]) is None:
            yield {"op": "add", "path": pointer_of(*steps[:length]), "value": {}}


def _forget_published_format(workload: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[Operation]:
    """Another model is served in the format in which it is published, if that was the rule for the old."""
    model = load_models().get(str(workload.get("model")))
    if model is not None and workload.get("precisions") == [model.published_precision]:
        yield {"op": "remove", "path": pointer_of(*steps[:-1], "precisions")}


def _followers(workloads: Sequence[Mapping[str, Any]], before: str, after: Any) -> Iterator[Operation]:
    """A service that starts after a workload starts after it under its new name."""
    for index, row in enumerate(workloads):
        if _at(row, ("starts", "after")) == before:
            yield {"op": "replace", "path": pointer_of("workloads", index, "starts", "after"), "value": after}


def _value(text: str) -> Any:
    try:
        return read_document(text, "change").data
    except InputError:
        raise _Unclear(
            describe(text), "a value as YAML writes it, such as 12, [bf16, fp8] or a text"
        ) from None


def _number(text: str, expected: str) -> float:
    value = _value(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unclear(describe(text), expected)
    return float(value)


def _scaled(old: Any, factor: float, text: str) -> Iterator[tuple[str, Any]]:
    """Fields below the place, with their values times ``factor``; the empty field is the place itself."""
    if isinstance(old, dict):
        bursts = enumerate(old.get("bursts") or ())
        rates = [
            *(((field,), old[field]) for field in _DEMAND if field in old),
            *((("bursts", at, "requests_per_s"), one["requests_per_s"]) for at, one in bursts),
        ]
        if not rates:
            raise _Unclear(f"*={text} on {describe(old)}", "a number, a list of numbers or traffic")
        for steps, rate in rates:
            yield pointer_of(*steps), _product(rate, factor)
        return
    yield "", _product(old, factor)


def _product(old: Any, factor: float) -> Any:
    if isinstance(old, list):
        return [_product(item, factor) for item in old]
    number = _value(old) if isinstance(old, str) else old
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _Unclear(f"a factor on {describe(old)}", "a factor on a number, a list of numbers or traffic")
    scaled = number * factor
    return round(scaled) if isinstance(old, int) else round(scaled, 9)


def _added(old: Any, text: str) -> Any:
    if isinstance(old, list):
        value = _value(text)
        return [*old, *(value if isinstance(value, list) else [value])]
    if isinstance(old, str):
        span = _SPAN.fullmatch(text)
        try:
            instant = parse_time(old)
        except ValueError:
            instant = None
        if span is not None and instant is not None:
            hours = float(span["count"]) * _HOURS[span["unit"]] * (-1 if span["sign"] == "-" else 1)
            return format_time(instant + timedelta(hours=hours))
        if instant is not None:
            raise _Unclear(describe(text), "a span such as 48h, -2d or 1w")
    number = _value(old) if isinstance(old, str) else old
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _Unclear(f"+= on {describe(old)}", "a number, a time or a list to add to")
    added = _number(text, "a number such as 8")
    return int(number + added) if isinstance(old, int) and added.is_integer() else number + added
