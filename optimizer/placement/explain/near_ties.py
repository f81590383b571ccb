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
from itertools import pairwise

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
from optimizer.placement.problem.problem import Floats, Ints, OfferTable, Problem
from optimizer.placement.problem.transfers import with_transfers
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import DependencyGroup, RemainingCapacity, dependency_groups
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.solve import Solution

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
    candidates: Candidates,
    known: Sequence[Column],
    room: RemainingCapacity,
    mine: Column,
    premium: float,
    most_cents: int,
) -> Column | None:
    """The option with the least operating effort among those that cost at most the share ``premium`` more
    than the cheapest, and ``most_cents`` more than ``mine``.

    Only options that may replace ``mine`` and need no more effort are considered. None if ``mine`` is the
    best. ``room``: what all other workloads leave.
    """

    def limit_cents(cheapest: Column) -> int:
        return min(cheapest.cost_cents + int(premium * cheapest.cost_cents), mine.cost_cents + most_cents)

    same = [c for c in known if c.after == mine.after and c.pieces]
    problem = candidates.problem

    def rank(column: Column) -> tuple[Upkeep, int, int]:
        return upkeep_of(problem, column), len(column.pieces), column.cost_cents

    most, dearest = upkeep_of(problem, mine), limit_cents(mine)
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
    limit = limit_cents(min((mine, *near), key=lambda column: column.cost_cents))
    ways = heapq.nsmallest(
        TUNING.explain.most_ties, (c for c in (mine, *near) if c.cost_cents <= limit), key=rank
    )
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
    if case.spare + case.idle > 1 and len({(piece.offer, piece.choice) for piece in column.pieces}) > 1:
        return None
    for alone in (False, True):
        free = [not (alone and room.ledger.taken_near(piece.offer)) for piece in column.pieces]
        made = _filled(candidates, column, free, limit_cents)
        if made.cost_cents <= limit_cents and room.allows(made):
            return made
    return None


def _filled(candidates: Candidates, column: Column, free: Sequence[bool], limit_cents: int) -> Column:
    problem = candidates.problem
    fleet = [levels_of(piece.spans) if may else [] for piece, may in zip(column.pieces, free, strict=True)]
    gaps = Gaps(problem.table, [piece.offer for piece in column.pieces], fleet)
    gaps.fill((limit_cents - column.cost_cents - len(column.pieces)) / 100, _node_hour_cents(column) / 100)
    pieces = tuple(
        replace(piece, spans=spans, cost_cents=price_cents(problem, piece.offer, spans)) if spans else piece
        for piece, spans in zip(column.pieces, gaps.spans(), strict=True)
    )
    return with_switching(problem, with_transfers(problem, replace(column, pieces=pieces)))


class Gaps:
    """Gaps between the intervals in which the k-th node of a piece is held, and the cost of holding them too.

    ``fleet`` holds the levels of each piece. A gap counts only while the level below is held throughout.
    """

    def __init__(
        self, table: OfferTable, offers: Sequence[int], fleet: Sequence[list[list[Stretch]]]
    ) -> None:
        self._table = table
        self._offers = offers
        self._fleet = fleet
        self._open: list[tuple[float, int, int, int, int]] = []
        for piece, levels in enumerate(fleet):
            for level in range(len(levels)):
                self._push(piece, level)

    def fill(self, usd: float, most_each_usd: float) -> None:
        """Holds the cheapest gaps, each of which avoids one start, until ``usd`` are spent; none above
        ``most_each_usd``.
        """
        while self._open:
            known, piece, level, start, end = heapq.heappop(self._open)
            more = self._more_usd(piece, level, start, end)
            if more is None:
                continue
            if more > known + 1e-9:
                heapq.heappush(self._open, (more, piece, level, start, end))
                continue
            if more > min(usd, most_each_usd + 1e-9):
                return
            usd -= more
            self._merge(piece, level, start)

    def spans(self) -> Iterator[tuple[Span, ...]]:
        """The step function of each piece."""
        for levels in self._fleet:
            yield stacked([(a, b, 1) for level in levels for a, b in level])

    def _push(self, piece: int, level: int, inside: Stretch | None = None) -> None:
        held = np.array(self._fleet[piece][level], dtype=np.int64).reshape(-1, 2)
        first, left, right, last = held[:-1, 0], held[:-1, 1], held[1:, 0], held[1:, 1]
        whole, before, after = (self._cost_usd(piece, s) for s in (last - first, left - first, last - right))
        for usd, start, end in zip(whole - before - after, left, right, strict=True):
            if inside is None or (inside[0] <= start and end <= inside[1]):
                heapq.heappush(self._open, (float(usd), piece, level, int(start), int(end)))

    def _more_usd(self, piece: int, level: int, start: int, end: int) -> float | None:
        """Present cost of holding a gap; None if it is no longer one, or the level below has a gap there."""
        levels = self._fleet[piece]
        if level and not any(a <= start and end <= b for a, b in levels[level - 1]):
            return None
        stretches = levels[level]
        for (first, left), (right, last) in pairwise(stretches):
            if (left, right) == (start, end):
                held = np.array([last - first, left - first, last - right], dtype=np.int64)
                return float(self._cost_usd(piece, held) @ np.array([1.0, -1.0, -1.0]))
        return None

    def _cost_usd(self, piece: int, held_s: Ints) -> Floats:
        return self._table.node_cost_usd(np.full(len(held_s), self._offers[piece], dtype=np.int64), held_s)

    def _merge(self, piece: int, level: int, start: int) -> None:
        levels = self._fleet[piece]
        at = next(i for i, (_, left) in enumerate(levels[level]) if left == start)
        whole = (levels[level][at][0], levels[level][at + 1][1])
        levels[level][at : at + 2] = [whole]
        if level + 1 < len(levels):
            self._push(piece, level + 1, whole)


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
