"""The bound: a relaxation of the master in which every candidate takes part.

Runs keep their exact columns and one ghost each for all candidates without a column, at the least of
their costs and holding nothing. Services are one ghost for each start, at the least that any fleet
costs (``fleet_bound``), holding nothing. Stock is shared among exact columns only; budget and order
stay. Any plan over the candidate set is a choice of this model at most as dear, so what the solver
proves about the model is a lower bound on cost + penalty.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from optimizer.placement.candidates import Candidates, floor_cents
from optimizer.placement.columns import Column
from optimizer.placement.master import Limits, solve_master
from optimizer.placement.run_pool import GHOST_END_S, RunPool, ghost_of

MOST_PLACEMENTS = 32


def separate_bound_cents(candidates: Candidates, pools: Mapping[str, RunPool]) -> int:
    """Each workload for itself, nothing shared: valid at once and without a solver."""
    total = 0
    for name, pool in pools.items():
        usd = float(pool.total_usd.min(initial=np.inf))
        total += _or_left_out(
            candidates, name, usd, 1 + MOST_PLACEMENTS * len(candidates.problem.followers(name))
        )
    for service in candidates.problem.services():
        if service.starts_after is None:
            total += _or_left_out(
                candidates,
                service.name,
                candidates.least_service_usd(service, None),
                _placements(candidates, service.name),
            )
    return total


def _or_left_out(candidates: Candidates, name: str, usd: float, placements: int) -> int:
    workload = candidates.problem.request.workload(name)
    if workload.unplaced_usd is not None:
        usd = min(usd, float(workload.unplaced_usd))
    return floor_cents(usd, placements) if np.isfinite(usd) else 0


def _placements(candidates: Candidates, service: str) -> int:
    """The most placements that rounding may have touched."""
    units = candidates.fleets[service].units
    return int(min(MOST_PLACEMENTS, len(np.unique(units.offer))))


def relaxed_bound_cents(candidates: Candidates, pools: Mapping[str, RunPool], limits: Limits) -> int | None:
    """What the solver proves about the relaxation; None when it proved nothing in time."""
    columns: list[Column] = []
    for pool in pools.values():
        columns.extend(pool.columns)
        ghost = ghost_of(candidates, pool)
        if ghost is not None:
            columns.append(ghost)
    columns.extend(_service_ghosts(candidates, columns))
    found = solve_master(candidates.problem, columns, limits)
    if found is None or not np.isfinite(found.bound_cents):
        return None
    return int(np.floor(found.bound_cents * (1 - 1e-12) + 1e-6))


def _service_ghosts(candidates: Candidates, columns: list[Column]) -> list[Column]:
    ghosts = []
    for service in candidates.problem.services():
        placements = _placements(candidates, service.name)
        if service.starts_after is None:
            usd = candidates.least_service_usd(service, None)
            if np.isfinite(usd):
                ghosts.append(Column(service.name, (), floor_cents(usd, placements)))
            continue
        for end in sorted({c.end_s for c in columns if c.workload == service.starts_after}):
            usd = 0.0 if end == GHOST_END_S else candidates.least_service_usd(service, end)
            if np.isfinite(usd):
                ghosts.append(Column(service.name, (), floor_cents(usd, placements), after_s=end))
    return ghosts
