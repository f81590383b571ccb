"""The shortest workloads document of a request, for a person to change."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import yaml

from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import PlanRequest

MOST_WORKLOADS = 20
"""A longer document stays as it is: each field costs a reading of its workload."""
KEPT = frozenset({"team", "horizon", "workloads", "name", "kind", "model"})


def shortened(document: dict[str, Any], now: datetime) -> dict[str, Any]:
    """``document``, stored JSON, without the fields that say what is true without them."""
    workloads = document.get("workloads", [])
    if not 1 <= len(workloads) <= MOST_WORKLOADS:
        return document
    short = copy.deepcopy(document)
    wanted = _read(short, now)
    if wanted is None:
        return document
    for holder, name in list(_fields(short)):
        value = holder.pop(name, None)
        if value is not None and _read(short, now) != wanted:
            holder[name] = value
    order = ("team", "horizon", "budget", "policy", "workloads")
    return {name: short[name] for name in order if name in short}


def _fields(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every field of a document that may be left out, inner ones after the one around them."""
    if isinstance(value, list):
        for inner in value:
            yield from _fields(inner)
    elif isinstance(value, dict):
        for name in list(value):
            if name not in KEPT:
                yield value, name
            if name in value:
                yield from _fields(value[name])


def _read(document: dict[str, Any], now: datetime) -> PlanRequest | None:
    try:
        return read_workloads(json.dumps(document), source="stored plan", base=None, now=now, stored=True)
    except InputError:
        return None


def as_yaml(document: dict[str, Any]) -> str:
    """The document as YAML for an editor."""
    return yaml.dump(document, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True, width=100)
