"""From units and the hours in which each must be ready to an exact column of a service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleets.holding import ServiceTime, held_stretches, ready_intervals, service_time
from optimizer.placement.problem.columns import Column, Piece, Span, price_cents, with_switching
from optimizer.placement.problem.delays import delay_cents
from optimizer.placement.problem.problem import Bools, Problem
from optimizer.placement.problem.transfers import with_transfers
from optimizer.placement.problem.units import FleetCase

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One unit, and the hours from the service's first [H] in which it must be ready."""

    unit: int
    needed: Bools


def time_of(problem: Problem, case: FleetCase, after_s: float | None) -> ServiceTime:
    """When the service runs."""
    starts_at = case.service.starts_at
    return service_time(problem, None if starts_at is None else problem.seconds(starts_at), after_s)


def build_slots_column(
    problem: Problem, case: FleetCase, slots: Iterable[Slot], after_s: float | None
) -> Column | None:
    """The slots as an exact column; None when no time is left to serve."""
    time = time_of(problem, case, after_s)
    if time.start_s >= time.end_s:
        return None
    pieces = tuple(_pieces(problem, case, slots, time))
    column = Column(
        case.service.name,
        pieces,
        sum(p.cost_cents for p in pieces),
        after_s=after_s,
        delay_cents=delay_cents(problem, case.service.name, after_s),
    )
    return with_switching(problem, with_transfers(problem, column))


def _pieces(problem: Problem, case: FleetCase, slots: Iterable[Slot], time: ServiceTime) -> Iterator[Piece]:
    units = case.units
    held: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for slot in slots:
        ready = ready_intervals(time, slot.needed)
        if not ready:
            continue
        offer, config = int(units.offer[slot.unit]), int(units.config[slot.unit])
        stretches = held_stretches(problem.table, offer, float(units.cold_s[slot.unit]), time, ready)
        held[offer, config].extend((a, b, int(units.nodes[slot.unit])) for a, b in stretches)
    for (offer, config), spread in sorted(held.items()):
        spans = stacked(spread)
        yield Piece(offer, config, spans, price_cents(problem, offer, spans))


def stacked(stretches: Sequence[Span]) -> tuple[Span, ...]:
    """Holdings of single units as one step function."""
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


def trimmed(case: FleetCase, slots: Sequence[Slot], first_hour: int) -> list[Slot]:
    """Each slot needed only in the hours that the others, as trimmed so far, cannot meet without it."""
    if not slots:
        return []
    demand, at = case.demand[first_hour:], np.array([slot.unit for slot in slots])
    units, ready = case.units, np.array([slot.needed for slot in slots])
    order = np.argsort(-units.usd_per_hour[at] - units.surcharge_usd_per_hour[at], kind="stable")
    for place in order:
        without = ready.copy()
        without[place] = False
        largest = (without * units.largest[at][:, None]).max(axis=0)
        rate = units.requests_per_s[at] @ without - case.spare * largest
        enough = rate >= demand * (1 - ROUNDING)
        if case.zones > 1:
            zone = units.zone[at]
            seen = sum((without[zone == name].any(axis=0)).astype(np.int64) for name in np.unique(zone))
            enough &= seen >= case.zones
        else:
            enough &= without.any(axis=0)
        ready[place] &= ~enough
    return [Slot(slot.unit, needed) for slot, needed in zip(slots, ready, strict=True)]
