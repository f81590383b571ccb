"""One change of a plan while everything else stays fixed: the cheapest columns that still fit.

A *dependency group* changes together: a run with the services that follow it, or one workload alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from broker.domain.planning.workload import Batch, Serving
from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.fleet_pool import ledger_of, remaining_by_hour, remaining_nodes
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.fleets.set_costs import Openings
from optimizer.placement.problem.columns import Column, in_cents
from optimizer.placement.problem.delays import delay_cents
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.transfers import placed_after, weights_of, where_data_lies
from optimizer.placement.problem.units import FleetCase
from optimizer.placement.runs.candidates import Run
from optimizer.placement.runs.columns import begun_later, build_run_column
from optimizer.placement.runs.parts import divided_ways, is_divisible, least_parts_usd
from optimizer.placement.runtime.tuning import TUNING

Chosen = Mapping[str, Column]


class FleetMaker(Protocol):
    """Builds fleets of a service: exhaustively, until a time limit, or coarsely."""

    def __call__(
        self,
        problem: Problem,
        case: FleetCase,
        free: Ints,
        ends: Sequence[float | None],
        openings: Openings | None = None,
    ) -> list[Column]:
        """Fleets from ``free`` nodes [O], for each end of the run that the service follows."""
        ...


@dataclass(frozen=True, slots=True)
class DependencyGroup:
    """``lead`` is a workload that depends on no other; ``followers`` start when it ends."""

    lead: str
    followers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All workloads of the group."""
        return self.lead, *self.followers


def made_until(out_of_time: Callable[[], bool]) -> FleetMaker:
    """A fleet builder that stops with what it has found when the time is over."""
    return partial(model_fleets, out_of_time=out_of_time)


def dependency_groups(candidates: Candidates) -> list[DependencyGroup]:
    """All dependency groups, in the request's order of their leads; each workload is in exactly one."""
    problem = candidates.problem
    waiting = {s.name for s in problem.services() if s.starts_after is not None}
    return [
        DependencyGroup(w.name, tuple(s.name for s in problem.followers(w.name)))
        for w in problem.request.workloads
        if w.name not in waiting
    ]


@dataclass(frozen=True, slots=True)
class RemainingCapacity:
    """What other workloads leave: the ledger of their holdings, and the remaining budget in cents (None: no
    budget).
    """

    ledger: Ledger
    budget_cents: int | None

    def allows(self, column: Column) -> bool:
        """Whether stock and budget allow a column."""
        within = self.budget_cents is None or column.counted_cents <= self.budget_cents
        return within and self.ledger.fits(column)

    def after(self, column: Column) -> RemainingCapacity:
        """What is left after a column is taken too."""
        ledger = self.ledger.copy()
        ledger.add(column)
        left = None if self.budget_cents is None else self.budget_cents - column.counted_cents
        return RemainingCapacity(ledger, left)


def remaining_capacity(candidates: Candidates, chosen: Chosen, names: Sequence[str]) -> RemainingCapacity:
    """The capacity that all workloads but ``names`` leave."""
    others = {name: column for name, column in chosen.items() if name not in names}
    budget = candidates.problem.request.held_budget_usd
    spent = sum(column.counted_cents for column in others.values())
    return RemainingCapacity(
        ledger_of(candidates, others), None if budget is None else in_cents(budget) - spent
    )


def group_total_cents(candidates: Candidates, chosen: Chosen, group: DependencyGroup) -> int | None:
    """A group's cost, lateness and penalties; None if a workload that must be placed is not."""
    total = 0
    for name in group.names if group.lead in chosen else (group.lead,):
        cents = chosen[name].total_cents if name in chosen else unplaced_cents(candidates.problem, name)
        if cents is None:
            return None
        total += cents
    return total


def cheaper_way(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    group: DependencyGroup,
    room: RemainingCapacity,
    below_cents: float,
    make: FleetMaker = model_fleets,
) -> dict[str, Column] | None:
    """The cheapest columns of a group that cost less than ``below_cents`` together; None if there are
    none.
    """
    if group.lead not in pools:
        column = cheapest_fleet(candidates, group.lead, room, None, below_cents, make)
        return None if column is None else {group.lead: column}
    best: dict[str, Column] | None = None
    for tried, column in enumerate(fitting_runs(candidates, pools[group.lead], room, below_cents)):
        way = with_followers(candidates, group, column, room, below_cents, make)
        if way is not None:
            best, below_cents = way
        if (not group.followers and best is not None) or tried + 1 >= TUNING.search.most_ends:
            break
    return best


