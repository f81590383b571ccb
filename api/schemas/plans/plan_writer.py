"""Plans to JSON, as ``api.schemas.plans.plan`` reads them."""

from __future__ import annotations

import json
from typing import Any

from api.schemas.base.times import format_time
from api.schemas.base.windows import window_use_to_document
from api.schemas.market.offer_writer import segment_to_document
from api.schemas.plans.plan_money import spend_line_to_document, transfers_to_document
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.money import format_usd
from broker.domain.basics.node_launch import ColdStart
from broker.domain.market.billing import Block
from broker.domain.planning.plan import (
    Alternative,
    Baseline,
    Fix,
    Placement,
    Plan,
    PriceOutlook,
    Scarcity,
    Wait,
    Why,
)


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """The JSON form of ``plan`` as plain data."""
    return {
        "plan_id": plan.plan_id,
        "status": str(plan.status),
        "team": plan.team,
        "created_at": format_time(plan.created_at),
        "as_of": format_time(plan.as_of),
        "seed": plan.seed,
        "cost_usd": format_usd(plan.cost_usd),
        "bound_usd": format_usd(plan.bound_usd) if plan.bound_usd is not None else None,
        "gap": plan.gap,
        "penalty_usd": format_usd(plan.penalty_usd),
        "delay_usd": format_usd(plan.delay_usd),
        "solve_seconds": plan.solve_seconds,
        "candidates": {"evaluated": plan.candidates.evaluated, "kept": plan.candidates.kept},
        "placements": [_placement(placement) for placement in plan.placements],
        "unplaced": [
            {
                "workload": u.workload,
                "reason": str(u.reason),
                "nearest_fix": u.nearest_fix,
                "fixes": [_fix(fix) for fix in u.fixes],
            }
            for u in plan.unplaced
        ],
        "baselines": [_baseline(baseline) for baseline in plan.baselines],
        "spend": [spend_line_to_document(line) for line in plan.spend],
        "scarcity": [_scarcity(scarcity) for scarcity in plan.scarcity],
        "scarcity_usd_per_node_hour": dict(plan.scarcity_usd_per_node_hour),
        "outlooks": [_outlook(outlook) for outlook in plan.outlooks],
        "notes": list(plan.notes),
        "assumptions": [{"offer_id": a.offer_id, "nodes": a.nodes, "says": a.says} for a in plan.assumptions],
        "waits": [_wait(wait) for wait in plan.waits],
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "says": fix.says,
        "patch": [
            {"op": str(one.op), "path": one.path}
            | ({} if one.value_json is None else {"value": json.loads(one.value_json)})
            for one in fix.patch
        ],
        "cost_usd": format_usd(fix.cost_usd),
    }


def _placement(placement: Placement) -> dict[str, Any]:
    return {
        "workload": placement.workload,
        "kind": str(placement.kind),
        "offer_id": placement.offer_id,
        "provider": placement.provider,
        "region": placement.region,
        "zone": placement.zone,
        "sku": placement.sku,
        "gpu": placement.gpu,
        "tier": str(placement.tier),
        "nodes": placement.nodes,
        "gpus": placement.gpus,
        "replicas": placement.replicas,
        "gpus_per_replica": placement.gpus_per_replica,
        "parallelism": _layout(placement.parallelism),
        "precision": str(placement.precision),
        "segments": [segment_to_document(segment) for segment in placement.segments],
        "cost_usd": format_usd(placement.cost_usd),
        "paid_unused_usd": format_usd(placement.paid_unused_usd),
        "estimate": _estimate(placement.estimate),
        "why": _why(placement.why),
        "window_use": window_use_to_document(placement.window_use),
        "transfers": transfers_to_document(placement.transfers),
        "work_share": placement.work_share,
        "engine": placement.engine and str(placement.engine),
        "billed_ahead": [_block(block) for block in placement.billed_ahead],
        "cold_start": _cold_start(placement.cold_start),
    }


def _cold_start(parts: ColdStart | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    return {
        "launch_s": parts.launch_s,
        "image_s": parts.image_s,
        "weights_s": parts.weights_s,
        "engine_s": parts.engine_s,
        "basis": str(parts.basis),
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "at": format_time(block.at),
        "until": format_time(block.until),
        "nodes": block.nodes,
        "usd": format_usd(block.usd),
    }


def _layout(layout: Parallelism) -> dict[str, Any]:
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "cp": layout.cp,
        "ep": layout.ep,
        "micro_batch": layout.micro_batch,
        "recompute": layout.recompute,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        **estimate.value,
        "low": dict(estimate.low),
        "high": dict(estimate.high),
        "provenance": str(estimate.provenance),
    }


def _why(why: Why) -> dict[str, Any]:
    lost = why.runner_up
    return {
        "bottleneck": why.bottleneck,
        "binding": list(why.binding),
        "runner_up": (
            {"offer_id": lost.offer_id, "cost_usd": format_usd(lost.cost_usd), "because": lost.because}
            if lost is not None
            else None
        ),
        "rule": str(why.rule) if why.rule is not None else None,
        "next_best": [_alternative(way) for way in why.next_best],
        "filtered": {str(gate): count for gate, count in why.filtered},
        "sentences": list(why.sentences),
    }


def _alternative(way: Alternative) -> dict[str, Any]:
    return {
        "offer_id": way.offer_id,
        "cost_usd": format_usd(way.cost_usd),
        "more_usd": format_usd(way.more_usd),
        "later_hours": way.later_hours,
        "rule": str(way.rule),
        "because": way.because,
    }


def _outlook(outlook: PriceOutlook) -> dict[str, Any]:
    prices = {"p10": outlook.p10_usd, "p50": outlook.p50_usd, "p90": outlook.p90_usd}
    return {
        "offer_id": outlook.offer_id,
        "hours": outlook.hours,
        "basis": outlook.basis,
        **{
            f"{name}_usd_per_node_hour": None if usd is None else format_usd(usd)
            for name, usd in prices.items()
        },
    }


def _wait(wait: Wait) -> dict[str, Any]:
    return {
        "workload": wait.workload,
        "after": wait.after,
        "earliest_start": format_time(wait.earliest_start),
        "start": format_time(wait.start),
        "usd_per_hour": format_usd(wait.usd_per_hour),
        "delay_usd": format_usd(wait.delay_usd),
    }


def _scarcity(scarcity: Scarcity) -> dict[str, Any]:
    return {
        "offer_id": scarcity.offer_id,
        "nodes": scarcity.nodes,
        "saves_usd": format_usd(scarcity.saves_usd),
        "workloads": list(scarcity.workloads),
        "text": scarcity.text,
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    cost = baseline.cost_usd
    return {
        "name": baseline.name,
        "cost_usd": format_usd(cost) if cost is not None else None,
        "why": baseline.why,
        "completed": baseline.completed,
        "over_budget_usd": format_usd(baseline.over_budget_usd),
    }
