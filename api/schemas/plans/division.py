"""The division of services into lanes as JSON, and the workloads document with these lanes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from decimal import Decimal
from typing import Any

from api.schemas.base.forms import Form
from broker.domain.basics.money import format_usd, to_cents
from broker.domain.planning.lanes import DividedService, Division, Lane, Undivided
from broker.domain.planning.plan import Plan
from broker.domain.workloads.traffic import RequestSize

SIZE = Form(RequestSize)
LANE = Form(Lane)
UNDIVIDED = Form(Undivided, rename={"service": "workload"})


def division_to_document(division: Division) -> dict[str, Any]:
    """The JSON form of ``division`` as plain data. Its amounts are null for a service that cannot be placed
    undivided.
    """
    return {
        "divided": [_divided(one) for one in division.divided],
        "kept": [UNDIVIDED.write(one) for one in division.kept],
    }


def _divided(one: DividedService) -> dict[str, Any]:
    bound, placed = one.whole.bound_usd, not one.whole.unplaced
    return {
        "workload": one.service.name,
        "whole_usd": format_usd(one.whole.cost_usd) if placed else None,
        "whole_bound_usd": format_usd(bound) if bound is not None else None,
        "divided_usd": format_usd(one.divided.cost_usd),
        "saves_usd": format_usd(one.saves_usd) if placed else None,
        "surely_saves_usd": format_usd(one.surely_saves_usd) if placed else None,
        "lanes": [_lane(lane, one.divided) for lane in one.lanes],
        "routes": [
            {"input_tokens": size.input_tokens, "output_tokens": size.output_tokens, "to": to}
            for size, to in one.routes.items()
        ],
    }


def _lane(lane: Lane, plan: Plan) -> dict[str, Any]:
    placements = plan.placements_of(lane.name)
    return {
        **LANE.write(lane),
        "stands_on": [
            {"offer_id": one.offer_id, "gpu": one.gpu, "nodes": one.nodes, "replicas": one.replicas}
            for one in placements
        ],
    }


def divided_document(data: Mapping[str, Any], division: Division) -> dict[str, Any]:
    """The plain data of a workloads document in which lanes replace the divided services."""
    lanes = {one.service.name: one.lanes for one in division.divided}
    rows: list[Any] = []
    for row in data["workloads"]:
        rows += [_lane_row(row, lane) for lane in lanes[row["name"]]] if row["name"] in lanes else [row]
    return {**data, "workloads": rows}


def _lane_row(row: Mapping[str, Any], lane: Lane) -> dict[str, Any]:
    traffic = {name: deepcopy(value) for name, value in row["traffic"].items() if name != "mix"}
    if len(lane.sizes) > 1:
        traffic["mix"] = [SIZE.write(size) for size in lane.sizes]
    else:
        (size,) = lane.sizes
        traffic |= {"input_tokens": size.input_tokens, "output_tokens": size.output_tokens}
    if traffic.get("peak_requests_per_s") is not None:
        traffic["peak_requests_per_s"] = float(traffic["peak_requests_per_s"]) * lane.share
    if traffic.get("hourly") is not None:
        traffic["hourly"] = [float(rate) * lane.share for rate in traffic["hourly"]]
    for burst in traffic.get("bursts") or ():
        burst["requests_per_s"] = float(burst["requests_per_s"]) * lane.share
    made = {**row, "name": lane.name, "traffic": traffic}
    if row.get("unplaced_usd") is not None:
        made["unplaced_usd"] = format_usd(to_cents(Decimal(str(row["unplaced_usd"])) * Decimal(lane.share)))
    return made
