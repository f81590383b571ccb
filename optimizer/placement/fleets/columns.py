"""From units and the hours in which each must be ready to an exact column of a service.

Between two such intervals a unit is either held or released and started again, whichever is expected to cost
less. This is exact for one unit, because minimum terms, increments, upfront prices, the cold start and the
chance of not getting it again are all part of the price. I intervals in which a unit must be ready.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.problem.columns import Column, Piece, Span, price_cents, with_switching
from optimizer.placement.problem.delays import delay_cents
from optimizer.placement.problem.problem import Bools, Floats, Ints, OfferTable, Problem
from optimizer.placement.problem.relaunches import with_relaunches
from optimizer.placement.problem.transfers import with_transfers
from optimizer.placement.problem.units import HOUR_S, FleetCase


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """When a service runs: from ``start_s`` to ``end_s``. Nodes may be held from ``floor_s`` on, and load the
    weights from ``weights_s`` on.
    """

    start_s: float
    weights_s: float
    floor_s: int
    end_s: int

    @property
    def first_hour(self) -> int:
        """Index of the grid hour that contains the start."""
        return int(self.start_s // HOUR_S)


def service_time(problem: Problem, service: Serving, after_s: float | None) -> ServiceTime:
    """The time of a service whose run, if it follows one, ends at ``after_s``."""
    weights_s = max(after_s or 0.0, float(problem.t0_s))
    start_s = problem.start_of(service, weights_s)
    return ServiceTime(start_s, weights_s, math.floor(weights_s), problem.end_of(service))


def due_s(time: ServiceTime, cold_s: float) -> float:
    """First instant at which traffic must be served by a fleet whose slowest cold start takes ``cold_s``."""
    return max(time.start_s, time.weights_s + cold_s)


def ready_intervals(time: ServiceTime, needed: Bools) -> list[tuple[int, int]]:
    """Intervals of needed grid hours [H from ``first_hour``], clipped to the service's time."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], needed.astype(np.int8), [0]))))
    found = []
    for first, last in edges.reshape(-1, 2):
        start = max(math.floor(time.start_s), (time.first_hour + int(first)) * HOUR_S)
        found.append((start, min((time.first_hour + int(last)) * HOUR_S, time.end_s)))
    return [(a, b) for a, b in found if a < b]


def held_stretches(
    table: OfferTable, offer: int, cold_s: float, time: ServiceTime, ready: list[tuple[int, int]],
    again_usd: float = 0.0,
) -> list[tuple[int, int]]:  # fmt: skip
    """Cheapest intervals for which to hold one node so that it is ready in every interval of ``ready``; each
    start after the first is expected to cost ``again_usd``.
    """
    starts = np.array([max(time.floor_s, math.floor(a - cold_s)) for a, _ in ready], dtype=np.int64)
    ends = np.array([b for _, b in ready], dtype=np.int64)
    apart = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    starts, ends = starts[apart], ends[np.append(apart[1:] - 1, len(ends) - 1)]
    return _cheapest_merge(table, offer, starts, ends, again_usd)


def _cheapest_merge(
    table: OfferTable, offer: int, starts: Ints, ends: Ints, again_usd: float
) -> list[tuple[int, int]]:
    """Dynamic program: least[j] = cost of holding everything up to interval j."""
    count = len(starts)
    started_usd = np.where(np.arange(count) > 0, again_usd, 0.0)
    offers = np.full(count, offer, dtype=np.int64)
    least = np.zeros(count + 1)
    came = np.zeros(count, dtype=np.int64)
    for j in range(count):
        spans = ends[j] - starts[: j + 1]
        cost: Floats = least[: j + 1] + table.node_cost_usd(offers[: j + 1], spans) + started_usd[: j + 1]
        came[j] = int(np.argmin(cost))
        least[j + 1] = cost[came[j]]
    stretches, j = [], count - 1
    while j >= 0:
        stretches.append((int(starts[came[j]]), int(ends[j])))
        j = int(came[j]) - 1
    return stretches[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One unit, and the hours [H] of the service in which it must be ready."""

    unit: int
    needed: Bools


def time_of(problem: Problem, case: FleetCase, after_s: float | None) -> ServiceTime:
    """When the service runs."""
    return service_time(problem, case.service, after_s)


def build_slots_column(
    problem: Problem, case: FleetCase, slots: Iterable[Slot], after_s: float | None
) -> Column | None:
    """The exact column of the slots; None if the service starts after the horizon."""
    time = time_of(problem, case, after_s)
    if time.start_s >= time.end_s:
        return None
    pieces = tuple(_pieces(problem, case, slots, time))
    column = _column(problem, case, pieces, after_s)
    return with_switching(problem, with_transfers(problem, expecting(problem, case, column)))


def _column(problem: Problem, case: FleetCase, pieces: tuple[Piece, ...], after_s: float | None) -> Column:
    return Column(
        case.service.name,
        pieces,
        sum(p.cost_cents for p in pieces),
        after_s=after_s,
        delay_cents=delay_cents(problem, case.service.name, after_s),
    )


def expecting(problem: Problem, case: FleetCase, column: Column) -> Column:
    """The column with the expected cost of the orders that it repeats."""
    time, units = time_of(problem, case, column.after_s), case.units
    cold_s = []
    for piece in column.pieces:
        at = np.flatnonzero((units.offer == piece.offer) & (units.config == piece.choice))
        cold_s.append(float(units.cold_s[at[0]]) if len(at) else 0.0)
    return with_relaunches(problem, case.relaunches, column, time.floor_s, time.start_s, cold_s)


def _pieces(problem: Problem, case: FleetCase, slots: Iterable[Slot], time: ServiceTime) -> Iterator[Piece]:
    units = case.units
    held: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for slot in slots:
        ready = ready_intervals(time, slot.needed)
        if not ready:
            continue
        offer, config = int(units.offer[slot.unit]), int(units.config[slot.unit])
        nodes = int(units.nodes[slot.unit])
        again_usd = float(case.relaunch_usd(np.array([slot.unit]))[0]) / nodes
        stretches = held_stretches(
            problem.table, offer, float(units.cold_s[slot.unit]), time, ready, again_usd
        )
        held[offer, config].extend((a, b, nodes) for a, b in stretches)
    for (offer, config), spread in sorted(held.items()):
        spans = stacked(spread)
        yield Piece(offer, config, spans, price_cents(problem, offer, spans))


def stacked(stretches: Sequence[Span]) -> tuple[Span, ...]:
    """Sums the holdings of single units to a step function."""
    change: defaultdict[int, int] = defaultdict(int)
    for start, end, nodes in stretches:
        change[start] += nodes
        change[end] -= nodes
    spans: list[Span] = []
    level, since = 0, 0
    for at in sorted(change):
        if not change[at]:
            continue
        if level:
            spans.append((since, at, level))
        level, since = level + change[at], at
    return tuple(spans)
