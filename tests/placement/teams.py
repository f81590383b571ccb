"""Documents of teams over one small market (``fixtures/teams``), and what a person counts in their plans.

Nothing here asks the checker or the solver: nodes, requests/s, starts and pools are counted from the segments
that a plan tells.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from api.schemas.market.market import Market, read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner

OnSale = Mapping[str, Offer]
FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "teams"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
HOUR = timedelta(hours=1)
WORK = PlanOptions(time_limit_s=4.0, baselines=False, limit_clock=LimitClock.WORK)
"""Work is counted, so a plan is the same on a busy machine."""


@cache
def market() -> Market:
    return read_market((FOLDER / "market.json").read_text(), "market.json")


@cache
def offers() -> dict[str, Offer]:
    return {offer.offer_id: offer for offer in market().offers}


@cache
def planner() -> JointPlanner:
    return JointPlanner(Estimator(load_gpus(), load_calibration()))


def document(name: str) -> Any:
    """A team's document as plain data."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def asked(written: Any, now: datetime | None = None) -> PlanRequest:
    """The request of a document, read on the day of the market."""
    return read_workloads(json.dumps(written), source="document", base=FOLDER, now=now or market().as_of)


def plan_of(written: Any, over: Iterable[Offer] | None = None, options: PlanOptions = WORK) -> Plan:
    """The plan of a document over the market, or over other offers."""
    on_sale = market().offers if over is None else tuple(over)
    return planner().plan(asked(written), on_sale, market().as_of, options)


@cache
def planned(name: str) -> Plan:
    """The plan of a team's document."""
    return plan_of(document(name))


def held_at(placement: Placement, at: datetime) -> int:
    """Nodes that are held at an instant."""
    return sum(segment.nodes for segment in placement.segments if segment.start <= at < segment.end)


def ready_at(placement: Placement, at: datetime) -> int:
    """Nodes that have been held for a cold start: the fewest of that time."""
    since = at - timedelta(seconds=placement.estimate["cold_start_s"])
    turns = [t for s in placement.segments for t in (s.start, s.end) if since < t <= at]
    return min(held_at(placement, t) for t in (since, at, *turns))


