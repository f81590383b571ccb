"""Near ties of runs: of options that cost nearly the same, the one with fewer pools, sellers and parts, then
the one that ends earlier.

The followers of a run are placed again for each option, and count in its cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.explain.risks import overrun_hours
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runs.candidates import first_second
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    DependencyGroup,
    divided_beside,
    group_total_cents,
    with_followers,
)
from optimizer.placement.search.plan_state import PlanState

Way = dict[str, Column]


def parts_of(problem: Problem, column: Column) -> tuple[int, int, int]:
    """Pools, sellers and parts of a run; a recourse counts as a part."""
    offers = problem.table.offers
    pools = {
        (offers[p.offer].provider, offers[p.offer].sku.gpu, int(problem.table.zone_of[p.offer]))
        for p in column.taken
    }
    return len(pools), len({provider for provider, *_ in pools}), len(column.taken)


def easier_run(
    pool: RunPool, state: PlanState, group: DependencyGroup, share: float, most_cents: int
) -> tuple[Way, int] | None:
    """The easier option of a run with its followers, and its additional cost in total; None if there is none.

    It costs at most ``share`` of the run more, and at most ``most_cents``.
    """
    candidates, mine = state.candidates, state.chosen[group.lead]
    now = group_total_cents(candidates, state.chosen, group)
    if now is None:
        return None
    spare = min(int(share * mine.cost_cents), most_cents)
    near = list(_near(candidates, pool, mine, spare, _delay_cents(state, group)))
    with state.without(group.names) as room:
        most = mine.total_cents + spare + 1
        divided = divided_beside(candidates, pool.found.run, room, most, easier=True)
    near += [column for column in divided if column != mine]
    found = _fewer(state, group, near, now + spare)
    base, total = (mine, now) if found is None else (found[0][group.lead], found[1])
    sooner = _sooner(state, group, near, base, total, now + spare, share)
    found = sooner or found
    return None if found is None else (found[0], found[1] - now)


def _near(
    candidates: Candidates, pool: RunPool, mine: Column, spare: int, delay_cents: int
) -> Iterator[Column]:
    """Options of the run that may be allowed, cheapest first."""
    usd = pool.total_usd
    cheap = np.flatnonzero(usd * 100 <= mine.total_cents + spare + delay_cents + 1)
    for index in cheap[np.argsort(usd[cheap], kind="stable")][: TUNING.explain.most_run_ties]:
        column = pool.kept.get(int(index)) or build_run_column(
            candidates.problem, candidates.estimates, pool.found, int(index)
        )
        if column is not None and column != mine:
            yield column


def _fewer(
    state: PlanState, group: DependencyGroup, near: Sequence[Column], most: int
) -> tuple[Way, int] | None:
    """The option with the fewest pools, sellers and parts, if these are fewer than now."""
    problem, mine = state.candidates.problem, state.chosen[group.lead]
    fewer = [column for column in near if parts_of(problem, column) < parts_of(problem, mine)]
    fewer.sort(key=lambda column: (parts_of(problem, column), column.total_cents))
    return next(_followed(state, group, fewer, most), None)


def _sooner(
    state: PlanState,
    group: DependencyGroup,
    near: Sequence[Column],
    base: Column,
    total: int,
    most: int,
    premium: float,
) -> tuple[Way, int] | None:
    """The earliest option with no more operating effort whose time saved is worth its cost.

    The time saved is worth ``time_worth_share``. If the upper end of the 80 % interval of ``base`` passes the
    deadline, avoiding a share of that overrun is worth the same share of the premium.
    """
    candidates = state.candidates
    problem, run = candidates.problem, candidates.runs[group.lead].run
    whole_s = max(1.0, base.end_s - first_second(problem, run))
    overrun = overrun_hours(candidates, run, base)
    parts = parts_of(problem, base)
    sooner = [c for c in near if c.end_s < base.end_s - 1 and parts_of(problem, c) <= parts]
    sooner.sort(key=lambda column: (column.end_s, column.total_cents))
    for way, cents in _followed(state, group, sooner, most):
        saved = (base.end_s - way[group.lead].end_s) / whole_s
        worth = TUNING.explain.time_worth_share * saved
        if overrun and worth < premium:
            avoided = 1 - overrun_hours(candidates, run, way[group.lead]) / overrun
            worth = max(worth, premium * avoided)
        if cents - total <= worth * base.cost_cents:
            return way, cents
    return None


def _followed(
    state: PlanState, group: DependencyGroup, ways: Sequence[Column], most: int
) -> Iterator[tuple[Way, int]]:
    """The options that fit together with the run's followers, and their total costs, at most ``most``."""
    tried = 0
    with state.without(group.names) as room:
        for column in ways:
            if not room.allows(column):
                continue
            found = with_followers(state.candidates, group, column, room, float(most + 1))
            if found is not None:
                yield found[0], int(found[1])
            tried += 1
            if tried == TUNING.explain.most_followed:
                return


def _delay_cents(state: PlanState, group: DependencyGroup) -> int:
    chosen = state.chosen
    return sum(chosen[name].delay_cents for name in group.followers if name in chosen)
