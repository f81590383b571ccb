"""What stood in the way of a workload that was left out, and the smallest change that lets it in.

A fix is tried before it is told: the gates run again with one rule changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from broker.domain.offer import HostKind, Offer
from broker.domain.plan import Obstacle, Unplaced
from broker.domain.workload import Batch, Policy, Serving, Training, Workload
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column, in_cents, in_usd
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.improve import blockers
from optimizer.placement.ladders import best_ladders, build_service_column, free_nodes
from optimizer.placement.moves import room_beside
from optimizer.placement.problem import Problem
from optimizer.placement.quotas import most_held, quota_rows, without_quotas
from optimizer.placement.run_builder import build_run_candidates
from optimizer.placement.runner_up import main_piece, named
from optimizer.placement.runs import last_second
from optimizer.placement.solve import Solution

FAR = timedelta(days=365)
PolicyChange = Callable[[Policy], Policy]


@dataclass(frozen=True, slots=True)
class _Fix:
    """A rule to drop, and how to say it of the offer that then passes."""

    gates: frozenset[Obstacle]
    change: PolicyChange
    say: Callable[[Offer], str]


def _reliability(offer: Offer) -> str:
    return f"{offer.reliability:g}" if offer.reliability is not None else "none"


FIXES = (
    _Fix(frozenset({Obstacle.TIER}), lambda p: replace(p, tiers=None), lambda o: f"allow tier {o.tier}"),
    _Fix(
        frozenset({Obstacle.RESIDENCY}),
        lambda p: replace(p, countries=None, geography=None),
        lambda o: f"allow country {o.country or 'unknown'}",
    ),
    _Fix(
        frozenset({Obstacle.COMPLIANCE}),
        lambda p: replace(p, compliance=()),
        lambda o: f"ask for no more compliance than {', '.join(sorted(o.compliance)) or 'none'}",
    ),
    _Fix(
        frozenset({Obstacle.POLICY}),
        lambda p: replace(p, regions=None, providers_only=None, providers_exclude=()),
        lambda o: f"allow provider {o.provider} in region {o.region}",
    ),
    _Fix(
        frozenset({Obstacle.POLICY}),
        lambda p: replace(p, min_reliability=None),
        lambda o: f"ask for no more reliability than {_reliability(o)}",
    ),
    _Fix(
        frozenset({Obstacle.POLICY}),
        lambda p: replace(p, hosts=tuple(HostKind), min_reliability=None),
        lambda o: f"hosts: [datacenter, community], as {o.provider} in {o.region} lends them",
    ),
)

TEXTS = {
    Obstacle.POLICY: "allow more providers, regions or hosts",
    Obstacle.TIER: "allow more tiers",
    Obstacle.RESIDENCY: "allow more countries",
    Obstacle.COMPLIANCE: "ask for fewer compliance tags",
    Obstacle.STOCK: "wait for stock: no allowed offer has enough nodes now",
    Obstacle.AVAILABILITY: "an earlier end: every allowed offer is gone before it",
    Obstacle.GPU_UNKNOWN: "add the GPUs on offer to config/gpus.csv, or measure the workload on them",
    Obstacle.PRECISION: "allow another precision, or another engine",
    Obstacle.MEMORY: "more GPUs in a run, a smaller model, or a precision of fewer bytes",
    Obstacle.DISK: "hosts with more disk and memory, or a precision of fewer bytes",
    Obstacle.FABRIC: "fewer GPUs at least, or offers whose nodes are joined by a fabric",
    Obstacle.LATENCY: "a looser SLO",
    Obstacle.DEADLINE: "a later deadline",
    Obstacle.WINDOW: "a later deadline, or tiers that are not windows",
    Obstacle.REDUNDANCY: "fewer zones",
}


def explain_unplaced(candidates: Candidates, solution: Solution) -> tuple[Unplaced, ...]:
    """One line for each workload that was left out, in the request's order."""
    left = solution.choice.left_out
    return tuple(
        _unplaced(candidates, solution, workload)
        for workload in candidates.problem.request.workloads
        if workload.name in left
    )


