"""Of several plans that cost the same, chooses the one whose runs end first.

A service that starts later does not count as a saving. So an earlier end of a run is taken if the run itself
costs no more, even though its services then serve for more hours. If an earlier start makes a service
cheaper, that counts in its favour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from broker.domain.planning.delay_cost import WORTH
from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, End
from optimizer.placement.problem.delays import price_of
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    Chosen,
    DependencyGroup,
    FleetMaker,
    RemainingCapacity,
    cheapest_fleet,
    dependency_groups,
)
from optimizer.placement.search.plan_state import PlanState, left_cents

DAY_H = 24.0


def equal_share(asked_gap: float) -> float:
    """The share below which costs count as equal: never more than the gap that was asked for."""
    return min(TUNING.search.equal_share, asked_gap)


@dataclass(slots=True, eq=False)
class EarlierEnds:
    """Finds earlier ends that cost a run and its services at most ``share`` more; workloads in ``frozen``
    stay.

    ``known``: columns of services for ends that were evaluated before; ``make`` builds others.
    """

    candidates: Candidates
    pools: Mapping[str, RunPool]
    known: Iterable[Column]
    share: float
    frozen: frozenset[str] = frozenset()
    make: FleetMaker = model_fleets
    _after: defaultdict[tuple[str, End], list[Column]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        for column in self.known:
            if column.after_s is not None:
                self._after[column.workload, (column.after_s, column.after_place)].append(column)

    def taken(self, chosen: Chosen, out_of_time: Callable[[], bool]) -> dict[str, Column]:
        """``chosen`` with each run, and the services that follow it, at its earliest acceptable end."""
        state = PlanState(self.candidates, dict(chosen))
        for group in dependency_groups(self.candidates):
            if group.lead not in self.pools or group.lead not in state.chosen:
                continue
            if not self.frozen.isdisjoint(group.names):
                continue
            if out_of_time():
                break
            before = {name: state.chosen[name] for name in group.names if name in state.chosen}
            with state.without(before) as room:
                way = self._earlier_way(group, before, room)
            if way is not None:
                for name in before:
                    state.remove(name)
                for column in way.values():
                    state.place(column)
        return state.chosen

    def _earlier_way(
        self, group: DependencyGroup, before: Chosen, room: RemainingCapacity
    ) -> dict[str, Column] | None:
        """The columns of a group with the earliest end that is not more expensive; None if none is
        earlier.
        """
        mine, tried = before[group.lead], 0
        spare = self.share * sum(column.total_cents for column in before.values())
        for column in self._earlier_runs(mine, mine.total_cents + spare):
            if not room.allows(column):
                continue
            way = self._followed(group, column, room.after(column))
            if way is not None:
                more = sum(self._more_cents(name, before, way) for name in group.followers)
                if column.total_cents - mine.total_cents + more <= spare:
                    return way
            tried += 1
            if tried >= TUNING.search.most_earlier_tried:
                break
        return None

    def _earlier_runs(self, mine: Column, most_cents: float) -> Iterator[Column]:
        """Columns of a run that end before ``mine`` and cost at most ``most_cents``, earliest first."""
        candidates, pool = self.candidates, self.pools[mine.workload]
        found = pool.found
        cheap = np.flatnonzero((found.end_s < mine.end_s - 1) & (found.total_usd * 100 < most_cents + 1))
        order = cheap[np.lexsort((cheap, found.total_usd[cheap], found.end_s[cheap]))]
        for index in order[: TUNING.search.most_earlier]:
            column = pool.kept.get(int(index)) or build_run_column(
                candidates.problem, candidates.estimates, found, int(index)
            )
            if column is not None and column.end_s < mine.end_s and column.total_cents <= most_cents:
                yield column

    def _followed(
        self, group: DependencyGroup, run: Column, room: RemainingCapacity
    ) -> dict[str, Column] | None:
        """A run with the cheapest fleets of its followers; None if one that must be placed cannot be."""
        way, problem = {run.workload: run}, self.candidates.problem
        for name in group.followers:
            fitting = [column for column in self._after.get((name, run.end), ()) if room.allows(column)]
            best = min(fitting, key=lambda column: column.total_cents, default=None)
            most = left_cents(problem, name) if best is None else best.total_cents
            best = cheapest_fleet(self.candidates, name, room, run, most, self.make) or best
            if best is not None and best.total_cents < left_cents(problem, name):
                way[name], room = best, room.after(best)
            elif unplaced_cents(problem, name) is None:
                return None
        return way

    def _more_cents(self, name: str, before: Chosen, after: Chosen) -> float:
        """What an earlier start of a service adds to the objective; inf if its fleet is more expensive per
        hour.

        An hour of delay counts at least the service's average cost per hour, ``WORTH`` times that where the
        document states no price. Because traffic varies over the
        day, the added hours can still cost more than the average, for less than a day; that is not a reason
        to wait.
        """
        problem, later, earlier = self.candidates.problem, before.get(name), after.get(name)
        if later is None or earlier is None:
            left = left_cents(problem, name)
            ways = [left if column is None else column.total_cents for column in (later, earlier)]
            return float(ways[1] - ways[0])
        case, price = self.candidates.fleets[name], price_of(problem, name)
        starts = [time_of(problem, case, column.after_s).start_s for column in (later, earlier)]
        hours = (starts[0] - starts[1]) / HOUR_S
        average = later.cost_cents / max(1.0, (problem.end_of(case.service) - starts[0]) / HOUR_S)
        least = average if case.service.delay_usd_per_hour is not None else WORTH * average
        rate = least if price is None else max(least, 100 * float(price.usd_per_hour))
        more: float = earlier.cost_cents + earlier.switching_cents - later.cost_cents - later.switching_cents
        more -= rate * hours
        peak = self._peak_cents(earlier)
        by_time_of_day = peak + max(0.0, peak - average) * min(hours, DAY_H)
        return min(0.0, more) if more <= by_time_of_day else float("inf")

    def _peak_cents(self, fleet: Column) -> float:
        """Cost of one hour with every node of the fleet, in cents."""
        usd = self.candidates.problem.table.price_usd
        pieces = ((usd[p.offer], max(nodes for _, _, nodes in p.spans)) for p in fleet.pieces)
        return float(sum(100 * price * nodes for price, nodes in pieces))
