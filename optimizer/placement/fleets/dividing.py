"""Divides services with several request sizes into lanes with fleets of their own, where that costs less.

A small integer program (``lanes``) finds lanes at market prices. Each proposal is then judged by planning the
service whole and divided, with nothing else on the market. U kinds of unit (kind of node × configuration), S
sizes, H hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import count

import numpy as np

from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.lanes import DividedService, Division, Lane, Undivided, lane_service
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Serving
from broker.domain.workloads.traffic import RequestSize
from optimizer.memo_cache import MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.performance.serving.mixes import parts_of
from optimizer.placement.fleets.cases import Replicas, hourly_demand
from optimizer.placement.fleets.lanes import LaneDemand, LaneOptions, find_lanes
from optimizer.placement.problem.estimates import Estimates, build_estimates
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem, build_problem
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runtime.tuning import TUNING

PlanOf = Callable[[PlanRequest], Plan]


def divide(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    estimator: Estimator,
    terms: MovingTerms,
    memo: MemoCache,
    plan: PlanOf,
    least_saving: float,
) -> Division:
    """The effect of lanes on each service with several sizes; those that save more than ``least_saving`` of
    their cost are divided.
    """
    names = {workload.name for workload in request.workloads}
    divided, kept = [], []
    for service in request.workloads:
        if not isinstance(service, Serving) or len(service.traffic.mix) < 2:
            continue
        obstacle = _obstacle(service)
        if obstacle is not None:
            kept.append(Undivided(service.name, obstacle))
            continue
        alone = _alone(request, service)
        ways = _ways(build_problem(alone, offers, as_of, terms, memo), estimator, service, names)
        found = _judged(alone, service, tuple(ways), plan, least_saving)
        if isinstance(found, DividedService):
            names |= {lane.name for lane in found.lanes}
            divided.append(found)
        else:
            kept.append(found)
    return Division(tuple(divided), tuple(kept))


def _obstacle(service: Serving) -> str | None:
    if service.policy.quotas:
        return "a quota of its own is one over all of its lanes, which no document can say"
    return None


def _alone(request: PlanRequest, service: Serving) -> PlanRequest:
    """A request for only this service; it must be placed, and starts with the horizon even if it follows a
    run.
    """
    free = replace(service, starts=replace(service.starts, after=None), unplaced_usd=None)
    return replace(request, workloads=(free,), budget_usd=None)


def _judged(
    alone: PlanRequest,
    service: Serving,
    ways: Sequence[tuple[Lane, ...]],
    plan: PlanOf,
    least_saving: float,
) -> DividedService | Undivided:
    """The cheapest of the proposed divisions if it is cheaper than the whole service; else the reason why
    not.
    """
    if not ways:
        return Undivided(service.name, "at the prices of this market no lanes cost less")
    whole = plan(alone)
    (free,) = (one for one in alone.workloads if isinstance(one, Serving))
    best: DividedService | None = None
    for lanes in ways:
        asked = replace(alone, workloads=tuple(lane_service(free, lane) for lane in lanes))
        found = DividedService(service, lanes, whole, plan(asked))
        if not found.divided.unplaced and (best is None or found.saves_usd > best.saves_usd):
            best = found
    if best is None:
        return Undivided(service.name, "the market has not the capacity for a fleet in each lane")
    if whole.unplaced or best.saves_usd > whole.cost_usd * Decimal(str(least_saving)):
        return best
    more = best.divided.cost_usd - whole.cost_usd
    told = f"{-more:,.2f} less" if more < 0 else f"{more:,.2f} more"
    return Undivided(service.name, f"in {len(best.lanes)} lanes it costs ${told} than whole")


def _ways(
    problem: Problem, estimator: Estimator, service: Serving, names: set[str]
) -> Iterator[tuple[Lane, ...]]:
    """Proposed divisions: at on-demand prices, and at prices that include commitments."""
    parts = tuple(
        replace(one, name=f"{number}", starts=replace(one.starts, after=None))
        for number, (_, one) in enumerate(parts_of(service))
        if isinstance(one, Serving)
    )
    asked = replace(problem, request=replace(problem.request, workloads=parts))
    estimates = build_estimates(asked, estimator)
    demand = _lane_demand(hourly_demand(problem, service), service)
    seen = []
    for by_the_hour in (True, False):
        options = _lane_options(asked, estimates, parts, by_the_hour=by_the_hour)
        found = find_lanes(options, demand, TUNING.fleets.lane_search_s) if len(options) else None
        if found is None:
            continue
        lanes = lanes_of(found, service, names)
        if len(lanes) > 1 and lanes not in seen:
            seen.append(lanes)
            yield lanes


def _lane_demand(demand: Floats, service: Serving) -> LaneDemand:
    """Distinct levels of demand, grouped; each group counts with its highest demand."""
    distinct = np.unique(demand)
    levels = np.array(
        [group[-1] for group in np.array_split(distinct, min(TUNING.fleets.lane_levels, len(distinct)))]
    )
    of = np.searchsorted(levels, demand)
    hours = np.bincount(of, minlength=len(levels)).astype(np.float64)
    shares = np.array([size.share for size in service.traffic.mix])
    return LaneDemand(levels, hours, shares)


def lanes_of(parts: Floats, service: Serving, names: set[str]) -> tuple[Lane, ...]:
    """Parts [U, S] of each size as named lanes, shortest requests first; names are not yet in use."""
    mix = service.traffic.mix
    taken = parts * np.array([size.share for size in mix])
    taken = taken[taken.any(axis=1)]
    whole = taken.sum(axis=1)
    tokens = np.array([size.input_tokens + size.output_tokens for size in mix], dtype=np.float64)
    order = np.argsort(taken @ tokens / whole, kind="stable")
    free = (name for number in count(1) if (name := f"{service.name}-{number}") not in names)
    return tuple(
        Lane(
            name,
            float(whole[lane]),
            tuple(
                RequestSize(float(share), size.input_tokens, size.output_tokens)
                for share, size in zip(taken[lane] / whole[lane], mix, strict=True)
                if share > 0
            ),
        )
        for lane, name in zip(order, free, strict=False)
    )


def _lane_options(
    problem: Problem, estimates: Estimates, parts: Sequence[Serving], *, by_the_hour: bool
) -> LaneOptions:
    """The most cost-efficient kinds of unit for each size, at the price of the cheapest offers the service
    may use.
    """
    service = parts[0]
    table, opened = problem.table, open_gates(problem, service)
    may: Bools = opened.passing & ~table.is_window & (table.upfront_usd == 0)
    may = may & (table.gone_s >= problem.end_s)
    if by_the_hour:
        may = may & (table.min_s <= HOUR_S)
    usd, stock = _cheapest(problem, may)
    each = [Replicas.of(problem, estimates, part) for part in parts]
    rates = np.stack([np.where(one.fits, one.rate, 0.0) for one in each])
    nodes, replicas = each[0].nodes, each[0].replicas
    able = (rates > 0).any(axis=0) & (stock[:, None] >= nodes) & np.isfinite(usd)[:, None]
    kind, config = np.nonzero(able)
    usd_per_unit = nodes[kind, config] * usd[kind]
    per_usd = rates[:, kind, config] / usd_per_unit
    ranked = np.argsort(-per_usd, axis=1, kind="stable")[:, : TUNING.fleets.best_each]
    small = np.argsort(usd_per_unit, kind="stable")[: TUNING.fleets.best_each]
    chosen = np.union1d(ranked.ravel(), small)
    kind, config = kind[chosen], config[chosen]
    redundancy = service.redundancy
    return LaneOptions(
        requests_per_s=rates[:, kind, config].T.copy(),
        usd_per_hour=usd_per_unit[chosen],
        most=stock[kind] // nodes[kind, config],
        spare_units=redundancy.spare_replicas / replicas[kind, config],
        least_units=max(1, redundancy.zones),
    )


def _cheapest(problem: Problem, may: Bools) -> tuple[Floats, Ints]:
    """USD per node-hour [K] of each kind's cheapest offer, and the nodes [K] available at nearly that
    price.
    """
    table, kinds = problem.table, len(problem.table.skus)
    usd = np.full(kinds, np.inf)
    np.minimum.at(usd, table.sku_of[may], table.price_usd[may])
    near = may & (table.price_usd <= TUNING.fleets.near_price * usd[table.sku_of])
    stock = np.zeros(kinds, dtype=np.int64)
    np.add.at(stock, table.sku_of[near], table.stock_nodes[near])
    return usd, stock
