"""A good plan on few offers, by dependency groups; used only for comparison with the real plan.

Each group gets its best columns as if it were alone. Where these do not fit, groups are placed one after
another, most expensive first. If the total exceeds the sum of the groups alone, local search follows, so that
no change of one group and no exchange of two helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.run_pool import RunPool, bare_pools
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.improve import Improver
from optimizer.placement.search.moves import (
    DependencyGroup,
    RemainingCapacity,
    cheaper_way,
    dependency_groups,
)

Way = dict[str, Column]


def placed_by_groups(candidates: Candidates, out_of_time: Callable[[], bool]) -> Way | None:
    """A column of every workload, ignoring the budget; None if they could not all be placed.

    ``out_of_time`` is tested before each group is placed.
    """
    problem, pools = candidates.problem, bare_pools(candidates)
    alone = RemainingCapacity(Ledger(problem), None)
    apart: dict[DependencyGroup, Way] = {}
    for group in dependency_groups(candidates):
        way = None if out_of_time() else cheaper_way(candidates, pools, group, alone, float("inf"))
        if way is None:
            return None
        apart[group] = way
    chosen = _one_after_the_other(candidates, pools, apart, out_of_time)
    least = sum(column.total_cents for way in apart.values() for column in way.values())
    if chosen is None or _cents(chosen) <= (1 + TUNING.search.near_least_share) * least:
        return chosen
    known = [column for way in apart.values() for column in way.values()]
    improver = Improver(candidates, pools, chosen, known, out_of_time, lambda _: None)
    improver.run()
    return improver.chosen


def _one_after_the_other(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    apart: Mapping[DependencyGroup, Way],
    out_of_time: Callable[[], bool],
) -> Way | None:
    """Places group after group. One that does not fit moves to the front, and the placement starts again."""
    order = sorted(apart, key=lambda group: (-sum(c.total_cents for c in apart[group].values()), group.lead))
    moved: set[DependencyGroup] = set()
    while True:
        found: dict[DependencyGroup, Way] = {}
        room, stuck = RemainingCapacity(Ledger(candidates.problem), None), None
        for group in order:
            way = apart[group] if _allows(room, apart[group]) else None
            if way is None and not out_of_time():
                way = cheaper_way(candidates, pools, group, room, float("inf"))
            if way is None:
                stuck = group
                break
            found[group] = way
            for column in way.values():
                room = room.after(column)
        if stuck is None:
            return _joined(found)
        if stuck in moved or out_of_time():
            return None
        moved.add(stuck)
        order = [stuck, *(group for group in order if group is not stuck)]


def _joined(ways: Mapping[DependencyGroup, Way]) -> Way:
    return {name: column for way in ways.values() for name, column in way.items()}


def _cents(chosen: Way) -> int:
    return sum(column.total_cents for column in chosen.values())


def _allows(room: RemainingCapacity, way: Way) -> bool:
    for column in way.values():
        if not room.allows(column):
            return False
        room = room.after(column)
    return True
