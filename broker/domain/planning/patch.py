"""Changes of a workloads document as JSON Patch (RFC 6902).

A pointer names a workload by its index, so a patch is only valid for the document for which it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from broker.domain.basics.money import format_usd
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    FleetLimits,
    PlanRequest,
    Policy,
    Serving,
    TrafficShape,
    Workload,
)


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

    Both must have the same workloads in the same order. They may differ only in the budget, the horizon's
    end and rules of policies, and for a workload in its penalty, deadline, GPUs, precisions, engine, traffic,
    latency objective, redundancy, fleet limits, parts and whether it is interruptible.
    """
    operations = [*_differences("", _document_fields(old), _document_fields(new))]
    operations += _policy_operations("/policy", old.policy, new.policy)
    for index, (before, after) in enumerate(zip(old.workloads, new.workloads, strict=True)):
        if after != before:
            at = f"/workloads/{index}"
            operations += _policy_operations(f"{at}/policy", before.policy, after.policy)
            operations += _differences(at, _workload_fields(before), _workload_fields(after))
    return tuple(operations)


def _differences(at: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PatchOperation]:
    """An operation for each changed field, with its pointer below ``at``. A value of None is removed."""
    for pointer, value in new.items():
        if value == old[pointer]:
            continue
        if value is None:
            yield PatchOperation(PatchVerb.REMOVE, f"{at}/{pointer}")
        else:
            yield PatchOperation(PatchVerb.ADD, f"{at}/{pointer}", json.dumps(_plain(value)))


def _policy_operations(at: str, old: Policy, new: Policy) -> Iterator[PatchOperation]:
    """The operations for a policy. An empty policy may be absent from the document, so it is added whole."""
    before, after = _policy_fields(old), _policy_fields(new)
    if old == Policy() and after != before:
        said = {name: value for name, value in after.items() if value != before[name]}
        yield PatchOperation(PatchVerb.ADD, at, json.dumps(_plain(said)))
    else:
        yield from _differences(at, before, after)


def _document_fields(request: PlanRequest) -> dict[str, Any]:
    budget = request.budget_usd
    return {
        "budget": None if budget is None else {"usd": budget},
        "horizon/days": request.horizon.duration / timedelta(days=1),
    }


def _policy_fields(policy: Policy) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: getattr(policy, name)
        for name in (
            "regions",
            "countries",
            "geography",
            "tiers",
            "hosts",
            "min_reliability",
            "assumed_nodes",
        )
    }
    for pointer, names in (
        ("providers/only", policy.providers_only),
        ("providers/exclude", policy.providers_exclude),
        ("compliance", policy.compliance),
    ):
        fields[pointer] = names or ()
    fields["quotas"] = {quota.provider: _limits(quota.gpus, quota.nodes) for quota in policy.quotas}
    return fields


def _fleet_fields(limits: FleetLimits) -> dict[str, int | None] | None:
    """Limits of a fleet as a document writes them: null means that there is no limit."""
    fields = {"max_pools": limits.max_pools, "max_gpu_kinds": limits.max_gpu_kinds}
    said = {name: most for name, most in fields.items() if most is not None}
    return {name: None if most >= NO_LIMIT else most for name, most in said.items()} or None


def _limits(gpus: int | None, nodes: int | None) -> dict[str, int]:
    return {unit: most for unit, most in (("gpus", gpus), ("nodes", nodes)) if most is not None}


def _workload_fields(workload: Workload) -> dict[str, Any]:
    fields: dict[str, Any] = {"unplaced_usd": workload.unplaced_usd}
    if isinstance(workload, Serving):
        traffic = workload.traffic
        is_hourly = traffic.shape is TrafficShape.HOURLY
        return fields | {
            "traffic/peak_requests_per_s": None if is_hourly else traffic.peak_requests_per_s,
            "traffic/hourly": list(traffic.hourly_requests_per_s) if is_hourly else None,
            "precisions": workload.precisions,
            "engine": workload.engine,
            "slo/ttft_p95_ms": workload.slo.ttft_p95_ms,
            "slo/itl_p95_ms": workload.slo.itl_p95_ms,
            "redundancy/zones": workload.redundancy.zones,
            "redundancy/spare_replicas": workload.redundancy.spare_replicas,
            "fleet": _fleet_fields(workload.fleet),
        }
    fields["deadline"] = workload.deadline
    if isinstance(workload, Batch):
        return fields | {
            "precisions": workload.precisions,
            "engine": workload.engine,
            "interruptible": workload.interruptible,
            "parts": workload.parts,
        }
    return fields | {
        "precision": workload.precision,
        "gpus/min": workload.gpus_min,
        "gpus/max": workload.gpus_max,
        "interruptible": workload.interruptible,
    }


def _plain(value: Any) -> Any:
    """A domain value in the form that a document has."""
    if isinstance(value, Decimal):
        return format_usd(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, StrEnum) else value
