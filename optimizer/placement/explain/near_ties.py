"""Near ties: of options that cost nearly the same, the one that is easiest to operate.

A search for least cost adds a pool or splits a run for a saving of cents. After it, each workload gets the
option with the fewest pools, then the fewest sellers, then the fewest parts, then the earliest end (runs,
``run_ties``), among the options that cost at most ``policy.premium`` more than the cheapest. Candidate fleets
are the known ones and the best on one pool less. Fewer starts of nodes are not bought: what each is expected
to cost is part of the objective. Stock and budget are respected, and the allowed gap if the plan met it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.workload import FleetLimits, Serving
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.greedy import by_workload
from optimizer.placement.columns.search import choice_from
from optimizer.placement.explain.run_ties import easier_run, parts_of
from optimizer.placement.explain.trials import Trials, fleets_under
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import DependencyGroup, RemainingCapacity, dependency_groups
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.solve import Solution


@dataclass(frozen=True, slots=True, order=True)
class Upkeep:
    """Operating effort of a workload, compared in this order; less is better."""

    pools: int
    sellers: int
    parts: int


@dataclass(frozen=True, slots=True)
class NearTie:
    """What a workload pays for less operating effort, and for an end that is ``earlier_s`` seconds
    earlier.
    """

    more_cents: int
    before: Upkeep
    after: Upkeep
    earlier_s: float = 0.0


def upkeep_of(problem: Problem, column: Column) -> Upkeep:
    """Operating effort of a fleet."""
    table = problem.table
    pools = {
        (
            table.offers[piece.offer].provider,
            table.offers[piece.offer].sku.gpu,
            int(table.zone_of[piece.offer]),
            piece.choice,
        )
        for piece in column.pieces
    }
    return Upkeep(len(pools), len({provider for provider, *_ in pools}), 1)


def decided(
    candidates: Candidates,
    solution: Solution,
    asked_gap: float,
    hurry: Callable[[], bool] = lambda: False,
) -> tuple[Solution, Mapping[str, NearTie]]:
    """The solution with options that are easier to operate, each at most its premium more expensive.

    Workloads that hold something already are unchanged; with ``hurry`` the rest is, too.
    """
    state = PlanState(candidates, dict(solution.choice.columns))
    known = by_workload(solution.columns)
    left = spare_cents(solution, asked_gap)
    told: dict[str, NearTie] = {}
    for group in dependency_groups(candidates):
        if hurry():
            break
        tie = _decided_run(solution, state, group, left)
        if tie is not None:
            told[group.lead] = tie
            left -= tie.more_cents
    trials = Trials(candidates, state.chosen, TUNING.explain.most_fewer_pools)
    build = len(candidates.problem.request.workloads) <= TUNING.search.few_workloads
    for name in sorted(state.chosen):
        workload = candidates.problem.request.workload(name)
        if hurry():
            break
        if not isinstance(workload, Serving) or name in candidates.problem.held:
            continue
        mine = state.chosen[name]
        premium = rules_of(candidates.problem.request.policy, workload).premium
        with state.without((name,)) as room:
            fewer = one_pool_less(trials, workload, mine) if build and premium and left > 0 else []
            better = easier(candidates, (*known.get(name, ()), *fewer), room, mine, premium, left)
        if better is not None:
            before, after = (upkeep_of(candidates.problem, column) for column in (mine, better))
            more = _objective_cents(better) - _objective_cents(mine)
            told[name] = NearTie(more, before, after)
            left -= more
            state.remove(name)
            state.place(better)
    if not told:
        return solution, told
    chosen = state.chosen
    kept = tuple(c for c in solution.columns if not _passed_over(solution, chosen, told, c))
    choice = choice_from(candidates.problem, chosen)
    bound = None if solution.bound_cents is None else min(solution.bound_cents, choice.objective_cents)
    return replace(solution, choice=choice, bound_cents=bound, columns=kept), told


def one_pool_less(trials: Trials, service: Serving, mine: Column) -> list[Column]:
    """The best fleets on one pool less than ``mine``; none if its zones require all of them."""
    problem = trials.candidates.problem
    pools = upkeep_of(problem, mine).pools
    if pools - 1 < max(1, service.redundancy.zones):
        return []
    kinds = rules_of(problem.request.policy, service).max_gpu_kinds
    return fleets_under(trials, service, mine, FleetLimits(pools - 1, kinds))


def _decided_run(solution: Solution, state: PlanState, group: DependencyGroup, left: int) -> NearTie | None:
    """Places a run and its followers in an easier option; returns what that pays for, or None if there is
    none.
    """
    problem = state.candidates.problem
    pool, mine = solution.pools.get(group.lead), state.chosen.get(group.lead)
    if pool is None or mine is None or not problem.held.keys().isdisjoint(group.names):
        return None
    premium = rules_of(problem.request.policy, problem.request.workload(group.lead)).premium
    found = easier_run(pool, state, group, premium, left) if premium else None
    if found is None:
        return None
    way, more_cents = found
    for name in group.names:
        state.remove(name)
    for column in way.values():
        state.place(column)
    run = way[group.lead]
    before, after = (Upkeep(*parts_of(problem, column)) for column in (mine, run))
    return NearTie(more_cents, before, after, max(0.0, mine.end_s - run.end_s))


def spare_cents(solution: Solution, asked_gap: float) -> int:
    """How much more the plan may cost within the allowed gap; its whole cost if it does not meet the gap."""
    billed, gap = solution.billed_cents, solution.gap
    if solution.bound_cents is None or gap is None or gap > asked_gap:
        return billed
    return max(0, int(solution.bound_cents / (1 - min(asked_gap, 0.99)) * (1 - 1e-9)) - billed)


def easier(
    candidates: Candidates,
    known: Sequence[Column],
    room: RemainingCapacity,
    mine: Column,
    premium: float,
    most_cents: int,
) -> Column | None:
    """The option with the least operating effort among those that cost at most the share ``premium`` more
    than the cheapest, and ``most_cents`` more than ``mine``, expected costs included.

    Only options that may replace ``mine`` are considered. None if ``mine`` is the best. ``room``: what all
    other workloads leave.
    """
    problem = candidates.problem

    def rank(column: Column) -> tuple[Upkeep, int, int]:
        return upkeep_of(problem, column), _objective_cents(column), len(column.pieces)

    same = [c for c in known if c.after == mine.after and c.pieces]
    cheapest = min(map(_objective_cents, (mine, *same)))
    dearest = min(cheapest + int(premium * cheapest), _objective_cents(mine) + most_cents)
    near = [c for c in same if _objective_cents(c) <= dearest and rank(c) < rank(mine)]
    return min(filter(room.allows, near), key=rank, default=None)


def _objective_cents(column: Column) -> int:
    """Cost of a fleet and what is expected beside it, at the same start of its service."""
    return column.cost_cents + column.relaunch_cents


def _passed_over(
    solution: Solution, chosen: Mapping[str, Column], told: Mapping[str, NearTie], column: Column
) -> bool:
    """Whether a known fleet is cheaper than the chosen easier one, but not cheaper than the fleet that this
    replaced.
    """
    if column.workload not in told or column.after != chosen[column.workload].after:
        return False
    before = solution.choice.columns[column.workload]
    return before.total_cents <= column.total_cents < chosen[column.workload].total_cents