def requests_per_s_at(placement: Placement, at: datetime, on_sale: OnSale | None = None) -> float:
    """What the ready nodes of a placement carry."""
    offer, size = (on_sale or offers())[placement.offer_id], placement.gpus_per_replica
    per_node = offer.sku.gpus_per_node
    nodes = ready_at(placement, at)
    fit = nodes * (per_node // size) if size <= per_node else nodes * per_node // size
    return min(fit, placement.replicas) * placement.estimate["requests_per_s_per_replica"]


def by_place(fleet: Sequence[Placement], at: datetime, on_sale: OnSale | None = None) -> dict[str, float]:
    """Requests/s of each place: one operator's data centre or region."""
    carried: defaultdict[str, float] = defaultdict(float)
    for placement in fleet:
        place = (on_sale or offers())[placement.offer_id].place
        carried[place] += requests_per_s_at(placement, at, on_sale)
    return carried


def pools_of(fleet: Sequence[Placement], on_sale: OnSale | None = None) -> set[tuple[object, ...]]:
    """A pool is one seller's nodes of one GPU in one place and one configuration."""
    place = {p.offer_id: (on_sale or offers())[p.offer_id].place for p in fleet}
    return {(p.provider, p.gpu, place[p.offer_id], p.precision, p.parallelism, p.engine) for p in fleet}


def starts_of(placement: Placement) -> int:
    """How often a node is started, the first ones included."""
    turns = sorted({t for s in placement.segments for t in (s.start, s.end)})
    levels = [0, *(held_at(placement, t) for t in turns)]
    return sum(max(0, after - before) for before, after in pairwise(levels))


def hours_of(plan: Plan, request: PlanRequest, service: str) -> Iterator[datetime]:
    """The begin and the last second of each hour, from the first instant at which nodes can be up."""
    fleet = plan.placements_of(service)
    (begin,) = [w.start for w in plan.waits if w.workload == service] or [request.horizon.start]
    begin += timedelta(seconds=max(p.estimate["cold_start_s"] for p in fleet))
    at = request.horizon.start
    while at < request.horizon.end:
        end = min(at + HOUR, request.horizon.end) - timedelta(seconds=1)
        yield from (t for t in (max(at, begin), end) if t >= begin)
        at += HOUR


def most_held(plan: Plan, offer_ids: Iterable[str]) -> int:
    """The most nodes of some offers that are held at one instant, whoever holds them."""
    return _most(plan, dict.fromkeys(offer_ids, 1))


def most_gpus(plan: Plan, sold: Iterable[Offer]) -> int:
    """The same in GPUs."""
    return _most(plan, {offer.offer_id: offer.sku.gpus_per_node for offer in sold})


def _most(plan: Plan, weight: Mapping[str, int]) -> int:
    rows = [p for p in plan.placements if p.offer_id in weight]
    turns = {segment.start for row in rows for segment in row.segments}
    return max((sum(held_at(row, at) * weight[row.offer_id] for row in rows) for at in turns), default=0)


def demand(traffic: Mapping[str, Any], at: datetime) -> float:
    """Requests/s of the hour: flat, or a cosine of 24 hours between peak and trough."""
    peak: float = traffic["peak_requests_per_s"]
    low: float = peak * (1.0 if traffic["shape"] == "flat" else traffic["trough_share"])
    wave = math.cos((at.hour - traffic.get("peak_hour_utc", 0)) * math.pi / 12)
    return low + (peak - low) * (1 + wave) / 2


def assert_demand_is_carried(
    plan: Plan, request: PlanRequest, row: Mapping[str, Any], on_sale: OnSale | None = None
) -> None:
    """In every hour the ready replicas carry the requests of that hour, without the spare ones, each of which
    is as large as the largest that is ready."""
    fleet = plan.placements_of(row["name"])
    assert fleet
    spares = row.get("redundancy", {}).get("spare_replicas", 0)
    looked = list(hours_of(plan, request, row["name"]))
    assert looked
    for at in looked:
        carried = {p.estimate["requests_per_s_per_replica"]: 0.0 for p in fleet}
        for p in fleet:
            carried[p.estimate["requests_per_s_per_replica"]] += requests_per_s_at(p, at, on_sale)
        spare = spares * max((rate for rate, ready in carried.items() if ready), default=0.0)
        assert sum(carried.values()) - spare >= demand(row["traffic"], at) * (1 - 1e-9), at


def assert_half_is_left(
    plan: Plan, request: PlanRequest, row: Mapping[str, Any], on_sale: OnSale | None = None
) -> None:
    """In every hour any one place may be lost, and each place asked for carries its part of the half."""
    zones: int = row["redundancy"]["zones"]
    for at in hours_of(plan, request, row["name"]):
        wanted = demand(row["traffic"], at)
        carried = by_place(plan.placements_of(row["name"]), at, on_sale)
        assert sum(carried.values()) - max(carried.values()) >= wanted / 2 * (1 - 1e-9), at
        part = wanted / 2 / (zones - 1)
        assert sum(rate >= part * (1 - 1e-9) and rate > 0 for rate in carried.values()) >= zones, at


def assert_few_pools(plan: Plan, row: Mapping[str, Any], on_sale: OnSale | None = None) -> None:
    """One pool more than zones at most, and two kinds of GPU."""
    fleet = plan.placements_of(row["name"])
    assert len(pools_of(fleet, on_sale)) <= row.get("redundancy", {}).get("zones", 1) + 1
    assert len({placement.gpu for placement in fleet}) <= 2


def assert_stock_is_true(plan: Plan, on_sale: OnSale) -> None:
    """Stated stock holds, of offers and of the GPUs that they share; of what nobody states at most sixteen
    nodes are held, and the plan tells of each how many."""
    told = {assumption.offer_id: assumption.nodes for assumption in plan.assumptions}
    pools = defaultdict(list)
    for offer in on_sale.values():
        if offer.stock.pool is not None:
            pools[offer.stock.pool.pool_id].append(offer)
    for offer_id in {placement.offer_id for placement in plan.placements}:
        offer, held = on_sale[offer_id], most_held(plan, [offer_id])
        pool = offer.stock.pool
        if offer.stock.nodes is not None:
            assert held <= offer.stock.nodes
        elif offer.window is None and (
            pool is None or all(o.stock.pool and o.stock.pool.gpus is None for o in pools[pool.pool_id])
        ):
            assert held <= 16
            assert told.pop(offer_id) == held
    assert told == {}
    for sold in pools.values():
        counted = [o.stock.pool.gpus for o in sold if o.stock.pool and o.stock.pool.gpus is not None]
        if counted:
            assert most_gpus(plan, sold) <= min(counted)
