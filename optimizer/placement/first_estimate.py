"""A first estimate of each workload alone, from the same gates and figures as a plan, without any search.

X ways of a run; O offers, K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import numpy as np

from broker.domain.basics.money import to_cents
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.cost_estimate import (
    MOST_ESTIMATED,
    CostEstimate,
    GpuEstimate,
    WorkloadEstimate,
)
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, PlanRequest, Serving
from optimizer.memo_cache import MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.placement.fleets.cases import Replicas, build_fleet_case, hourly_demand
from optimizer.placement.fleets.rules import fleet_rules
from optimizer.placement.problem.estimates import Estimates, build_estimates
from optimizer.placement.problem.gates import GateLog, open_gates
from optimizer.placement.problem.problem import Floats, Ints, Problem, build_problem
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runs.builder import build_run_candidates, most_each
from optimizer.placement.runs.candidates import Run
from optimizer.placement.runs.parts import is_divisible, least_parts_usd
from optimizer.placement.runs.stretches import stretches_of

CARRIED = 1 - 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """The cheapest way of each offer on which a workload fits [M], cheapest first.

    ``share``: how much of the workload the stock of the offer can carry. ``replicas`` is None for training.
    """

    offer: Ints
    nodes: Ints
    replicas: Ints | None
    hours: Floats
    usd: Floats
    share: Floats

    def __len__(self) -> int:
        return len(self.offer)


def estimate_costs(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    estimator: Estimator,
    terms: MovingTerms | None = None,
    memo: MemoCache | None = None,
) -> CostEstimate:
    """What each of at most ``MOST_ESTIMATED`` workloads would cost alone. Raises InputError as
    ``build_problem``.
    """
    assert len(request.workloads) <= MOST_ESTIMATED
    problem = build_problem(request, offers, as_of, terms, memo)
    estimates = build_estimates(problem, estimator)
    found: dict[str, WorkloadEstimate] = {}
    ends_s: dict[str, float] = {}
    for run in problem.runs():
        ways, log, end_s = _of_run(problem, estimates, run)
        ends_s[run.name] = end_s
        found[run.name] = _told(problem, run, ways, log, 1)
    for service in problem.services():
        due_s = _due_s(problem, service, ends_s)
        ways, log = _of_service(problem, estimates, service, due_s)
        found[service.name] = _told(problem, service, ways, log, max(1, service.redundancy.zones))
    return CostEstimate(as_of, tuple(found[workload.name] for workload in request.workloads))


def _of_run(problem: Problem, estimates: Estimates, run: Run) -> tuple[_Ways, GateLog, float]:
    """The cheapest way on each offer, the gates' record, and the end of the cheapest of all."""
    most = most_each(len(problem.runs()))
    candidates = build_run_candidates(problem, estimates, run, most, bounded=False)
    order = np.lexsort((candidates.end_s, candidates.total_usd))
    whole = order[candidates.split[order] < 0]
    kept = whole if len(whole) else order
    _, first = np.unique(candidates.offer[kept], return_index=True)
    best = kept[np.sort(first)]
    replicas = None
    if isinstance(run, Batch):
        configs = estimates.serving.configs
        sizes = np.array([config.gpus_per_replica for config in configs], dtype=np.int64)
        gpus = candidates.nodes[best] * problem.table.gpus_per_node[candidates.offer[best]]
        replicas = np.maximum(1, gpus // sizes[candidates.choice[best]])
    ways = _Ways(
        candidates.offer[best],
        candidates.nodes[best],
        replicas,
        (candidates.end_s[best] - candidates.start_s[best]) / HOUR_S,
        candidates.cost_usd[best],
        np.ones(len(best)),
    )
    end_s = float(candidates.end_s[best[0]]) if len(best) else float(problem.t0_s)
    if isinstance(run, Batch) and is_divisible(run):
        ways = _of_parts(problem, estimates, run, ways)
    return ways, candidates.log, end_s


def _of_parts(problem: Problem, estimates: Estimates, batch: Batch, whole: _Ways) -> _Ways:
    """What each offer can answer of a batch, where parts cost less than all of it on one offer."""
    if not least_parts_usd(problem, estimates, batch) < whole.usd.min(initial=np.inf):
        return whole
    stretches = stretches_of(problem, estimates, batch)
    order = np.argsort(stretches.unit_usd, kind="stable")
    _, first = np.unique(stretches.offer[order], return_index=True)
    at = order[np.sort(first)]
    nodes = np.minimum(stretches.nodes[at], np.ceil(batch.requests / stretches.most[at])).astype(np.int64)
    share = np.minimum(1.0, nodes * stretches.most[at] / batch.requests)
    sizes = np.array([config.gpus_per_replica for config in estimates.serving.configs], dtype=np.int64)
    per_node = problem.table.gpus_per_node[stretches.offer[at]]
    hours = stretches.needed_s(at, nodes, share * batch.requests) / HOUR_S
    usd = stretches.unit_usd[at] * batch.requests
    replicas = nodes * (per_node // sizes[stretches.choice[at]])
    return _Ways(stretches.offer[at], nodes, replicas, hours, usd, share)


def _due_s(problem: Problem, service: Serving, ends_s: Mapping[str, float]) -> float:
    """When the service starts: at its own time, or at the end of the cheapest way of the run that it
    follows.
    """
    due = ends_s.get(service.starts_after or "", 0.0)
    due = problem.start_of(service, due)
    return min(max(due, float(problem.t0_s)), float(problem.end_s))


def _of_service(
    problem: Problem, estimates: Estimates, service: Serving, due_s: float
) -> tuple[_Ways, GateLog]:
    """The service on each offer alone, in the configuration that needs the fewest node-hours."""
    log = build_fleet_case(problem, estimates, service).log
    table = problem.table
    each = Replicas.of(problem, estimates, service)
    demand = hourly_demand(problem, service)
    starts = np.arange(len(demand)) * HOUR_S
    length = np.clip(
        np.minimum(starts + HOUR_S, problem.end_of(service)) - np.maximum(starts, due_s), 0, HOUR_S
    )
    node_hours, peak, replicas = _fleet_sizes(problem, service, each, demand, length / HOUR_S)
    hours = float(length.sum()) / HOUR_S
    config = node_hours.argmin(axis=1)
    passing = open_gates(problem, service).passing & ~table.is_window
    offers = np.flatnonzero(passing & np.isfinite(node_hours.min(axis=1))[table.sku_of])
    kind = table.sku_of[offers]
    nodes = peak[kind, config[kind]]
    held = node_hours[kind, config[kind]]
    # Capacity with a minimum term of more than an hour cannot follow the hours of the traffic.
    lasting = table.min_s[offers] > HOUR_S
    billed = table.billed_s(offers, np.full(len(offers), round(hours * HOUR_S))) / HOUR_S
    held = np.where(lasting, nodes * billed, held)
    usd = table.price_usd[offers] * held + table.upfront_usd[offers] * nodes
    unit = each.nodes[kind, config[kind]]
    share = np.minimum(1.0, table.stock_nodes[offers] // unit * unit / np.maximum(1, nodes))
    # An offer that ends before the horizon carries the hours before that.
    there_s = np.clip(table.gone_s[offers], due_s, problem.end_s) - due_s
    share *= there_s / max(1.0, problem.end_s - due_s)
    order = np.argsort(usd, kind="stable")
    order = order[share[order] > 0]
    return (
        _Ways(
            offers[order],
            nodes[order],
            replicas[kind, config[kind]][order],
            np.full(len(order), hours),
            usd[order],
            share[order],
        ),
        log,
    )


def _fleet_sizes(
    problem: Problem, service: Serving, each: Replicas, demand: Floats, length: Floats
) -> tuple[Floats, Ints, Ints]:
    """Node-hours [K, C] of the whole service on one kind in one configuration (inf: it does not fit), and
    nodes and replicas [K, C] at the peak.
    """
    rules = fleet_rules(problem, service)
    levels, of_hour = np.unique(demand[length > 0], return_inverse=True)
    weight = np.bincount(of_hour.reshape(-1), length[length > 0], len(levels))
    node_hours = np.full(each.fits.shape, np.inf)
    peak, replicas = np.zeros(each.fits.shape, dtype=np.int64), np.zeros(each.fits.shape, dtype=np.int64)
    kind, config = np.nonzero(each.worth)
    rate = each.largest[kind, config][:, None]
    needed = np.maximum(np.ceil(levels[None, :] / rate * CARRIED).astype(np.int64), int(rules.idle) + 1)
    needed += rules.spare
    apart = rules.places * np.maximum(1, np.ceil(rules.least_share * levels[None, :] / rate * CARRIED))
    needed = np.where(levels[None, :] > 0, np.maximum(needed, apart.astype(np.int64)), 0)
    units = -(-needed // each.replicas[kind, config][:, None])
    nodes = units * each.nodes[kind, config][:, None]
    node_hours[kind, config] = (nodes * weight[None, :]).sum(axis=1)
    peak[kind, config] = nodes.max(axis=1, initial=0)
    replicas[kind, config] = needed.max(axis=1, initial=0)
    return node_hours, peak, replicas


def _told(
    problem: Problem, workload: Run | Serving, ways: _Ways, log: GateLog, places: int
) -> WorkloadEstimate:
    cheapest = _cheapest_usd(problem, ways, np.arange(len(ways)), places)
    dropped = {gate: count for gate, count in log.dropped.items() if count}
    if cheapest is None:
        obstacle = log.obstacle or Obstacle.STOCK
        return WorkloadEstimate(workload.name, workload.kind, 0, None, None, (), obstacle, dropped)
    gpus = sorted(_by_gpu(problem, ways, places), key=lambda one: (one.cheapest_usd, one.gpu))
    median = max(cheapest, float(np.median(ways.usd[_of_sellers(problem, ways)])))
    return WorkloadEstimate(
        workload=workload.name,
        kind=workload.kind,
        offers=len(ways),
        cheapest_usd=_money(cheapest),
        median_usd=_money(median),
        gpus=tuple(gpus),
        dropped=dropped,
    )


def _by_gpu(problem: Problem, ways: _Ways, places: int) -> Iterator[GpuEstimate]:
    """The kinds of GPU whose own stock can carry the workload."""
    table = problem.table
    names = _gpus(problem, ways)
    of_sellers = _of_sellers(problem, ways)
    for gpu in dict.fromkeys(names):
        mine = np.array([way for way, name in enumerate(names) if name == gpu], dtype=np.int64)
        cheapest = _cheapest_usd(problem, ways, mine, places)
        if cheapest is None:
            continue
        sellers = mine[np.isin(mine, of_sellers)]
        cheaper = sellers[: (len(sellers) + 1) // 2]
        nodes = ways.nodes[cheaper]
        gpus = nodes * table.gpus_per_node[ways.offer[cheaper]]
        replicas = None if ways.replicas is None else ways.replicas[cheaper]
        yield GpuEstimate(
            gpu=gpu,
            provider=table.offers[int(ways.offer[mine[0]])].provider,
            offers=len(mine),
            sellers=len(sellers),
            gpus_least=int(gpus.min()),
            gpus_most=int(gpus.max()),
            nodes_least=int(nodes.min()),
            nodes_most=int(nodes.max()),
            replicas_least=None if replicas is None else int(replicas.min()),
            replicas_most=None if replicas is None else int(replicas.max()),
            hours_least=round(float(ways.hours[cheaper].min()), 2),
            hours_most=round(float(ways.hours[cheaper].max()), 2),
            cheapest_usd=_money(cheapest),
            median_usd=_money(max(cheapest, float(np.median(ways.usd[sellers])))),
        )


def _gpus(problem: Problem, ways: _Ways) -> list[str]:
    return [problem.table.skus[kind].gpu for kind in problem.table.sku_of[ways.offer].tolist()]


def _of_sellers(problem: Problem, ways: _Ways) -> Ints:
    """The cheapest way of each seller on each kind of GPU. A seller with many sizes of node counts once."""
    sellers = [problem.table.offers[offer].provider for offer in ways.offer.tolist()]
    first: dict[tuple[str, str], int] = {}
    for way, key in enumerate(zip(sellers, _gpus(problem, ways), strict=True)):
        first.setdefault(key, way)
    return np.array(list(first.values()), dtype=np.int64)


def _cheapest_usd(problem: Problem, ways: _Ways, mine: Ints, places: int) -> float | None:
    """The cost of filling a workload with the stock of its cheapest offers ``mine``, equally over ``places``;
    None if the stock is too small. Offers that are cut from the same GPUs have them once.
    """
    table, left, usd = problem.table, 1.0, 0.0
    in_pool: dict[int, float] = {}
    in_place: dict[int, float] = {}
    for way in mine.tolist():
        offer = int(ways.offer[way])
        pool, place = int(table.pools.of[offer]), int(table.zone_of[offer])
        room = min(float(ways.share[way]), left, in_place.get(place, 1.0 / places))
        if pool >= 0 and ways.share[way] < 1.0:
            needs = max(1, int(ways.nodes[way] * table.gpus_per_node[offer]))
            free = in_pool.setdefault(pool, float(table.pools.gpus[pool]))
            room = min(room, free / needs)
            in_pool[pool] = free - room * needs
        in_place[place] = in_place.get(place, 1.0 / places) - room
        usd += room * float(ways.usd[way])
        left -= room
        if left <= 1 - CARRIED:
            return usd
    return None


def _money(usd: float) -> Decimal:
    return to_cents(Decimal(usd))