def _unplaced(candidates: Candidates, solution: Solution, workload: Workload) -> Unplaced:
    log = candidates.log(workload.name)
    held_back = _quota(candidates, solution, workload)
    if held_back is not None:
        return held_back
    if log.obstacle is not None:
        return Unplaced(workload.name, log.obstacle, _nearest_fix(candidates, workload, log.obstacle))
    cheapest = _cheapest_column(candidates, solution, workload)
    if cheapest is None:
        return _without_column(candidates, workload)
    if workload.unplaced_usd is not None and cheapest.total_cents >= in_cents(workload.unplaced_usd):
        text = f"unplaced_usd above {in_usd(cheapest.total_cents)}, the cheapest way found to place it"
        return Unplaced(workload.name, Obstacle.PRICE, text)
    budget = candidates.problem.request.budget_usd
    spent = sum(column.cost_cents for column in solution.choice.columns.values())
    if budget is not None and spent + cheapest.cost_cents > in_cents(budget):
        more = in_usd(spent + cheapest.cost_cents - in_cents(budget))
        return Unplaced(workload.name, Obstacle.BUDGET, f"a budget {more} USD higher")
    return Unplaced(workload.name, Obstacle.CONTENTION, _contention_fix(candidates, solution, cheapest))


def _quota(candidates: Candidates, solution: Solution, workload: Workload) -> Unplaced | None:
    """The quota without which the workload would have a way that it can pay; None: it is not a quota."""
    problem = candidates.problem
    if not quota_rows(problem):
        return None
    cheapest = _cheapest_column(candidates, solution, workload) if not _is_out(candidates, workload) else None
    if cheapest is not None:
        room = room_beside(candidates, solution.choice.columns, (workload.name,))
        row = room.ledger.quota_against(cheapest)
        worth = workload.unplaced_usd is None or cheapest.total_cents < in_cents(workload.unplaced_usd)
        if row is None or not worth:
            return None
        held = [*room.ledger.quota_taken[quota_rows(problem).index(row)], *row.held]
        more = most_held([*held, *row.spans_of(cheapest)]) - row.limit
        text = f"a quota of {row.limit + more} {row.unit} at {row.provider}, {more} more"
        return Unplaced(workload.name, Obstacle.QUOTA, text)
    freed = replace(workload, policy=replace(workload.policy, quotas=()))
    offer = _cheapest_passing(candidates, without_quotas(problem), freed)
    limits = [row for row in quota_rows(problem) if offer is not None and row.provider == offer.provider]
    if offer is None or not limits:
        return None
    return Unplaced(workload.name, Obstacle.QUOTA, f"a higher quota than {limits[0]}, for {offer.offer_id}")


def _is_out(candidates: Candidates, workload: Workload) -> bool:
    """Whether no candidate of it passed the gates."""
    return candidates.log(workload.name).obstacle is not None


def _contention_fix(candidates: Candidates, solution: Solution, cheapest: Column) -> str:
    """The offer that is short, and who holds it."""
    piece = main_piece(cheapest)
    nodes = max(n for _, _, n in piece.spans)
    holders = blockers(candidates.problem, solution.choice.columns, cheapest)
    held = f", now held by {named(holders)}" if holders else ""
    more = f"{nodes} more {'node' if nodes == 1 else 'nodes'}"
    return f"{more} of {candidates.problem.table.offers[piece.offer].offer_id}{held}"


def _without_column(candidates: Candidates, workload: Workload) -> Unplaced:
    if isinstance(workload, Serving) and workload.starts_after is not None:
        text = f"let {workload.starts_after} end earlier: nothing of the horizon is left to serve"
        return Unplaced(workload.name, Obstacle.DEPENDENCY, text)
    spread = isinstance(workload, Serving) and workload.redundancy.zones > 1
    obstacle = Obstacle.REDUNDANCY if spread else Obstacle.STOCK
    return Unplaced(workload.name, obstacle, _nearest_fix(candidates, workload, obstacle))


