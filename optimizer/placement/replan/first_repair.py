"""The first repair of an existing plan: each workload is tried elsewhere once while all others stay.

It is completed regardless of the search's limit, unless its caller limits it (``ended``); else only a guard
stops it, and then it reports what was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from optimizer.placement.columns.run_pool import RunPool, add_first_columns, bare_pools
from optimizer.placement.columns.search import Search
from optimizer.placement.fleets.model import coarse_fleets, is_quick, model_fleets
from optimizer.placement.fleets.set_costs import Openings
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.units import FleetCase
from optimizer.placement.search.moves import (
    DependencyGroup,
    cheaper_way,
    cheapest_fleet,
    dependency_groups,
    group_total_cents,
)
from optimizer.placement.search.plan_state import PlanState


@dataclass(slots=True)
class FirstRepair:
    """Single changes of ``start``, except of ``frozen`` workloads.

    ``ended``: whether it must stop. ``pools``: those of runs, filled with columns at the end; ``untried``:
    leads of dependency groups that were cut off.
    """

    search: Search
    start: Mapping[str, Column]
    frozen: frozenset[str]
    ended: Callable[[], bool]
    pools: dict[str, RunPool] = field(default_factory=dict)
    dependency_groups: tuple[DependencyGroup, ...] = ()
    untried: tuple[str, ...] = ()

    def run(self) -> None:
        """Reports the existing plan, then the plan after single changes."""
        candidates = self.search.candidates
        self.search.offer_columns(self.start, "re-costed")
        candidates.bound_services(self.ended, waiting=True)
        self.pools = bare_pools(candidates)
        state = PlanState(candidates, dict(self.start))
        self.dependency_groups = tuple(self._dearest_first(state))
        for tried, group in enumerate(self.dependency_groups):
            if self.ended():
                self.untried = tuple(one.lead for one in self.dependency_groups[tried:])
                break
            self._try(state, group)
        self.search.offer_columns(state.chosen, "repaired")
        add_first_columns(candidates, self.pools, lean=True)

    def _dearest_first(self, state: PlanState) -> list[DependencyGroup]:
        """The dependency groups that may change, most expensive first."""
        some = [p for p in dependency_groups(self.search.candidates) if not self.frozen.issuperset(p.names)]
        return sorted(some, key=lambda group: (-state.cents(group.names), group.lead))

    def _try(self, state: PlanState, group: DependencyGroup) -> None:
        """Gives a group its cheapest columns; if part of it is frozen, each of the other members alone."""
        if self.frozen.isdisjoint(group.names):
            self._replace(state, group)
            return
        for name in group.followers:
            if name not in self.frozen and group.lead in state.chosen:
                self._replace_follower(state, group.lead, name)

    def _replace(self, state: PlanState, group: DependencyGroup) -> None:
        candidates = self.search.candidates
        now = group_total_cents(candidates, state.chosen, group)
        with state.without(group.names) as room:
            below = inf if now is None else now
            way = cheaper_way(candidates, self.pools, group, room, below, self._fleets)
        if way is not None:
            self._place(state, group.names, list(way.values()))

    def _replace_follower(self, state: PlanState, lead: str, name: str) -> None:
        after = state.chosen[lead]
        now = state.cents((name,))
        with state.without((name,)) as room:
            found = cheapest_fleet(self.search.candidates, name, room, after, now, self._fleets)
        if found is not None:
            self._place(state, (name,), [found])

    def _place(self, state: PlanState, names: Sequence[str], columns: Sequence[Column]) -> None:
        for name in names:
            state.remove(name)
        for column in columns:
            state.place(column)

    def _fleets(
        self,
        problem: Problem,
        case: FleetCase,
        free: Ints,
        ends: Sequence[float | None],
        openings: Openings | None = None,
    ) -> list[Column]:
        """Exact fleets if they are found quickly, else coarse ones, so that no search takes long."""
        if self.search.candidates.is_small and is_quick(problem, case.service):
            return model_fleets(problem, case, free, ends, openings, self.ended)
        return coarse_fleets(problem, case, free, ends, openings)
