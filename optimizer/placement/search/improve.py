"""Local search: ends when no change of one dependency group, and no exchange between two, helps.

Each group is placed again while all others stay. Then a group is given a cheaper column that exactly one
other group blocks, and the other group is placed again. New columns are added to the master problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import overlap
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    DependencyGroup,
    FleetMaker,
    RemainingCapacity,
    cheaper_way,
    dependency_groups,
    group_total_cents,
    remaining_capacity,
)


@dataclass(slots=True)
class Improver:
    """A plan under improvement: every helpful change replaces ``chosen``.

    ``among``: the groups that may change (all if empty). ``make`` builds their fleets.
    """

    candidates: Candidates
    pools: Mapping[str, RunPool]
    chosen: dict[str, Column]
    known: Sequence[Column]
    out_of_time: Callable[[], bool]
    changed: Callable[[Mapping[str, Column]], object]
    among: Sequence[DependencyGroup] = ()
    make: FleetMaker = model_fleets

    def run(self) -> None:
        """Repeats until no change helps or the time is over."""
        while self._singles() or self._exchanges():
            if self.out_of_time():
                break

    def _singles(self) -> bool:
        helped = False
        for group in self.among or dependency_groups(self.candidates):
            if self.out_of_time():
                break
            way = self._anew(self.chosen, group)
            if way is not None:
                self._take(way)
                helped = True
        return helped

    def _anew(self, chosen: Mapping[str, Column], group: DependencyGroup) -> dict[str, Column] | None:
        """The plan with a group placed at a lower cost; None if there is none."""
        now = group_total_cents(self.candidates, chosen, group)
        room = remaining_capacity(self.candidates, chosen, group.names)
        below = float("inf") if now is None else float(now)
        way = cheaper_way(self.candidates, self.pools, group, room, below, self.make)
        if way is None and not self._better_left_out(chosen, group, below):
            return None
        way = way or {}
        return {**{n: c for n, c in chosen.items() if n not in group.names}, **way}

    def _better_left_out(self, chosen: Mapping[str, Column], group: DependencyGroup, now: float) -> bool:
        unplaced = unplaced_cents(self.candidates.problem, group.lead)
        return group.lead in chosen and unplaced is not None and unplaced < now

    def _take(self, chosen: dict[str, Column]) -> None:
        self.chosen = chosen
        self.changed(chosen)

    def _exchanges(self) -> bool:
        """Applies the first exchange that helps; returns whether there was one."""
        all_groups = dependency_groups(self.candidates)
        group_of = {name: group for group in all_groups for name in group.names}
        for group, wish, blocker in self._blocked_wishes(all_groups, group_of):
            if self.out_of_time():
                return False
            better = self._exchanged(group, wish, blocker)
            if better is not None:
                self._take(better)
                return True
        return False

    def _blocked_wishes(
        self, all_groups: Sequence[DependencyGroup], group_of: Mapping[str, DependencyGroup]
    ) -> Iterator[tuple[DependencyGroup, Column, DependencyGroup]]:
        """Cheaper columns of single-workload groups that exactly one other group blocks; largest gain
        first.
        """
        found = []
        for group in all_groups:
            now = group_total_cents(self.candidates, self.chosen, group)
            if group.followers or now is None:
                continue
            for wish in self._wishes(group, now):
                state = {group_of[name].lead for name in blockers(self.candidates.problem, self.chosen, wish)}
                if len(state) == 1:
                    found.append((wish.total_cents - now, group, wish, group_of[state.pop()]))
        for _, group, wish, blocker in sorted(found, key=lambda row: (row[0], row[1].lead, row[3].lead)):
            yield group, wish, blocker

    def _wishes(self, group: DependencyGroup, now: int) -> list[Column]:
        by_workload = columns_by_workload(self.known)
        cheaper = [c for c in by_workload.get(group.lead, ()) if c.total_cents < now]
        return sorted(cheaper, key=lambda c: c.total_cents)[: TUNING.search.most_wishes]

    def _exchanged(
        self, group: DependencyGroup, wish: Column, blocker: DependencyGroup
    ) -> dict[str, Column] | None:
        both = [group, blocker]
        costs = [group_total_cents(self.candidates, self.chosen, p) for p in both]
        if any(cost is None for cost in costs):
            return None
        below = sum(cost for cost in costs if cost is not None) - wish.total_cents
        names = [*group.names, *blocker.names]
        room: RemainingCapacity = remaining_capacity(self.candidates, self.chosen, names)
        if not room.allows(wish):
            return None
        way = cheaper_way(self.candidates, self.pools, blocker, room.after(wish), float(below), self.make)
        if way is None:
            return None
        rest = {n: c for n, c in self.chosen.items() if n not in names}
        return {**rest, group.lead: wish, **way}


def blockers(problem: Problem, chosen: Mapping[str, Column], wish: Column) -> list[str]:
    """Other workloads that hold nodes of the column's offers, or GPUs of their pools, at the same time."""
    wanted = [(problem.table.pools.reach(piece.offer), piece.spans) for piece in wish.taken]
    return [
        name
        for name, column in chosen.items()
        if name != wish.workload
        and any(q.offer in near and overlap(spans, q.spans) for near, spans in wanted for q in column.taken)
    ]


def columns_by_workload(columns: Sequence[Column]) -> Mapping[str, list[Column]]:
    """The columns of each workload, in their order."""
    found: defaultdict[str, list[Column]] = defaultdict(list)
    for column in columns:
        found[column.workload].append(column)
    return found
