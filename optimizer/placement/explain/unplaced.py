"""Why a workload was left out, and the changes that would admit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from broker.domain.basics.money import usd_words
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Fix, Obstacle, Unplaced
from broker.domain.planning.workload import Serving, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import free_nodes
from optimizer.placement.explain.fixes import Fixer
from optimizer.placement.fleets.cases import build_fleet_case
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, in_cents, in_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.quotas import QuotaRow, most_held, quota_rows, without_quotas
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.improve import blockers
from optimizer.placement.search.moves import cheapest_fleet, remaining_capacity
from optimizer.placement.search.runner_up import main_piece, named
from optimizer.placement.search.solve import Solution

TEXTS = {
    Obstacle.POLICY: "allow more providers, regions, hosts or GPUs",
    Obstacle.TIER: "allow more tiers",
    Obstacle.RESIDENCY: "allow more countries",
    Obstacle.COMPLIANCE: "ask for fewer compliance tags",
    Obstacle.STOCK: "wait for stock: no allowed offer has enough nodes now",
    Obstacle.AVAILABILITY: "an earlier end: every allowed offer is gone before it",
    Obstacle.GPU_UNKNOWN: "add the GPUs on offer to config/gpus.csv, or measure the workload on them",
    Obstacle.PRECISION: "allow another precision, or another engine",
    Obstacle.SIZE: "a number of GPUs that some number of nodes has",
    Obstacle.MEMORY: "more GPUs in a run, a smaller model, or a precision of fewer bytes",
    Obstacle.DISK: "hosts with more disk and memory, or a precision of fewer bytes",
    Obstacle.FABRIC: "fewer GPUs at least, or offers whose nodes are joined by a fabric",
    Obstacle.LATENCY: "a looser SLO",
    Obstacle.DEADLINE: "a later deadline",
    Obstacle.WINDOW: "a later deadline, or tiers that are not windows",
    Obstacle.REDUNDANCY: "fewer zones",
}


def explain_unplaced(
    candidates: Candidates,
    solution: Solution,
    work_s: float,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[tuple[Unplaced, ...], int]:
    """One entry for each left-out workload, in the request's order; and for how many no change was tried.

    ``work_s``: counted seconds for trying changes; ``ended``: whether the time is over.
    """
    placed = solution.choice.columns
    out = [w for w in candidates.problem.request.workloads if w.name not in placed]
    if not out:
        return (), 0
    found = {workload.name: _stopped(candidates, solution, workload) for workload in out}
    fixer = Fixer(candidates, placed, [w for w in out if not _waits_for_left_out(placed, w)], work_s)
    told: list[Unplaced] = []
    untried = 0
    for workload in out:
        stopped = found[workload.name]
        fixes: tuple[Fix, ...] = ()
        waits = _waits_for_left_out(placed, workload)
        if not waits and len(told) >= TUNING.explain.least_tried and ended():
            untried += 1
        elif not waits and stopped.quota is not None:
            fixes = fixer.quota_fix(workload, *stopped.quota)
        elif not waits:
            fixes = fixer.fixes(workload, stopped.reason)
        nearest = fixes[0].says if fixes else stopped.text
        told.append(Unplaced(workload.name, stopped.reason, nearest, fixes))
    return tuple(told), untried


@dataclass(frozen=True, slots=True)
class _Stopped:
    """The obstacle, and the advice if no change of the document is found.

    ``quota``: the one that excludes the workload, and the limit that would suffice.
    """

    reason: Obstacle
    text: str
    quota: tuple[QuotaRow, int] | None = None


def _waits_for_left_out(placed: Mapping[str, Column], workload: Workload) -> bool:
    """Whether it is a service whose run is left out too, so that no change of its own admits it."""
    return isinstance(workload, Serving) and workload.starts_after not in (None, *placed)


def _stopped(candidates: Candidates, solution: Solution, workload: Workload) -> _Stopped:
    log = candidates.log(workload.name)
    held_back = _quota(candidates, solution, workload)
    if held_back is not None:
        return held_back
    if log.obstacle is not None:
        return _Stopped(log.obstacle, TEXTS.get(log.obstacle, str(log.obstacle)))
    if isinstance(workload, Serving) and _waits_for_left_out(solution.choice.columns, workload):
        return _behind_run(candidates, solution, workload)
    cheapest = _cheapest_column(candidates, solution, workload)
    if cheapest is None:
        return _without_column(workload)
    if workload.unplaced_usd is not None and cheapest.total_cents >= in_cents(workload.unplaced_usd):
        text = f"unplaced_usd above {in_usd(cheapest.total_cents):,}, the cheapest way found to place it"
        return _Stopped(Obstacle.PRICE, text)
    followers = _stopping_followers(candidates, solution, cheapest)
    if followers:
        text = f"a way to place {named(followers)}, which must follow it"
        return _Stopped(Obstacle.DEPENDENCY, text)
    budget = candidates.problem.request.held_budget_usd
    spent = sum(column.counted_cents for column in solution.choice.columns.values())
    if budget is not None and spent + cheapest.counted_cents > in_cents(budget):
        more = in_usd(spent + cheapest.counted_cents - in_cents(budget))
        return _Stopped(Obstacle.BUDGET, f"a budget {usd_words(more)} higher")
    return _Stopped(Obstacle.CONTENTION, _contention_fix(candidates, solution, cheapest))


def _quota(candidates: Candidates, solution: Solution, workload: Workload) -> _Stopped | None:
    """The quota without which the workload would have an affordable option; None if no quota excludes it."""
    problem = candidates.problem
    if not quota_rows(problem):
        return None
    cheapest = _cheapest_column(candidates, solution, workload) if not _is_out(candidates, workload) else None
    if cheapest is not None:
        room = remaining_capacity(candidates, solution.choice.columns, (workload.name,))
        row = room.ledger.quota_against(cheapest)
        worth = workload.unplaced_usd is None or cheapest.total_cents < in_cents(workload.unplaced_usd)
        if row is None or not worth:
            return None
        held = [*room.ledger.quota_taken[quota_rows(problem).index(row)], *row.held]
        limit = most_held([*held, *row.spans_of(cheapest)])
        text = f"a quota of {limit} {row.unit} at {row.provider}, {limit - row.limit} more"
        return _Stopped(Obstacle.QUOTA, text, quota=(row, limit))
    freed = replace(workload, policy=replace(workload.policy, quotas=()))
    offer = _cheapest_passing(candidates, without_quotas(problem), freed)
    limits = [row for row in quota_rows(problem) if offer is not None and row.provider == offer.provider]
    if offer is None or not limits:
        return None
    return _Stopped(Obstacle.QUOTA, f"a higher quota than {limits[0]}, for {offer.offer_id}")


def _is_out(candidates: Candidates, workload: Workload) -> bool:
    """Whether no candidate of the workload passed the gates."""
    return candidates.log(workload.name).obstacle is not None


def _behind_run(candidates: Candidates, solution: Solution, service: Serving) -> _Stopped:
    """Why a service without an obstacle of its own is not placed together with its left-out run."""
    run = service.starts_after
    assert run is not None
    cheapest = _cheapest_column(candidates, solution, candidates.problem.request.workload(run))
    if cheapest is None or service.name not in _stopping_followers(candidates, solution, cheapest):
        return _Stopped(Obstacle.DEPENDENCY, f"a way to place {run}, which it waits for")
    room = remaining_capacity(candidates, solution.choice.columns, (run, service.name)).after(cheapest)
    fleet = cheapest_fleet(candidates, service.name, replace(room, budget_cents=None), cheapest, inf)
    if fleet is not None and room.budget_cents is not None:
        more = in_usd(fleet.counted_cents - room.budget_cents)
        return _Stopped(Obstacle.BUDGET, f"a budget {usd_words(more)} higher")
    alone = remaining_capacity(candidates, {}, ())
    fleet = cheapest_fleet(candidates, service.name, replace(alone, budget_cents=None), cheapest, inf)
    if fleet is None:
        return _Stopped(Obstacle.STOCK, TEXTS[Obstacle.STOCK])
    return _Stopped(Obstacle.CONTENTION, _contention_fix(candidates, solution, fleet))


def _stopping_followers(candidates: Candidates, solution: Solution, run: Column) -> list[str]:
    """Services that must follow a left-out run and cannot, though the run itself would fit."""
    followers = candidates.problem.followers(run.workload)
    room = remaining_capacity(candidates, solution.choice.columns, (run.workload,))
    if not followers or not room.allows(run):
        return []
    room = room.after(run)
    return [
        service.name
        for service in followers
        if service.unplaced_usd is None
        and (
            candidates.log(service.name).obstacle is not None
            or cheapest_fleet(candidates, service.name, room, run, inf) is None
        )
    ]


def _contention_fix(candidates: Candidates, solution: Solution, cheapest: Column) -> str:
    """Names the offer that is short, and the workloads that hold it."""
    piece = main_piece(cheapest)
    nodes = max(n for _, _, n in piece.spans)
    holders = blockers(candidates.problem, solution.choice.columns, cheapest)
    held = f", now held by {named(holders)}" if holders else ""
    more = f"{nodes} more {'node' if nodes == 1 else 'nodes'}"
    return f"{more} of {candidates.problem.table.offers[piece.offer].offer_id}{held}"


def _without_column(workload: Workload) -> _Stopped:
    if isinstance(workload, Serving) and workload.starts_after is not None:
        text = f"let {workload.starts_after} end earlier: nothing of the horizon is left to serve"
        return _Stopped(Obstacle.DEPENDENCY, text)
    spread = isinstance(workload, Serving) and workload.redundancy.zones > 1
    obstacle = Obstacle.REDUNDANCY if spread else Obstacle.STOCK
    return _Stopped(obstacle, TEXTS[obstacle])


def _cheapest_column(candidates: Candidates, solution: Solution, workload: Workload) -> Column | None:
    mine = [c for c in solution.columns if c.workload == workload.name]
    if mine:
        return min(mine, key=lambda column: column.total_cents)
    if not isinstance(workload, Serving) or workload.starts_after is not None:
        return None
    case = candidates.fleets[workload.name]
    made = model_fleets(candidates.problem, case, free_nodes(candidates.problem), [None])
    return min(made, key=lambda column: column.total_cents, default=None)


def _cheapest_passing(candidates: Candidates, problem: Problem, workload: Workload) -> Offer | None:
    """The cheapest offer that passes the gates for a changed workload."""
    estimates = candidates.estimates
    if isinstance(workload, Serving):
        case = build_fleet_case(problem, estimates, workload)
        if case.log.obstacle is not None:
            return None
        return problem.table.offers[int(case.units.offer[int(np.argmin(case.units.usd_per_hour))])]
    found = build_run_candidates(problem, estimates, workload, bounded=False)
    if not len(found):
        return None
    return problem.table.offers[int(found.offer[int(np.argmin(found.total_usd))])]