def _cheapest_column(candidates: Candidates, solution: Solution, workload: Workload) -> Column | None:
    mine = [c for c in solution.columns if c.workload == workload.name]
    if mine:
        return min(mine, key=lambda column: column.total_cents)
    if not isinstance(workload, Serving) or workload.starts_after is not None:
        return None
    case = candidates.fleets[workload.name]
    built = best_ladders(candidates.problem, case, free_nodes(candidates.problem), None, 1)
    return build_service_column(candidates.problem, case, built[0], None) if built else None


def _nearest_fix(candidates: Candidates, workload: Workload, obstacle: Obstacle) -> str:
    """The first change that was tried and worked; else what the obstacle says in general."""
    tried = (*_policy_fixes(candidates, workload, obstacle), *_own_fixes(candidates, workload))
    return next((text for text in tried if text), TEXTS.get(obstacle, str(obstacle)))


def _policy_fixes(candidates: Candidates, workload: Workload, obstacle: Obstacle) -> Iterator[str]:
    for fix in sorted(FIXES, key=lambda fix: obstacle not in fix.gates):
        policy = candidates.problem.request.policy
        if fix.change(policy) == policy and fix.change(workload.policy) == workload.policy:
            continue
        request = replace(candidates.problem.request, policy=fix.change(policy))
        problem = replace(candidates.problem, request=request)
        changed = replace(workload, policy=fix.change(workload.policy))
        offer = _cheapest_passing(candidates, problem, changed)
        if offer is not None:
            yield fix.say(offer)


def _own_fixes(candidates: Candidates, workload: Workload) -> Iterator[str]:
    """Changes of the workload itself, the gentlest first."""
    problem = candidates.problem
    if isinstance(workload, Training | Batch):
        yield _later_deadline(candidates, workload)
    if isinstance(workload, Training) and not workload.interruptible:
        offer = _cheapest_passing(candidates, problem, replace(workload, interruptible=True))
        yield f"interruptible: true, for {offer.offer_id}" if offer else ""
    if isinstance(workload, Training) and workload.gpus_min > 1:
        offer = _cheapest_passing(candidates, problem, replace(workload, gpus_min=1))
        yield f"gpus.min of {offer.sku.gpus_per_node} or less, as {offer.offer_id} allows" if offer else ""
    if isinstance(workload, Serving) and workload.redundancy.zones > 1:
        fewer = replace(workload.redundancy, zones=workload.redundancy.zones - 1)
        offer = _cheapest_passing(candidates, problem, replace(workload, redundancy=fewer))
        yield f"redundancy over {fewer.zones} {'zone' if fewer.zones == 1 else 'zones'}" if offer else ""


def _later_deadline(candidates: Candidates, run: Training | Batch) -> str:
    problem = candidates.problem
    late = replace(run, deadline=run.deadline + FAR)
    found = build_run_candidates(problem, candidates.estimates, late)
    if not len(found):
        return ""
    hours = math.ceil((float(found.end_s.min()) - last_second(problem, run)) / 3600)
    return f"deadline {hours} h later" if hours > 0 else ""


def _cheapest_passing(candidates: Candidates, problem: Problem, workload: Workload) -> Offer | None:
    """The cheapest offer that the gates let through for a changed workload."""
    estimates = candidates.estimates
    if isinstance(workload, Serving):
        case = build_fleet_case(problem, estimates, workload)
        if case.log.obstacle is not None:
            return None
        return problem.table.offers[int(case.units.offer[int(np.argmin(case.units.usd_per_hour))])]
    found = build_run_candidates(problem, estimates, workload)
    if not len(found):
        return None
    return problem.table.offers[int(found.offer[int(np.argmin(found.total_usd))])]
