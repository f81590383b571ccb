"""Lower bounds on the cost of all workloads within a group of offers, to try groups in the right order.

Each workload is taken alone, at the lowest price of each kind of node in the group. G offers of the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.domain.planning.workload import Batch, Serving
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.fleets.cases import Replicas
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Ints, Problem
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runs.candidates import Run, first_second
from optimizer.placement.runs.parts import is_divisible, least_parts_usd
from optimizer.placement.runtime.tuning import TUNING


def least_cents(candidates: Candidates, placed: Sequence[str], mask: Bools) -> float | str:
    """Lower bound on the cost of all workloads on the offers ``mask`` [O]; the name of one that cannot be
    placed there.
    """
    problem, total = candidates.problem, 0.0
    restricted = problem.restricted(mask)
    for name in placed:
        workload = problem.request.workload(name)
        if isinstance(workload, Serving):
            usd = _least_service_usd(candidates, workload, restricted)
        else:
            usd = _least_run_usd(candidates, workload, restricted)
        if not np.isfinite(usd):
            return name
        total += usd
    return total * 100


def _least_run_usd(candidates: Candidates, run: Run, restricted: Problem) -> float:
    """Uses the known candidates if one lies in the group or no candidate was left out; otherwise builds new
    ones.
    """
    if isinstance(run, Batch) and is_divisible(run):
        return least_parts_usd(restricted, candidates.estimates, run)
    found = candidates.runs[run.name]
    inside = restricted.allowed[found.offer]
    least = float(found.total_usd[inside].min(initial=np.inf))
    if np.isfinite(least) or not np.isfinite(found.rest_usd):
        return least
    anew = build_run_candidates(
        restricted, candidates.estimates, run, TUNING.columns.few_candidates, bounded=False
    )
    return float(anew.total_usd.min(initial=np.inf))


def _least_service_usd(candidates: Candidates, service: Serving, restricted: Problem) -> float:
    """Each hour at the lowest price per request, but at least one node in each zone; inf if the group has too
    few zones or too little capacity for the peak.
    """
    case, estimates = candidates.fleets[service.name], candidates.estimates
    table, opened = restricted.table, open_gates(restricted, service)
    each = Replicas.of(restricted, estimates, service)
    passing: Ints = np.flatnonzero(opened.passing)
    first, usd = _first_hour(candidates, service, restricted), 0.0
    for stage, share in enumerate((np.ones(each.worth.shape), each.later_share)):
        per_node = np.where(each.worth, each.rate * share / each.nodes, 0.0).max(axis=1)
        rate = per_node[table.sku_of[passing]]
        offers, rate = passing[rate > 0], rate[rate > 0]
        if len(np.unique(table.zone_of[offers])) < case.zones:
            return float("inf")
        spare = case.spare * float((each.largest * share)[each.worth].min())
        demand = np.where((case.demand > 0) & (case.stage_of == stage), case.demand + spare, 0.0)[first:]
        if float(rate @ table.stock_nodes[offers]) < float(demand.max(initial=0.0)) * (1 - 1e-9):
            return float("inf")
        price = table.price_usd[offers]
        hourly = np.maximum(demand[:-1] * float((price / rate).min()), case.zones * float(price.min()))
        usd += float(hourly[demand[:-1] > 0].sum())
    return usd


def _first_hour(candidates: Candidates, service: Serving, restricted: Problem) -> int:
    """The latest hour in which the service may start."""
    if service.starts_after is None:
        return int(restricted.start_of(service, float(restricted.t0_s)) // HOUR_S) + 1
    found = candidates.runs[service.starts_after]
    ends = found.end_s[restricted.allowed[found.offer]]
    latest = float(ends.max(initial=first_second(restricted, found.run)))
    return int(restricted.start_of(service, latest) // HOUR_S) + 1
