"""Of ways of a run that cost the same, the one that ends first.

A later start of a service is never a saving. So an earlier way of a run is taken if it costs no more by
itself, whatever the hours cost that its services then serve longer; where an earlier start makes a service
cheaper, that counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, End
from optimizer.placement.problem.delays import price_of
from optimizer.placement.problem.units import HOUR_S
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.search.moves import (
    Chosen,
    DependencyGroup,
    FleetMaker,
    RemainingCapacity,
    cheapest_fleet,
    parties,
)
from optimizer.placement.search.standing import Standing, left_cents

EQUAL_SHARE = 0.001
"""Ways whose objectives differ by less are equal."""
MOST_LOOKED_AT = 256
MOST_TRIED = 4
"""Earlier ends of one run for which fleets of its services are looked for."""
DAY_H = 24.0


def equal_share(asked_gap: float) -> float:
    """Who asks for a smaller gap than what counts as equal takes an earlier end within that gap alone."""
    return min(EQUAL_SHARE, asked_gap)


@dataclass(slots=True, eq=False)
class EarlierEnds:
    """Looks for earlier ends that cost at most ``share`` of a run and its services more; ``frozen`` stay.

    ``known``: columns of services, made for ends that were looked at before; ``make``: how others are found.
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
        """``chosen`` with each run, and what waits for it, at its earliest end."""
        standing = Standing(self.candidates, dict(chosen))
        for party in parties(self.candidates):
            if party.lead not in self.pools or party.lead not in standing.chosen:
                continue
            if not self.frozen.isdisjoint(party.names):
                continue
            if out_of_time():
                break
            before = {name: standing.chosen[name] for name in party.names if name in standing.chosen}
            with standing.without(before) as room:
                way = self._earlier_way(party, before, room)
            if way is not None:
                for name in before:
                    standing.lift(name)
                for column in way.values():
                    standing.place(column)
        return standing.chosen

    def _earlier_way(
        self, party: DependencyGroup, before: Chosen, room: RemainingCapacity
    ) -> dict[str, Column] | None:
        """The way of a party with the earliest end that is not dearer; None: none is earlier."""
        mine, tried = before[party.lead], 0
        spare = self.share * sum(column.total_cents for column in before.values())
        for column in self._earlier_runs(mine, mine.total_cents + spare):
            if not room.allows(column):
                continue
            way = self._followed(party, column, room.after(column))
            if way is not None:
                more = sum(self._more_cents(name, before, way) for name in party.followers)
                if column.total_cents - mine.total_cents + more <= spare:
                    return way
            tried += 1
            if tried >= MOST_TRIED:
                break
        return None

    def _earlier_runs(self, mine: Column, most_cents: float) -> Iterator[Column]:
        """Columns of a run that end before ``mine`` and cost at most so much, earliest first."""
        candidates, pool = self.candidates, self.pools[mine.workload]
        found = pool.found
        cheap = np.flatnonzero((found.end_s < mine.end_s - 1) & (found.total_usd * 100 < most_cents + 1))
        order = cheap[np.lexsort((cheap, found.total_usd[cheap], found.end_s[cheap]))]
        for index in order[:MOST_LOOKED_AT]:
            column = pool.kept.get(int(index)) or build_run_column(
                candidates.problem, candidates.estimates, found, int(index)
            )
            if column is not None and column.end_s < mine.end_s and column.total_cents <= most_cents:
                yield column

    def _followed(
        self, party: DependencyGroup, run: Column, room: RemainingCapacity
    ) -> dict[str, Column] | None:
        """A run with the cheapest fleets after it; None where one that must be placed is not."""
        way, problem = {run.workload: run}, self.candidates.problem
        for name in party.followers:
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
        """What a service counts for beyond before when it starts earlier; inf where its fleet is dearer.

        An hour of delay counts at least what an hour of the service cost on average. The time of day can
        still make the hours before a start dearer than those after it, for less than a day; that is no reason
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
        average = later.cost_cents / max(1.0, (problem.end_s - starts[0]) / HOUR_S)
        rate = average if price is None else max(average, 100 * float(price.usd_per_hour))
        more: float = earlier.cost_cents + earlier.switching_cents - later.cost_cents - later.switching_cents
        more -= rate * hours
        peak = self._peak_cents(earlier)
        by_time_of_day = peak + max(0.0, peak - average) * min(hours, DAY_H)
        return min(0.0, more) if more <= by_time_of_day else float("inf")

    def _peak_cents(self, fleet: Column) -> float:
        """What an hour of the whole fleet costs."""
        usd = self.candidates.problem.table.price_usd
        pieces = ((usd[p.offer], max(nodes for _, _, nodes in p.spans)) for p in fleet.pieces)
        return float(sum(100 * price * nodes for price, nodes in pieces))
