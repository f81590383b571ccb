"""Fleets as a path over compositions: which units are ready in each hour, starts paid between hours.

The path is the cheapest over the compositions that it is given; holding, minimum terms and increments
are then priced exactly, unit by unit. H hours, S compositions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.columns import Column
from optimizer.placement.compositions import MAX_BASES, Compositions, compose
from optimizer.placement.fleet_columns import Slot, build_slots_column, time_of, trimmed
from optimizer.placement.ladders import BuiltLadder
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.shortest_path import cheapest_after, cheapest_way
from optimizer.placement.stock import Ledger
from optimizer.placement.units import HOUR_S, FleetCase


@dataclass(frozen=True, slots=True, eq=False)
class FleetPath:
    """``onward_usd`` [H, S]: least USD from an hour on at a composition; ``change_usd`` [S, S] to another."""

    case: FleetCase
    compositions: Compositions
    start_usd: Floats
    onward_usd: Floats
    change_usd: Floats

    def slots(self, first_hour: int) -> list[Slot]:
        """Units with the hours [H − first_hour] in which each is ready; empty when nothing meets them."""
        chosen = self._walk(first_hour)
        if not len(chosen):
            return []
        shelf = self.compositions.shelf
        ready = self.compositions.counts[chosen]
        return [
            Slot(int(unit), ready[:, place] > rank)
            for place, unit in enumerate(shelf.units)
            for rank in range(int(ready[:, place].max()))
        ]

    def _walk(self, first_hour: int) -> Ints:
        first = self.onward_usd[first_hour] + self.compositions.counts @ self.start_usd
        at = int(np.argmin(first))
        if not np.isfinite(first[at]):
            return np.zeros(0, dtype=np.int64)
        return cheapest_way(self.change_usd, self.onward_usd, first_hour, at)


def fleet_path(
    problem: Problem, case: FleetCase, free: Ints, fixed: Sequence[int] = (), nested: int = MAX_BASES
) -> FleetPath | None:
    """The cheapest path over the compositions beside ``free`` stock; None when nothing can serve."""
    found = compose(problem, case, free, fixed, nested)
    # With two spares or more one larger replica that is ready early can lower the net rate.
    if found is None or (case.spare > 1 and len(np.unique(found.shelf.largest)) > 1):
        return None
    return path_over(problem, case, found, len(set(fixed)))


def path_over(
    problem: Problem, case: FleetCase, found: Compositions, fixed: int, churn_usd: float = 0.0
) -> FleetPath:
    """The cheapest path over compositions of which the first ``fixed`` units are held throughout.

    ``churn_usd``: how much more than it costs the start of a unit counts.
    """
    start = _start_usd(problem, case, found, fixed) + churn_usd
    change = _change_usd(found, start)
    needs = case.demand * (1 - 1e-12)
    after = cheapest_after(found.usd, np.ascontiguousarray(change.T), found.net, needs, np.ones(len(needs)))
    onward = np.where(found.net[None, :] >= needs[:, None], found.usd + after, np.inf)
    return FleetPath(case, found, start, onward, change)


def _change_usd(found: Compositions, start: Floats) -> Floats:
    """USD to go from each composition to each [S, S]; inf where one offer would be asked for both at once."""
    before, after = found.counts[:, None, :], found.counts[None, :, :]
    usd: Floats = np.maximum(0, after - before) @ start
    shelf = found.shelf
    offers, uses = np.unique(shelf.offer, return_counts=True)
    for offer in offers[uses > 1]:
        inside = shelf.offer == offer
        together = np.maximum(before[..., inside], after[..., inside]) @ shelf.nodes[inside]
        usd[together > int(shelf.free[inside].max())] = np.inf
    return usd


def _start_usd(problem: Problem, case: FleetCase, found: Compositions, fixed: int) -> Floats:
    """USD to start each unit [D]: its cold start in whole increments; nothing for what is held throughout."""
    units, chosen = case.units, found.shelf.units
    increment = problem.table.increment_s[units.offer[chosen]]
    lead_s = np.ceil(units.cold_s[chosen] / increment) * increment
    upfront = units.nodes[chosen] * problem.table.upfront_usd[units.offer[chosen]]
    cost: Floats = found.shelf.usd * lead_s / HOUR_S + upfront
    cost[:fixed] = 0.0
    return cost


def path_columns(problem: Problem, path: FleetPath, after: Sequence[float | None]) -> Iterator[Column]:
    """The fleet for each start of the service."""
    for after_s in after:
        time = time_of(problem, path.case, after_s)
        if time.first_hour < len(path.onward_usd):
            slots = trimmed(path.case, path.slots(time.first_hour), time.first_hour)
            column = build_slots_column(problem, path.case, slots, after_s)
            if column is not None and column.pieces and Ledger(problem).fits(column):
                yield column


def committed_bases(
    problem: Problem, case: FleetCase, ladders: Sequence[BuiltLadder]
) -> list[tuple[int, ...]]:
    """Lowest rungs of each ladder that carry a minimum term, as sets of units to hold throughout."""
    found: dict[tuple[int, ...], None] = {}
    for built in ladders:
        bound = [problem.table.min_s[case.units.offer[unit]] > HOUR_S for unit in built.rungs]
        length = next((i for i, is_bound in enumerate(bound) if not is_bound), len(bound))
        for count in range(length, max(0, length - 2), -1):
            found[tuple(built.rungs[:count])] = None
    return list(found)


def recomposed(
    problem: Problem, case: FleetCase, free: Ints, column: Column, after: Sequence[float | None]
) -> Iterator[Column]:
    """What a fleet commits to, with anything by the hour on it: every level of demand covered anew."""
    fixed = committed(problem, case, column)
    path = fleet_path(problem, case, free, fixed) if fixed else None
    if path is not None:
        yield from path_columns(problem, path, after)


def committed(problem: Problem, case: FleetCase, column: Column) -> list[int]:
    """Units with a minimum term, as many as a fleet holds at most at once; none where one is unknown."""
    units, found = case.units, list[int]()
    for piece in column.pieces:
        if problem.table.min_s[piece.offer] <= HOUR_S:
            continue
        same = np.flatnonzero((units.offer == piece.offer) & (units.config == piece.choice))
        nodes = max((nodes for _, _, nodes in piece.spans), default=0)
        if not len(same):
            return []
        found += [int(same[0])] * (nodes // int(units.nodes[same[0]]))
    return found
