"""Of ways of a run that cost the same, the one that ends first.

A later start of a service is never a saving. So an earlier way of a run is taken if it costs no more by
itself, whatever the hours cost that its services then serve longer; where an earlier start makes a service
cheaper, that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.delays import price_of
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.moves import Chosen, Party, Room, parties, with_followers
from optimizer.placement.run_columns import build_run_column
from optimizer.placement.run_pool import RunPool
from optimizer.placement.standing import Standing, left_cents
from optimizer.placement.units import HOUR_S

EQUAL_SHARE = 0.001
"""Ways whose objectives differ by less are equal."""
MOST_LOOKED_AT = 256
MOST_TRIED = 4
"""Earlier ends of one run for which fleets of its services are built."""
DAY_H = 24.0


def with_earlier_ends(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Chosen,
    share: float,
    out_of_time: Callable[[], bool],
    frozen: frozenset[str] = frozenset(),
) -> dict[str, Column]:
    """``chosen`` with each run, and what waits for it, at its earliest end for at most ``share`` more."""
    standing = Standing(candidates, dict(chosen))
    for party in parties(candidates):
        if party.lead not in pools or party.lead not in standing.chosen or not frozen.isdisjoint(party.names):
            continue
        if out_of_time():
            break
        before = {name: standing.chosen[name] for name in party.names if name in standing.chosen}
        with standing.without(before) as room:
            way = _earlier_way(candidates, pools[party.lead], party, before, room, share)
        if way is not None:
            for name in before:
                standing.lift(name)
            for column in way.values():
                standing.place(column)
    return standing.chosen


def _earlier_way(
    candidates: Candidates, pool: RunPool, party: Party, before: Chosen, room: Room, share: float
) -> dict[str, Column] | None:
    """The way of a party with the earliest end that is not dearer; None: none is earlier."""
    mine, tried = before[party.lead], 0
    spare = share * sum(column.total_cents for column in before.values())
    for column in _earlier_runs(candidates, pool, mine, mine.total_cents + spare):
        if not room.allows(column):
            continue
        if not party.followers:
            return {party.lead: column}
        found = with_followers(candidates, party, column, room, float("inf"))
        if found is not None:
            more = [_more_cents(candidates, name, before, found[0]) for name in party.followers]
            if column.total_cents - mine.total_cents + sum(more) <= spare:
                return found[0]
        tried += 1
        if tried >= MOST_TRIED:
            break
    return None


def _earlier_runs(candidates: Candidates, pool: RunPool, mine: Column, most_cents: float) -> Iterator[Column]:
    """Columns of a run that end before ``mine`` and cost at most so much, earliest first."""
    found = pool.found
    cheap = np.flatnonzero((found.end_s < mine.end_s - 1) & (found.total_usd * 100 < most_cents + 1))
    for index in cheap[np.lexsort((cheap, found.total_usd[cheap], found.end_s[cheap]))][:MOST_LOOKED_AT]:
        column = pool.kept.get(int(index)) or build_run_column(
            candidates.problem, candidates.estimates, found, int(index)
        )
        if column is not None and column.end_s < mine.end_s and column.total_cents <= most_cents:
            yield column


def _more_cents(candidates: Candidates, name: str, before: Chosen, after: Chosen) -> float:
    """What a service counts for beyond before when it starts earlier; inf where its fleet is a dearer one.

    An hour of delay counts at least what an hour of the service cost on average. The time of day can still
    make the hours before a start dearer than those after it, for less than a day; that is no reason to wait.
    """
    later, earlier = before.get(name), after.get(name)
    if later is None or earlier is None:
        left = left_cents(candidates.problem, name)
        ways = [left if column is None else column.total_cents for column in (later, earlier)]
        return float(ways[1] - ways[0])
    problem, case, price = candidates.problem, candidates.fleets[name], price_of(candidates.problem, name)
    starts = [time_of(problem, case, column.after_s).start_s for column in (later, earlier)]
    hours = (starts[0] - starts[1]) / HOUR_S
    average = later.cost_cents / max(1.0, (problem.end_s - starts[0]) / HOUR_S)
    rate = average if price is None else max(average, 100 * float(price.usd_per_hour))
    more: float = earlier.cost_cents + earlier.switching_cents - later.cost_cents - later.switching_cents
    more -= rate * hours
    peak = _peak_cents(candidates, earlier)
    by_time_of_day = peak + max(0.0, peak - average) * min(hours, DAY_H)
    return min(0.0, more) if more <= by_time_of_day else float("inf")


def _peak_cents(candidates: Candidates, fleet: Column) -> float:
    """What an hour of the whole fleet costs."""
    usd = candidates.problem.table.price_usd
    pieces = ((usd[p.offer], max(nodes for _, _, nodes in p.spans)) for p in fleet.pieces)
    return float(sum(100 * price * nodes for price, nodes in pieces))
