"""PlanRequest → plain data of a workloads document, each field under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from broker.domain.basics.money import format_usd
from broker.domain.planning.workload import (
    NO_LIMIT,
    FleetLimits,
    GpuRange,
    Measurement,
    PlanRequest,
    Quota,
    Starts,
)
from broker.domain.workloads.gpu_rules import GpuRules
from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.domain.workloads.training_method import Objective, Optimizer, WeightMode

WITH_NULLS = (GpuRange, Measurement, Quota)
"""Their fields are written also where they are None."""
LEFT_OUT_EMPTY = frozenset({"quotas", "hourly", "mix", "mix_sandbox", "bursts"})
LEFT_OUT_USUAL: Mapping[str, Any] = {
    "method": Objective.PRETRAIN,
    "optimizer": Optimizer(),
    "weights": WeightMode.MIXED,
    "offload_activations": False,
    "packed": True,
}
"""Fields that are not written where they have this value."""


def to_document(request: PlanRequest) -> dict[str, Any]:
    """The document of ``request`` as plain data for JSON. Reading it gives ``request`` again."""
    horizon = request.horizon
    document: dict[str, Any] = {
        "team": request.team,
        "horizon": {"start": written(horizon.start), "days": horizon.hours / 24},
        "policy": written(request.policy),
        "workloads": [written(workload) for workload in request.workloads],
    }
    for row in document["workloads"]:
        if row["team"] in ("", request.team):
            del row["team"]
    if request.budget_usd is not None:
        document["budget"] = {"usd": written(request.budget_usd)}
        if request.budget_confidence is not None:
            document["budget"]["confidence"] = request.budget_confidence
    return document


def written(value: Any) -> Any:
    """A value as a document has it. Objects do not have what is None, or an object without fields."""
    if isinstance(value, Decimal):
        return format_usd(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, ModelShape):
        return value.name
    if isinstance(value, tuple):
        return [written(one) for one in value]
    if isinstance(value, Mapping):
        return {name: written(one) for name, one in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return str(value) if isinstance(value, StrEnum) else value
    document = {one.name: _field(one.name, getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, WITH_NULLS):
        return document
    unsaid: tuple[object, ...] = (None, {}, []) if isinstance(value, GpuRules) else (None, {})
    document = {name: told for name, told in document.items() if told not in unsaid}
    if isinstance(value, FleetLimits):
        return {name: None if most == NO_LIMIT else most for name, most in document.items()}
    if isinstance(value, Starts) and set(document) == {"at"}:
        return document["at"]
    return _traffic(value, document) if isinstance(value, Traffic) else document


def _field(name: str, value: Any) -> Any:
    if (not value and name in LEFT_OUT_EMPTY) or (name in LEFT_OUT_USUAL and value == LEFT_OUT_USUAL[name]):
        return None
    if name == "quotas":
        return {quota.provider: {"gpus": quota.gpus, "nodes": quota.nodes} for quota in value}
    return written(value)


def _traffic(traffic: Traffic, document: Mapping[str, Any]) -> dict[str, Any]:
    """The traffic without what follows from its sizes and its hours."""
    follows = {"input_tokens", "output_tokens"} if traffic.mix else set()
    follows.add("peak_requests_per_s" if traffic.shape is TrafficShape.HOURLY else "hourly")
    if not traffic.peak_requests_per_s:
        follows.add("peak_requests_per_s")
    if traffic.peak_hour is not None:
        follows.add("peak_hour_utc")
    return {name: value for name, value in document.items() if name not in follows}
