"""The second-best option of a workload, used for final polishing and for the explanation.

``settled`` takes the option if it is cheaper and fits, so that no option that is reported as second should
have been first. ``because`` says why the option was not chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import free_nodes
from optimizer.placement.columns.run_pool import RunPool, first_few
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, Piece, in_usd
from optimizer.placement.problem.transfers import placed_after
from optimizer.placement.runs.candidates import deadline_s
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.improve import blockers, columns_by_workload
from optimizer.placement.search.moves import (
    DependencyGroup,
    FleetMaker,
    RemainingCapacity,
    fitting_runs,
    group_total_cents,
    remaining_capacity,
    with_followers,
)
from optimizer.placement.search.plan_state import PlanState

Chosen = Mapping[str, Column]


def main_piece(column: Column) -> Piece:
    """The piece that costs most; reports name a fleet after it."""
    return max(column.pieces, key=lambda piece: (piece.cost_cents, -piece.offer))


def next_best_run(candidates: Candidates, pool: RunPool, mine: Column) -> Column | None:
    """The cheapest candidate on another offer, followers at their lower bound, whether or not it fits."""
    found = pool.found
    other = np.flatnonzero(found.offer != mine.pieces[0].offer)
    few = other[first_few(pool.total_usd[other], TUNING.search.runners_up)]
    for index in few[np.argsort(pool.total_usd[few], kind="stable")]:
        second = build_run_column(candidates.problem, candidates.estimates, found, int(index))
        if second is not None:
            return second
    return None


def next_best_fleet(
    candidates: Candidates,
    known: Sequence[Column],
    mine: Column,
    *,
    build: bool = True,
    make: FleetMaker = model_fleets,
) -> Column | None:
    """The cheapest known fleet whose main offer ``mine`` does not use; with ``build``, one is built if none
    is known.
    """
    used = {piece.offer for piece in mine.pieces}
    rivals = (
        column
        for column in known
        if column.workload == mine.workload
        and column.after == mine.after
        and column.pieces
        and main_piece(column).offer not in used
    )
    second = min(rivals, key=lambda column: column.total_cents, default=None)
    if second is not None or not build:
        return second
    problem, case = candidates.problem, candidates.fleets[mine.workload]
    free = free_nodes(problem)
    free[sorted(used)] = 0
    made = make(problem, case, free, [mine.after_s])
    linked = [placed_after(problem, column, mine.after_place) for column in made]
    return min(linked, key=lambda column: column.total_cents, default=None)


@dataclass(frozen=True, slots=True)
class Rival:
    """The second-best option of a workload while everything else stays; ``way`` is None if it does not fit.

    ``group``: the workloads that change with it; ``cents``: what they cost then.
    """

    column: Column
    group: DependencyGroup
    way: Mapping[str, Column] | None
    cents: int


def rival_in(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    known: Sequence[Column],
    state: PlanState,
    name: str,
    *,
    build: bool = True,
    make: FleetMaker = model_fleets,
) -> Rival | None:
    """The second-best option of a workload, with new fleets for the services that follow it.

    ``build``: whether unknown fleets may be built.
    """
    mine = state.chosen[name]
    if name in pools:
        second = next_best_run(candidates, pools[name], mine)
    else:
        second = next_best_fleet(candidates, known, mine, build=build, make=make)
    if second is None:
        return None
    return rival_at(candidates, state, name, second, make)


def rival_at(
    candidates: Candidates, state: PlanState, name: str, second: Column, make: FleetMaker = model_fleets
) -> Rival:
    """A given option of a workload, with new fleets for the services that follow it."""
    mine, group = state.chosen[name], DependencyGroup(name, ())
    if second.end != mine.end:
        group = DependencyGroup(name, tuple(s.name for s in candidates.problem.followers(name)))
    found = None
    with state.without(group.names) as room:
        if room.allows(second):
            found = with_followers(candidates, group, second, room, float("inf"), make)
    if found is None:
        return Rival(second, group, None, second.total_cents)
    return Rival(second, group, found[0], int(found[1]))


def settled(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    known: Sequence[Column],
    chosen: Chosen,
    hurry: Callable[[], bool] | None = None,
    frozen: frozenset[str] = frozenset(),
    make: FleetMaker = model_fleets,
) -> dict[str, Column]:
    """``chosen`` after every single improving change over all run candidates and known fleets, except of
    ``frozen``.

    Each change lowers the cost, so this terminates. With ``hurry`` it stops when that returns true and builds
    no fleets; otherwise ``make`` builds them.
    """
    state, helped = PlanState(candidates, dict(chosen)), True
    by_name = columns_by_workload(known)
    while helped:
        helped = False
        for name in sorted(state.chosen):
            if hurry is not None and hurry():
                return state.chosen
            if name in state.chosen and name not in frozen:
                found = by_name.get(name, ())
                helped |= _settle(candidates, pools, found, state, name, make, build=hurry is None)
    return state.chosen


def _settle(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    known: Sequence[Column],
    state: PlanState,
    name: str,
    make: FleetMaker,
    *,
    build: bool,
) -> bool:
    """Applies a cheaper option of a workload and its followers; returns whether there is one."""
    mine = state.chosen[name]
    with state.without((name,)) as room:
        column = (
            _cheaper_run(candidates, pools[name], room, mine)
            if name in pools
            else _cheaper_fleet(known, room, mine)
        )
    if column is not None:
        state.remove(name)
        state.place(column)
        return True
    rival = rival_in(candidates, pools, known, state, name, build=build, make=make)
    if rival is None or rival.way is None:
        return False
    now = group_total_cents(candidates, state.chosen, rival.group)
    if now is None or rival.cents >= now:
        return False
    for other in rival.group.names:
        state.remove(other)
    for column in rival.way.values():
        state.place(column)
    return True


def _cheaper_run(
    candidates: Candidates, pool: RunPool, room: RemainingCapacity, mine: Column
) -> Column | None:
    """A cheaper column that fits; a run with followers keeps its end."""
    if not candidates.problem.followers(mine.workload):
        return next(fitting_runs(candidates, pool, room, mine.total_cents), None)
    ways = fitting_runs(candidates, pool, room, mine.total_cents, mine.end_s)
    return next((column for column in ways if column.end == mine.end), None)


def _cheaper_fleet(known: Sequence[Column], room: RemainingCapacity, mine: Column) -> Column | None:
    same = (c for c in known if c.workload == mine.workload and c.after == mine.after)
    cheaper = (c for c in same if c.total_cents < mine.total_cents and room.allows(c))
    return min(cheaper, key=lambda column: column.total_cents, default=None)


def because(candidates: Candidates, chosen: Chosen, mine: Column, rival: Rival) -> str:
    """Why the second-best option was not chosen: its total price, stock that others hold, or the budget."""
    second = rival.column
    if rival.way is None:
        return _blocked(candidates, chosen, mine, second)
    now = group_total_cents(candidates, chosen, rival.group) or 0
    after = rival.cents - second.total_cents - (now - mine.total_cents)
    moved = abs(second.end_s - mine.end_s) / 3600
    if rival.cents < now and second.end_s > mine.end_s:
        return f"{_price(mine, second)}, but ends {moved:.1f} h later, and a later start is no saving"
    if rival.cents == now:
        return "costs the same"
    if not after:
        return _dearer(candidates, mine, second)
    when = "earlier" if second.end_s < mine.end_s else "later"
    change = f"{_usd(abs(after))} {'more' if after > 0 else 'less'}"
    return f"{_price(mine, second)}, but ends {moved:.1f} h {when}: what waits for it then costs {change}"


def _dearer(candidates: Candidates, mine: Column, second: Column) -> str:
    hold = second.cost_cents + second.expected_cents - mine.cost_cents - mine.expected_cents
    late = second.penalty_cents - mine.penalty_cents
    if late > 0:
        hours = _late_hours(candidates, second)
        side = f"costs {_usd(abs(hold))} {'less' if hold < 0 else 'more'} to hold"
        link = "but" if hold < 0 else "and"
        return f"{side} {link} ends {hours:.1f} h late, which costs {_usd(second.penalty_cents)}"
    if late < 0:
        return f"is less late, which saves {_usd(-late)}, but costs {_usd(hold)} more to hold"
    share = f" ({100 * hold / mine.cost_cents:.1f} %)" if mine.cost_cents else ""
    return f"costs {_usd(hold)} more{share}"


def _price(mine: Column, second: Column) -> str:
    more = second.total_cents - mine.total_cents
    return f"costs {_usd(abs(more))} {'more' if more > 0 else 'less'}" if more else "costs the same"


def _late_hours(candidates: Candidates, column: Column) -> float:
    found = candidates.runs[column.workload]
    return max(0.0, column.end_s - deadline_s(candidates.problem, found.run)) / 3600


def _blocked(candidates: Candidates, chosen: Chosen, mine: Column, second: Column) -> str:
    """Why the option does not fit."""
    room = remaining_capacity(candidates, chosen, (mine.workload,))
    price = _price(mine, second)
    link = "and" if second.total_cents > mine.total_cents else "but"
    quota = room.ledger.quota_against(second)
    if quota is not None:
        return f"{price}, {link} passes the quota of {quota}"
    if not room.ledger.fits(second):
        return f"{price}, {link} its nodes are held by {named(blockers(candidates.problem, chosen, second))}"
    if room.budget_cents is not None and second.counted_cents > room.budget_cents:
        return f"{price}, {link} passes the budget by {_usd(second.counted_cents - room.budget_cents)}"
    return f"{price}, {link} leaves no nodes for the services that wait for it"


def named(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    first = ", ".join(names[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def _usd(cents: int) -> str:
    return f"${in_usd(cents):,}"
