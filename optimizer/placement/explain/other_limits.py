"""Fleets of one service under other limits of pools and kinds of GPU while everything else stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from broker.domain.planning.workload import FleetLimits, PlanRequest, Policy, Serving
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.explain.trials import Trials
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.transfers import placed_after


def fleets_under(
    trials: Trials,
    service: Serving,
    mine: Column,
    limits: FleetLimits,
    offers: Sequence[int] | None = None,
) -> list[Column]:
    """Fleets with the start of ``mine`` on some offers (None: on any) that fit in what other workloads
    leave.
    """
    trial = trials.open(_under(trials.candidates.problem.request, service, limits), service.name)
    if trial is None or trial.candidates.log(service.name).obstacle is not None:
        return []
    problem, case = trial.candidates.problem, trial.candidates.fleets[service.name]
    free = remaining_nodes(trial.candidates, case.service, trial.room.ledger, mine.after_s)
    if offers is not None:
        inside = np.zeros_like(free)
        inside[list(offers)] = free[list(offers)]
        free = inside
    made = model_fleets(problem, case, free, [mine.after_s])
    linked = [placed_after(problem, column, mine.after_place) for column in made]
    return [column for column in linked if trial.room.allows(column)]


def _under(request: PlanRequest, service: Serving, limits: FleetLimits) -> PlanRequest:
    """The request with these limits on a service's fleet, overriding the policies."""
    changed = replace(service, fleet=limits, policy=_unlimited(service.policy))
    workloads = tuple(changed if w.name == service.name else w for w in request.workloads)
    return replace(request, policy=_unlimited(request.policy), workloads=workloads)


def _unlimited(policy: Policy) -> Policy:
    return replace(policy, fleet=FleetLimits())
