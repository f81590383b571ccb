"""The first repair of an existing plan: each workload is tried elsewhere once while all others stay.

It is completed regardless of the search's limit; only a guard stops it, and then it reports what was not
tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    parties,
    party_cents,
)
from optimizer.placement.search.standing import Standing


@dataclass(slots=True)
class FirstRepair:
    """Single changes of ``start``, except of ``frozen`` workloads.

    ``pools``: those of runs, filled with columns at the end; ``untried``: leads of dependency groups that the
    guard cut off.
    """

    search: Search
    start: Mapping[str, Column]
    frozen: frozenset[str]
    pools: dict[str, RunPool] = field(default_factory=dict)
    parties: tuple[DependencyGroup, ...] = ()
    untried: tuple[str, ...] = ()

    def run(self) -> None:
        """Reports the existing plan, then the plan after single changes."""
        candidates, guarded = self.search.candidates, self.search.watch.guarded
        self.search.offer_columns(self.start, "re-costed")
        candidates.bound_services(guarded, waiting=True)
        self.pools = bare_pools(candidates)
        standing = Standing(candidates, dict(self.start))
        self.parties = tuple(self._dearest_first(standing))
        for tried, party in enumerate(self.parties):
            if guarded():
                self.untried = tuple(one.lead for one in self.parties[tried:])
                break
            self._try(standing, party)
        self.search.offer_columns(standing.chosen, "repaired")
        add_first_columns(candidates, self.pools, lean=True)

    def _dearest_first(self, standing: Standing) -> list[DependencyGroup]:
        """The dependency groups that may change, most expensive first."""
        some = [p for p in parties(self.search.candidates) if not self.frozen.issuperset(p.names)]
        return sorted(some, key=lambda party: (-standing.cents(party.names), party.lead))

    def _try(self, standing: Standing, party: DependencyGroup) -> None:
        """Gives a group its cheapest columns; if part of it is frozen, each of the other members alone."""
        if self.frozen.isdisjoint(party.names):
            self._replace(standing, party)
            return
        for name in party.followers:
            if name not in self.frozen and party.lead in standing.chosen:
                self._replace_follower(standing, party.lead, name)

    def _replace(self, standing: Standing, party: DependencyGroup) -> None:
        candidates = self.search.candidates
        now = party_cents(candidates, standing.chosen, party)
        with standing.without(party.names) as room:
            below = inf if now is None else now
            way = cheaper_way(candidates, self.pools, party, room, below, self._fleets)
        if way is not None:
            self._place(standing, party.names, list(way.values()))

    def _replace_follower(self, standing: Standing, lead: str, name: str) -> None:
        after = standing.chosen[lead]
        now = standing.cents((name,))
        with standing.without((name,)) as room:
            found = cheapest_fleet(self.search.candidates, name, room, after, now, self._fleets)
        if found is not None:
            self._place(standing, (name,), [found])

    def _place(self, standing: Standing, names: Sequence[str], columns: Sequence[Column]) -> None:
        for name in names:
            standing.lift(name)
        for column in columns:
            standing.place(column)

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
            return model_fleets(problem, case, free, ends, openings, self.search.watch.guarded)
        return coarse_fleets(problem, case, free, ends, openings)
