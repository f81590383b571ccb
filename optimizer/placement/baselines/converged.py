"""The baseline of one pool for everything: one kind of node at one seller, always on, for the peak of all
work.

What runs on the pool is a valid plan: runs on few nodes, services with their peak in every hour. The pool
consists of the most nodes of each offer that this plan holds at once, for the whole horizon.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.market.offer import Tier
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.fleets.cases import Replicas
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, Piece, price_cents
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import TIERS, Bools, Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.transfers import placed_after
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True)
class ConvergedPool:
    """A pool and what runs on it. ``total_cents``: the pool, lateness, delay and copies of data."""

    total_cents: int
    cost_cents: int
    nodes: int
    chosen: Mapping[str, Column]


def steady_groups(problem: Problem) -> dict[str, Bools]:
    """Offers [O] of each kind of node at each seller that can be held for the whole horizon."""
    table = problem.table
    steady = ~table.is_window & (table.tier_of != TIERS.index(Tier.SPOT)) & problem.allowed
    steady &= table.gone_s >= problem.end_s
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index in np.flatnonzero(steady):
        offer = table.offers[int(index)]
        found[f"{offer.sku.gpu} x{offer.sku.gpus_per_node} at {offer.provider}"].append(int(index))
    rows = np.arange(len(table))
    return {name: np.isin(rows, offers) for name, offers in sorted(found.items())}


def least_pool_cents(candidates: Candidates, mask: Bools) -> float | str:
    """Lower bound on a pool of offers ``mask`` [O]: at the end, all services hold their peak in whole nodes.

    Returns instead the name of a workload that can run on none of the offers.
    """
    problem, estimates, table = candidates.problem, candidates.estimates, candidates.problem.table
    nodes = 1.0 if candidates.runs else 0.0
    held = 0.0
    for service in problem.services():
        inside = np.flatnonzero(mask & open_gates(problem, service).passing)
        each = Replicas.of(problem, estimates, service)
        per_node = np.where(each.worth, each.rate / each.nodes, 0.0).max(axis=1)[table.sku_of[inside]]
        if len(np.unique(table.zone_of[inside[per_node > 0]])) < max(1, service.redundancy.zones):
            return service.name
        peak = float(candidates.fleets[service.name].demand.max(initial=0.0))
        held += max(float(service.redundancy.zones), np.ceil(peak / float(per_node.max()) * (1 - 1e-9)))
    for run in problem.runs():
        found = candidates.runs[run.name]
        if not np.isfinite(found.rest_usd) and not mask[found.offer].any():
            return run.name
    hours = (problem.end_s - problem.t0_s) / HOUR_S
    return 100 * max(nodes, held) * hours * float(table.price_usd[mask].min())


def converged_pool(candidates: Candidates) -> ConvergedPool | None:
    """The pool on the offers that the problem allows; None if it cannot carry everything.

    Runs take the fewest nodes, and among these the option that ends first; then each service gets its peak.
    """
    ledger, chosen = Ledger(candidates.problem), dict[str, Column]()
    names = sorted(candidates.runs) + sorted(candidates.fleets)
    if any(candidates.log(name).obstacle is not None for name in names):
        return None
    for name in names:
        ways = _runs(candidates, name) if name in candidates.runs else _flat(candidates, name, ledger, chosen)
        column = next((way for way in ways if ledger.fits(way)), None)
        if column is None:
            return None
        ledger.add(column)
        chosen[name] = column
    return _held_throughout(candidates.problem, chosen)


def _runs(candidates: Candidates, name: str) -> Iterator[Column]:
    found = candidates.runs[name]
    for index in np.lexsort((found.end_s, found.nodes))[: TUNING.baselines.most_runs_tried]:
        column = build_run_column(candidates.problem, candidates.estimates, found, int(index))
        if column is not None:
            yield column


def _flat(
    candidates: Candidates, name: str, ledger: Ledger, chosen: Mapping[str, Column]
) -> Iterator[Column]:
    """Fleets of a service that hold its peak in every hour, cheapest first."""
    problem, case = candidates.problem, candidates.fleets[name]
    flat = replace(case, demand=np.full_like(case.demand, case.demand.max(initial=0.0)))
    after = case.service.starts_after
    after_s, place = (None, None) if after is None else chosen[after].end
    free = remaining_nodes(candidates, case.service, ledger, after_s)
    made = model_fleets(problem, flat, free, [after_s])
    linked = [placed_after(problem, column, place) for column in made]
    yield from sorted(linked, key=lambda column: column.total_cents)


def _held_throughout(problem: Problem, chosen: Mapping[str, Column]) -> ConvergedPool | None:
    """The pool for these columns; None if stock or quotas do not allow it for the whole horizon."""
    span = (problem.t0_s, problem.end_s)
    most = _most_at_once(chosen)
    pieces = tuple(
        Piece(offer, 0, ((*span, nodes),), price_cents(problem, offer, ((*span, nodes),)))
        for offer, nodes in sorted(most.items())
    )
    cost = sum(piece.cost_cents for piece in pieces)
    if not Ledger(problem).fits(Column(min(chosen), pieces, cost)):
        return None
    other_cents = sum(
        c.penalty_cents + c.delay_cents + c.fallback_cents + c.transfer_cents for c in chosen.values()
    )
    return ConvergedPool(cost + other_cents, cost, sum(most.values()), chosen)


def _most_at_once(chosen: Mapping[str, Column]) -> dict[int, int]:
    """The most nodes of each offer that are held at one instant."""
    changes: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for column in chosen.values():
        for piece in column.pieces:
            for start, end, nodes in piece.spans:
                changes[piece.offer][start] += nodes
                changes[piece.offer][end] -= nodes
    most = {}
    for offer, change in changes.items():
        level = most[offer] = 0
        for at in sorted(change):
            level += change[at]
            most[offer] = max(most[offer], level)
    return most
