"""Near ties: of options that cost nearly the same, the one that is easiest to operate.

A search for least cost adds a pool, splits a run or starts a node for a saving of cents. After it, each
workload gets the option with the fewest pools, then the fewest sellers, then the fewest parts, then the
earliest end (runs, ``run_ties``) or the fewest starts (services), among the options that cost at most
``policy.premium`` more than the cheapest. Candidate fleets are the known ones, the best on one pool less, and
any of these with gaps held where that costs least per avoided start. Stock and budget are respected, and the
allowed gap if the plan met it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.workload import FleetLimits, Serving
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.greedy import by_workload
from optimizer.placement.columns.search import choice_from
from optimizer.placement.explain.run_ties import easier_run, parts_of
from optimizer.placement.explain.trials import Trials, fleets_under
from optimizer.placement.fleets.columns import stacked
from optimizer.placement.problem.columns import Column, Span, price_cents, with_switching
from optimizer.placement.problem.problem import OfferTable, Problem
from optimizer.placement.problem.transfers import with_transfers
from optimizer.placement.search.moves import DependencyGroup, RemainingCapacity, dependency_groups
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.solve import MOST_AT_ONCE, Solution

MOST_TRIED = 6
MOST_EXACT = 8
"""Number of services for which fleets on one pool less are planned."""

Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Upkeep:
    """Operating effort of a workload, compared in this order; less is better."""

    pools: int
    sellers: int
    parts: int
    starts: int


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
    return Upkeep(len(pools), len({provider for provider, *_ in pools}), 1, starts_of(column))


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits on the cost of an option: a ``share`` above the cheapest, and ``most_cents`` in total."""

    share: float
    most_cents: int

    def limit_cents(self, cheapest: Column) -> int:
        """The most that an option may cost if ``cheapest`` is available."""
        return min(cheapest.cost_cents + int(self.share * cheapest.cost_cents), self.most_cents)


def starts_of(column: Column) -> int:
    """How often a node's holding begins."""
    return sum(len(level) for piece in column.pieces for level in levels_of(piece.spans))


def levels_of(spans: Sequence[Span]) -> list[list[Stretch]]:
    """When the k-th node is held, for each k: while at least k nodes are."""
    levels: list[list[Stretch]] = [[] for _ in range(max((n for _, _, n in spans), default=0))]
    for start, end, nodes in spans:
        for level in levels[:nodes]:
            if level and level[-1][1] == start:
                level[-1] = (level[-1][0], end)
            else:
                level.append((start, end))
    return levels


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
    trials = Trials(candidates, state.chosen, MOST_EXACT)
    build = len(candidates.problem.request.workloads) <= MOST_AT_ONCE
    for name in sorted(state.chosen):
        workload = candidates.problem.request.workload(name)
        if hurry():
            break
        if not isinstance(workload, Serving) or name in candidates.problem.held:
            continue
        mine = state.chosen[name]
        premium = rules_of(candidates.problem.request.policy, workload).premium
        allowed = Allowed(premium, mine.cost_cents + left)
        with state.without((name,)) as room:
            fewer = one_pool_less(trials, workload, mine) if build and premium and left > 0 else []
            better = easier(candidates, (*known.get(name, ()), *fewer), room, mine, allowed)
        if better is not None:
            before, after = (upkeep_of(candidates.problem, column) for column in (mine, better))
            told[name] = NearTie(better.cost_cents - mine.cost_cents, before, after)
            left -= told[name].more_cents
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
    before, after = (Upkeep(*parts_of(problem, column), 0) for column in (mine, run))
    return NearTie(more_cents, before, after, max(0.0, mine.end_s - run.end_s))


def spare_cents(solution: Solution, asked_gap: float) -> int:
    """How much more the plan may cost within the allowed gap; its whole cost if it does not meet the gap."""
    billed, gap = solution.billed_cents, solution.gap
    if solution.bound_cents is None or gap is None or gap > asked_gap:
        return billed
    return max(0, int(solution.bound_cents / (1 - min(asked_gap, 0.99)) * (1 - 1e-9)) - billed)


