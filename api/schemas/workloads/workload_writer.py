"""PlanRequest → plain data of a workloads document."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from api.schemas.base.times import format_time
from broker.domain.basics.money import format_usd
from broker.domain.planning.reoptimize_policy import ReoptimizePolicy
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    Dataset,
    FleetLimits,
    PlanRequest,
    Policy,
    Serving,
    Traffic,
    TrafficShape,
    Training,
    Workload,
)


def to_document(request: PlanRequest) -> dict[str, Any]:
    """The document of ``request`` as plain data for JSON. Reading it gives ``request`` again."""
    document: dict[str, Any] = {
        "team": request.team,
        "horizon": {"start": format_time(request.horizon.start), "days": request.horizon.hours / 24},
        "policy": _policy_document(request.policy),
        "workloads": [_workload_document(workload, request.team) for workload in request.workloads],
    }
    if request.budget_usd is not None:
        document["budget"] = {"usd": format_usd(request.budget_usd)}
    return document


def _policy_document(policy: Policy) -> dict[str, Any]:
    document: dict[str, Any] = {"compliance": list(policy.compliance)}
    for name in ("regions", "countries", "geography", "tiers", "hosts"):
        rule = getattr(policy, name)
        if rule is not None:
            document[name] = [str(value) for value in rule]
    for name in ("min_reliability", "assumed_nodes", "premium"):
        if getattr(policy, name) is not None:
            document[name] = getattr(policy, name)
    if policy.fleet != FleetLimits():
        document["fleet"] = _fleet_document(policy.fleet)
    document["providers"] = {
        "only": list(policy.providers_only or ()),
        "exclude": list(policy.providers_exclude),
    }
    if policy.quotas:
        document["quotas"] = {q.provider: {"gpus": q.gpus, "nodes": q.nodes} for q in policy.quotas}
    if policy.reoptimize != ReoptimizePolicy():
        document["reoptimize"] = _reoptimize_document(policy.reoptimize)
    return document


def _fleet_document(limits: FleetLimits) -> dict[str, Any] | None:
    """The limits that were given: ``null`` is no limit, and a missing limit stays missing."""
    said = {"max_pools": limits.max_pools, "max_gpu_kinds": limits.max_gpu_kinds}
    document = {name: None if most == NO_LIMIT else most for name, most in said.items() if most is not None}
    return document or None


def _reoptimize_document(policy: ReoptimizePolicy) -> dict[str, Any]:
    usd, share = policy.min_saving_usd, policy.min_saving_share
    document = {
        "mode": None if policy.mode is None else str(policy.mode),
        "min_saving_usd": _usd(usd),
        "min_saving_share": None if share is None else str(share),
        "cooldown_hours": policy.cooldown_hours,
        "lapse_hours": policy.lapse_hours,
    }
    return {name: value for name, value in document.items() if value is not None}


def _workload_document(workload: Workload, team: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": workload.name,
        "kind": str(workload.kind),
        "model": workload.model.name,
        "team": workload.team if workload.team != team else None,
        "policy": _policy_document(workload.policy),
        "unplaced_usd": _usd(workload.unplaced_usd),
        "measured": [
            {
                "gpu": row.gpu,
                "gpus": row.gpus,
                "tokens_per_s": row.tokens_per_s,
                "requests_per_s": row.requests_per_s,
            }
            for row in workload.measured
        ],
    }
    if isinstance(workload, Training):
        document |= _training_document(workload)
    elif isinstance(workload, Serving):
        document |= _serving_document(workload)
    else:
        document |= _batch_document(workload)
    return {name: value for name, value in document.items() if value is not None}


def _usd(amount: Decimal | None) -> str | None:
    return format_usd(amount) if amount is not None else None


def _training_document(run: Training) -> dict[str, Any]:
    every = run.checkpoint_every_minutes
    return {
        "tokens": run.tokens,
        "sequence_length": run.sequence_length,
        "global_batch_tokens": run.global_batch_tokens,
        "precision": str(run.precision),
        "gpus": {"min": run.gpus_min, "max": run.gpus_max},
        "earliest_start": format_time(run.earliest_start),
        "deadline": format_time(run.deadline),
        "late_usd_per_hour": _usd(run.late_usd_per_hour),
        "headroom": run.headroom,
        "checkpoint": {"every_minutes": every} if every is not None else None,
        "interruptible": run.interruptible,
        "dataset": _data_document(run.dataset),
        "software": str(run.software),
    }


def _data_document(data: Dataset | None) -> dict[str, Any] | None:
    return None if data is None else {"gb": data.gb, "provider": data.provider, "region": data.region}


def _serving_document(service: Serving) -> dict[str, Any]:
    starts: object = None
    survives = service.redundancy.survives
    if service.starts_after is not None:
        delay = service.delay_usd_per_hour
        told = {} if delay is None else {"delay_usd_per_hour": format_usd(delay)}
        starts = {"after": service.starts_after, **told}
    elif service.starts_at is not None:
        starts = format_time(service.starts_at)
    return {
        "precisions": [str(precision) for precision in service.precisions],
        "traffic": _traffic_document(service.traffic),
        "slo": {"ttft_p95_ms": service.slo.ttft_p95_ms, "itl_p95_ms": service.slo.itl_p95_ms},
        "redundancy": {
            "zones": service.redundancy.zones,
            "spare_replicas": service.redundancy.spare_replicas,
            **({} if survives is None else {"survives": str(survives)}),
            "zone_loss_share": service.redundancy.zone_loss_share,
        },
        "fleet": _fleet_document(service.fleet),
        "starts": starts,
        "weights": _data_document(service.weights),
        **_decoding_document(service),
    }


def _decoding_document(workload: Serving | Batch) -> dict[str, Any]:
    draft = workload.speculation
    return {
        "engine": str(workload.engine),
        "prefix_cache_hit_share": workload.prefix_cache_hit_share,
        "speculation": None
        if draft is None
        else {
            "drafted_tokens": draft.drafted_tokens,
            "acceptance": draft.acceptance,
            "draft_cost": draft.draft_cost,
        },
    }


def _lengths_document(traffic: Traffic) -> dict[str, Any]:
    if not traffic.mix:
        return {"input_tokens": traffic.input_tokens, "output_tokens": traffic.output_tokens}
    return {
        "mix": [
            {"share": s.share, "input_tokens": s.input_tokens, "output_tokens": s.output_tokens}
            for s in traffic.mix
        ]
    }


def _traffic_document(traffic: Traffic) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shape": str(traffic.shape),
        "trough_share": traffic.trough_share,
        "peak_hour_utc": traffic.peak_hour_utc,
        **_lengths_document(traffic),
    }
    if traffic.shape is TrafficShape.HOURLY:
        return document | {"hourly": list(traffic.hourly_requests_per_s)}
    return document | {"peak_requests_per_s": traffic.peak_requests_per_s}


def _batch_document(batch: Batch) -> dict[str, Any]:
    return {
        "precisions": [str(precision) for precision in batch.precisions],
        "requests": batch.requests,
        "input_tokens": batch.input_tokens,
        "output_tokens": batch.output_tokens,
        "earliest_start": format_time(batch.earliest_start),
        "deadline": format_time(batch.deadline),
        "interruptible": batch.interruptible,
        "chunk_minutes": batch.chunk_minutes,
        "parts": batch.parts,
        **_decoding_document(batch),
    }