def fitting_runs(
    candidates: Candidates,
    pool: RunPool,
    room: RemainingCapacity,
    below_cents: float,
    end_s: float | None = None,
) -> Iterator[Column]:
    """Columns of a run that fit and cost less than ``below_cents``, cheapest first.

    Followers count with their lower bound, unless the run must end at ``end_s``. Where stock is occupied, a
    run without followers is delayed until it is free.
    """
    found, led = pool.found, bool(candidates.problem.followers(pool.found.run.name))
    cost_usd = (
        pool.total_usd
        if end_s is None
        else np.where(np.abs(found.end_s - end_s) < 1e-3, found.total_usd, np.inf)
    )
    cheap = np.flatnonzero(cost_usd * 100 < below_cents + 1)
    waiting = divided_beside(candidates, pool.found.run, room, below_cents) if end_s is None else []
    for index in cheap[np.lexsort((cheap, cost_usd[cheap]))][: TUNING.search.most_fitting]:
        column = pool.kept.get(int(index)) or build_run_column(
            candidates.problem, candidates.estimates, found, int(index)
        )
        if column is None or column.total_cents >= below_cents:
            continue
        due = [c for c in waiting if c.total_cents <= column.total_cents]
        yield from sorted(due, key=lambda c: c.total_cents)
        waiting = [c for c in waiting if c.total_cents > column.total_cents]
        if room.allows(column):
            yield column
        elif not led:
            moved = delayed_until_free(candidates, pool, column, room.ledger)
            if moved is not None and room.allows(moved):
                waiting.append(moved)
    yield from sorted((c for c in waiting if c.total_cents < below_cents), key=lambda c: c.total_cents)


def divided_beside(
    candidates: Candidates, run: Run, room: RemainingCapacity, below_cents: float, *, easier: bool = False
) -> list[Column]:
    """Ways of a divisible batch in several parts that fit and cost less than ``below_cents``."""
    if not isinstance(run, Batch) or not is_divisible(run):
        return []
    least = least_parts_usd(candidates.problem, candidates.estimates, run)
    if not least * 100 < below_cents:
        return []
    ways = divided_ways(candidates.problem, candidates.estimates, run, room.ledger, easier=easier)
    return [way for way in ways if way.total_cents < below_cents and room.allows(way)]


def delayed_until_free(
    candidates: Candidates, pool: RunPool, column: Column, ledger: Ledger
) -> Column | None:
    """The column started at the first end of another holding from which it fits; None if there is none in
    time.
    """
    problem, offer = candidates.problem, column.pieces[0].offer
    if problem.table.is_window[offer] or problem.followers(column.workload):
        return None
    own = column.pieces[0].spans[0][0]
    for start in sorted({end for _, end, _ in ledger.taken_near(offer) if end > own}):
        moved = begun_later(problem, pool.found.run, column, start)
        if moved is None or ledger.fits(moved):
            return moved
    return None


def with_followers(
    candidates: Candidates,
    group: DependencyGroup,
    column: Column,
    room: RemainingCapacity,
    below_cents: float,
    make: FleetMaker = model_fleets,
) -> tuple[dict[str, Column], float] | None:
    """A run's column with the best fleets of its followers, and their total; None if that is not below
    ``below_cents``.
    """
    way, total = {column.workload: column}, column.total_cents
    room = room.after(column) if group.followers else room
    for name in group.followers:
        unplaced = unplaced_cents(candidates.problem, name)
        most = below_cents - total if unplaced is None else min(below_cents - total, unplaced)
        fleet = cheapest_fleet(candidates, name, room, column, most, make)
        if fleet is None and unplaced is None:
            return None
        total += fleet.total_cents if fleet is not None else unplaced or 0
        if fleet is not None:
            way[name] = fleet
            room = room.after(fleet)
    return (way, float(total)) if total < below_cents else None


def cheapest_fleet(
    candidates: Candidates,
    name: str,
    room: RemainingCapacity,
    after: Column | None,
    below_cents: float,
    make: FleetMaker = model_fleets,
) -> Column | None:
    """The cheapest fleet that fits; None if none costs less than ``below_cents``.

    Fleets on offers to which the weights need not be copied are tried as well. ``after``: column of the run
    that the service follows.
    """
    after_s, place = (None, None) if after is None else after.end
    least = candidates.least_service_cents(_service(candidates, name), after_s)
    if least is None or least + delay_cents(candidates.problem, name, after_s) >= below_cents:
        return None
    service, case = _service(candidates, name), candidates.fleets[name]
    free = remaining_nodes(candidates, service, room.ledger, after_s)
    openings = remaining_by_hour(candidates.problem, case, room.ledger)
    made = make(candidates.problem, case, free, [after_s], openings)
    near = where_data_lies(candidates.problem, weights_of(candidates.problem, service, place))
    if near is not None and (free * ~near).any():
        made += make(candidates.problem, case, free * near, [after_s])
    linked = (placed_after(candidates.problem, column, place) for column in made)
    fitting = [c for c in linked if c.total_cents < below_cents and room.allows(c)]
    return min(fitting, key=lambda column: column.total_cents, default=None)


def _service(candidates: Candidates, name: str) -> Serving:
    workload = candidates.problem.request.workload(name)
    assert isinstance(workload, Serving)
    return workload