def easier(
    candidates: Candidates, known: Sequence[Column], room: RemainingCapacity, mine: Column, allowed: Allowed
) -> Column | None:
    """The option with the least operating effort among those ``allowed`` relative to the cheapest.

    Only options that are allowed relative to ``mine`` and need no more effort are considered. None if
    ``mine`` is the best. ``room``: what all other workloads leave.
    """
    same = [c for c in known if c.after == mine.after and c.pieces]
    problem = candidates.problem

    def rank(column: Column) -> tuple[Upkeep, int, int]:
        return upkeep_of(problem, column), len(column.pieces), column.cost_cents

    most, dearest = upkeep_of(problem, mine), allowed.limit_cents(mine)
    start_cents = _node_hour_cents(mine)

    def is_worth(column: Column) -> bool:
        """Fewer pools or sellers are worth the premium; an avoided start is worth at most an hour of a
        node.
        """
        less = upkeep_of(problem, column)
        fewer = (less.pools, less.sellers) < (most.pools, most.sellers)
        return fewer or column.cost_cents <= mine.cost_cents + (most.starts - less.starts) * start_cents

    near = [
        c
        for c in same
        if c.cost_cents <= dearest and upkeep_of(problem, c) <= most and is_worth(c) and room.allows(c)
    ]
    limit = allowed.limit_cents(min((mine, *near), key=lambda column: column.cost_cents))
    ways = heapq.nsmallest(MOST_TRIED, (c for c in (mine, *near) if c.cost_cents <= limit), key=rank)
    made = (held_through(candidates, column, room, limit) for column in ways)
    best = min((*ways, *(column for column in made if column is not None)), key=rank)
    dear = mine.cost_cents > limit
    return best if dear or rank(best) < rank(mine) else None


def _node_hour_cents(column: Column) -> float:
    """Average cost of an hour of a node in the fleet."""
    held_s = sum((end - start) * nodes for piece in column.pieces for start, end, nodes in piece.spans)
    return 3600.0 * column.cost_cents / max(1, held_s)


def held_through(
    candidates: Candidates, column: Column, room: RemainingCapacity, limit_cents: int
) -> Column | None:
    """The fleet with its cheapest gaps held, up to a cost; None if stock or spares forbid this.

    With two or more spares, holding one larger replica can lower the net rate, so such a fleet is unchanged.
    """
    case = candidates.fleets[column.workload]
    if case.spare > 1 and len({(piece.offer, piece.choice) for piece in column.pieces}) > 1:
        return None
    for alone in (False, True):
        free = [not (alone and room.ledger.taken_near(piece.offer)) for piece in column.pieces]
        made = _filled(candidates, column, free, limit_cents)
        if made.cost_cents <= limit_cents and room.allows(made):
            return made
    return None


def _filled(candidates: Candidates, column: Column, free: Sequence[bool], limit_cents: int) -> Column:
    """The fleet with its cheapest gaps held while the cost allows it, each for at most an hour of a node."""
    problem = candidates.problem
    left_usd = (limit_cents - column.cost_cents - len(column.pieces)) / 100
    most_usd = _node_hour_cents(column) / 100 + 1e-9
    fleet = [levels_of(piece.spans) if may else [] for piece, may in zip(column.pieces, free, strict=True)]
    gaps = [
        (usd, number, level, left, right)
        for number, levels in enumerate(fleet)
        for level, held in enumerate(levels)
        for usd, left, right in _gaps(problem.table, column.pieces[number].offer, held)
    ]
    for usd, number, level, left, right in sorted(gaps):
        if usd > min(left_usd, most_usd):
            break
        levels = fleet[number]
        if level == 0 or any(start <= left and right <= end for start, end in levels[level - 1]):
            left_usd -= usd
            levels[level] = _joined(levels[level], left, right)
    spans = [stacked([(a, b, 1) for held in levels for a, b in held]) for levels in fleet]
    pieces = tuple(
        replace(piece, spans=now, cost_cents=price_cents(problem, piece.offer, now)) if now else piece
        for piece, now in zip(column.pieces, spans, strict=True)
    )
    return with_switching(problem, with_transfers(problem, replace(column, pieces=pieces)))


def _gaps(table: OfferTable, offer: int, stretches: Sequence[Stretch]) -> Iterator[tuple[float, int, int]]:
    """The gaps between the stretches of one node, each with what holding it costs more."""
    held = np.array(stretches, dtype=np.int64).reshape(-1, 2)
    first, left, right, last = held[:-1, 0], held[:-1, 1], held[1:, 0], held[1:, 1]
    offers = np.full(len(left), offer, dtype=np.int64)
    whole, before, after = (
        table.node_cost_usd(offers, held_s) for held_s in (last - first, left - first, last - right)
    )
    return zip((whole - before - after).tolist(), left.tolist(), right.tolist(), strict=True)


def _joined(stretches: Sequence[Stretch], left: int, right: int) -> list[Stretch]:
    """The stretches with one gap held."""
    at = next(number for number, (_, end) in enumerate(stretches) if end == left)
    return [*stretches[:at], (stretches[at][0], stretches[at + 1][1]), *stretches[at + 2 :]]


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
