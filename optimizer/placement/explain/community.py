"""What community hosts would save, if a document does not allow them.

The most expensive dependency groups of a plan are placed again, one after another, with community hosts and
without, by the same search and while everything else stays. So the saving is that of a feasible plan: it may
be understated, never overstated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.basics.money import usd_words
from broker.domain.market.offer import HostKind
from broker.domain.planning.workload import Workload
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.run_pool import bare_pools
from optimizer.placement.problem.columns import Column, in_usd
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Problem
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    DependencyGroup,
    cheaper_way,
    dependency_groups,
    group_total_cents,
    remaining_capacity,
)
from optimizer.placement.search.solve import Solution


@dataclass(frozen=True, slots=True)
class Cheaper:
    """A dependency group that costs ``saved_cents`` less on community hosts of ``providers`` than the same
    search finds for it without them, which may be less than it costs in the plan.

    ``includes``: what is saved on apart from the lead's cost: followers, their delay, lateness.
    """

    lead: str
    includes: tuple[str, ...]
    providers: tuple[str, ...]
    saved_cents: int


def community_notes(
    candidates: Candidates, solution: Solution, hurry: Callable[[], bool] = lambda: False
) -> tuple[str, ...]:
    """One sentence on what community hosts would save; none if nothing is found to cost less there."""
    found = list(_cheaper(candidates, solution, hurry))
    if not found:
        return ()
    saved = sum(one.saved_cents for one in found)
    found.sort(key=lambda one: (-one.saved_cents, one.lead))
    ways = [f"{_with(one)} at {' and '.join(one.providers)}" for one in found]
    if len(found) > 1:
        ways = [f"{way} {usd_words(in_usd(one.saved_cents))}" for way, one in zip(ways, found, strict=True)]
    more = (
        f", {len(found) - TUNING.explain.most_named} more" if len(found) > TUNING.explain.most_named else ""
    )
    saving = f"hosts: [datacenter, community] would save {usd_words(in_usd(saved))} or more"
    return (
        f"{saving}, with everything else as planned, {', '.join(ways[: TUNING.explain.most_named])}{more}",
    )


def _with(one: Cheaper) -> str:
    if not one.includes:
        return one.lead
    first = ", ".join(one.includes[:-1])
    return f"{one.lead} with {f'{first} and ' if first else ''}{one.includes[-1]}"


def _cheaper(candidates: Candidates, solution: Solution, hurry: Callable[[], bool]) -> Iterator[Cheaper]:
    chosen = dict(solution.choice.columns)
    tried = _dearest(candidates, chosen)
    wider = _with_community(candidates, tried)
    lent = {group.lead: _lent(candidates, wider, group) for group in tried}
    if not any(mask.any() for mask in lent.values()):
        return
    open_to_all = build_candidates(wider, candidates.estimates)
    pools = bare_pools(open_to_all)
    for group in tried:
        if hurry():
            return
        planned = group_total_cents(candidates, chosen, group)
        if planned is None or not lent[group.lead].any():
            continue
        room = remaining_capacity(candidates, chosen, group.names)
        same = cheaper_way(candidates, solution.pools, group, room, planned)
        before = planned if same is None else group_total_cents(candidates, same, group) or planned
        way = cheaper_way(open_to_all, pools, group, room, before)
        cents = None if way is None else group_total_cents(candidates, way, group)
        if way is None or cents is None:
            continue
        providers = _providers(candidates, way.values(), lent[group.lead])
        if providers:
            planned_columns = [chosen[name] for name in group.names if name in chosen]
            includes = _included(group, [*planned_columns, *way.values()])
            chosen = {name: way.get(name, column) for name, column in chosen.items()}
            yield Cheaper(group.lead, includes, providers, before - cents)


def _included(group: DependencyGroup, columns: Sequence[Column]) -> tuple[str, ...]:
    """What a group's cost includes apart from the lead's."""
    placed = {column.workload for column in columns}
    words = [name for name in group.followers if name in placed]
    if any(column.delay_cents for column in columns):
        words.append("the delay")
    if any(column.penalty_cents for column in columns):
        words.append("lateness")
    return tuple(words)


def _dearest(candidates: Candidates, chosen: Mapping[str, Column]) -> list[DependencyGroup]:
    """Placed dependency groups, most expensive first."""
    placed = [group for group in dependency_groups(candidates) if group.lead in chosen]
    cents = {group: group_total_cents(candidates, chosen, group) or 0 for group in placed}
    return sorted(placed, key=lambda group: (-cents[group], group.lead))[
        : TUNING.explain.most_community_groups
    ]


def _with_community(candidates: Candidates, tried: Sequence[DependencyGroup]) -> Problem:
    """The problem of these groups alone, with every kind of host allowed."""
    problem = candidates.problem
    names = {name for group in tried for name in group.names}
    asked = tuple(_open(workload) for workload in problem.request.workloads if workload.name in names)
    policy = replace(problem.request.policy, hosts=tuple(HostKind))
    request = replace(problem.request, workloads=asked, policy=policy)
    return replace(problem, request=request, kept={})


def _open(workload: Workload) -> Workload:
    return replace(workload, policy=replace(workload.policy, hosts=None))


def _lent(candidates: Candidates, wider: Problem, group: DependencyGroup) -> Bools:
    """Offers [O] that a group may use only if community hosts are allowed."""
    found = np.zeros(len(wider.table), dtype=np.bool_)
    for name in group.names:
        before = open_gates(candidates.problem, candidates.problem.request.workload(name)).passing
        found |= open_gates(wider, wider.request.workload(name)).passing & ~before
    return found


def _providers(candidates: Candidates, columns: Iterable[Column], lent: Bools) -> tuple[str, ...]:
    """The providers of the community hosts that the columns use."""
    offers = {piece.offer for column in columns for piece in column.pieces if lent[piece.offer]}
    return tuple(sorted({candidates.problem.table.offers[offer].provider for offer in offers}))
