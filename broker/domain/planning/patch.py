"""Changes of a workloads document as JSON Patch (RFC 6902).

A pointer names a workload by its index, so a patch is only valid for the document for which it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from broker.domain.planning.workload import PlanRequest, Policy
from broker.domain.planning.workload_document import to_document, written

WHOLE = frozenset({"budget", "fleet", "quotas"})
"""Objects that are changed as a whole."""
NO_POLICY = written(Policy())


class PatchVerb(StrEnum):
    """The JSON Patch operations that are used; ``add`` also replaces an existing member."""

    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class PatchOperation:
    """One operation. ``value_json`` is its value as JSON text; None for a removal."""

    op: PatchVerb
    path: str
    value_json: str | None = None


def patch_of(old: PlanRequest, new: PlanRequest) -> tuple[PatchOperation, ...]:
    """The operations that change the document of ``old`` into that of ``new``.

    Both must have the same workloads in the same order.
    """
    rows = enumerate(zip(old.workloads, new.workloads, strict=True))
    changed = [index for index, (was, now) in rows if was != now or old.team != new.team]
    before, after = (
        to_document(replace(one, workloads=tuple(one.workloads[index] for index in changed)))
        for one in (old, new)
    )
    pairs = zip(changed, before.pop("workloads"), after.pop("workloads"), strict=True)
    operations = [*_differences("", before, after)]
    for index, was, now in pairs:
        operations += _differences(f"/workloads/{index}", was, now)
    return tuple(operations)


def _differences(at: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PatchOperation]:
    """An operation for each changed field, with its pointer below ``at``. A value of None is removed."""
    for name in (*old, *(name for name in new if name not in old)):
        before, after, pointer = old.get(name), new.get(name), f"{at}/{name}"
        if before == after:
            continue
        if after is None:
            yield PatchOperation(PatchVerb.REMOVE, pointer)
        elif name == "policy" and before == NO_POLICY:  # it may be absent from the document
            said = {field: value for field, value in after.items() if value != before.get(field)}
            yield PatchOperation(PatchVerb.ADD, pointer, json.dumps(said))
        elif isinstance(before, dict) and name not in WHOLE:
            yield from _differences(pointer, before, after)
        else:
            yield PatchOperation(PatchVerb.ADD, pointer, json.dumps(after))
