"""Documents of teams over one small market (``fixtures/teams``), and what a person counts in their plans.

Nothing here asks the checker or the solver: nodes, requests/s, starts and pools are counted from the segments
that a plan tells.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from api.schemas.market import Market, read_market
from api.schemas.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.offer import Offer
from broker.domain.plan import Placement, Plan
from broker.domain.workload import PlanRequest
from broker.plan_ports import LimitClock, PlanOptions
from optimizer.performance.calibration import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner

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


def asked(written: Any) -> PlanRequest:
    """The request of a document, read on the day of the market."""
    return read_workloads(json.dumps(written), source="document", base=FOLDER, now=market().as_of)


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


def requests_per_s_at(placement: Placement, at: datetime) -> float:
    """What the ready nodes of a placement carry."""
    per_node, size = offers()[placement.offer_id].sku.gpus_per_node, placement.gpus_per_replica
    nodes = ready_at(placement, at)
    fit = nodes * (per_node // size) if size <= per_node else nodes * per_node // size
    return min(fit, placement.replicas) * placement.estimate["requests_per_s_per_replica"]


def by_place(fleet: Sequence[Placement], at: datetime) -> dict[str, float]:
    """Requests/s of each place: one operator's data centre or region."""
    carried: defaultdict[str, float] = defaultdict(float)
    for placement in fleet:
        carried[offers()[placement.offer_id].place] += requests_per_s_at(placement, at)
    return carried


def pools_of(fleet: Sequence[Placement]) -> set[tuple[object, ...]]:
    """A pool is one seller's nodes of one GPU in one place and one configuration."""
    return {
        (p.provider, p.gpu, offers()[p.offer_id].place, p.precision, p.parallelism, p.engine) for p in fleet
    }


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


def most_held(plan: Plan, offer_ids: Iterable[str], unit: str = "nodes") -> int:
    """The most nodes, or ``gpus``, of some offers that are held at one instant, whoever holds them."""
    named = set(offer_ids)
    rows = [p for p in plan.placements if p.offer_id in named]
    each = [1 if unit == "nodes" else offers()[p.offer_id].sku.gpus_per_node for p in rows]
    turns = {segment.start for row in rows for segment in row.segments}
    held = [sum(held_at(row, at) * size for row, size in zip(rows, each, strict=True)) for at in turns]
    return max(held, default=0)
