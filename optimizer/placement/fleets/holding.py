"""When to hold one unit of a fleet: through a quiet gap, or released and started again.

I intervals in which the unit must be ready. Exact for one unit: minimum terms, increments, upfront
prices and the cold start before each holding are all in the price of a merged stretch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.placement.problem.problem import Bools, Floats, Ints, OfferTable, Problem
from optimizer.placement.problem.units import HOUR_S


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """When a service runs: from ``start_s``; nodes may be held from ``floor_s`` on.

    ``warm``: the start is known ahead, so the fleet is held before it and ready at it.
    """

    start_s: float
    floor_s: int
    end_s: int

    @property
    def first_hour(self) -> int:
        """Grid hour that holds the start."""
        return int(self.start_s // HOUR_S)


def service_time(problem: Problem, starts_at_s: float | None, after_s: float | None) -> ServiceTime:
    """The time of a service that starts at a given instant, after a run, or with the horizon."""
    if after_s is not None:
        start = max(after_s, float(problem.t0_s))
        return ServiceTime(start, max(problem.t0_s, math.floor(start)), problem.end_s)
    start = max(starts_at_s or 0.0, float(problem.t0_s))
    return ServiceTime(start, problem.t0_s, problem.end_s)


def due_s(problem: Problem, time: ServiceTime, followed: bool, cold_s: float) -> float:
    """First instant at which traffic must be met by a fleet whose slowest start takes ``cold_s``."""
    return time.start_s + cold_s if followed else max(time.start_s, problem.t0_s + cold_s)


def ready_intervals(time: ServiceTime, needed: Bools) -> list[tuple[int, int]]:
    """Stretches of needed grid hours [H from ``first_hour``], clipped to the service's time."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], needed.astype(np.int8), [0]))))
    found = []
    for first, last in edges.reshape(-1, 2):
        start = max(math.floor(time.start_s), (time.first_hour + int(first)) * HOUR_S)
        found.append((start, min((time.first_hour + int(last)) * HOUR_S, time.end_s)))
    return [(a, b) for a, b in found if a < b]


def held_stretches(
    table: OfferTable, offer: int, cold_s: float, time: ServiceTime, ready: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Cheapest stretches to hold one node so that it is ready in every interval."""
    starts = np.array([max(time.floor_s, math.floor(a - cold_s)) for a, _ in ready], dtype=np.int64)
    ends = np.array([b for _, b in ready], dtype=np.int64)
    apart = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    starts, ends = starts[apart], ends[np.append(apart[1:] - 1, len(ends) - 1)]
    return _cheapest_merge(table, offer, starts, ends)


def _cheapest_merge(table: OfferTable, offer: int, starts: Ints, ends: Ints) -> list[tuple[int, int]]:
    """Shortest path over cut points: least[j] = cost of everything up to interval j."""
    count = len(starts)
    offers = np.full(count, offer, dtype=np.int64)
    least = np.zeros(count + 1)
    came = np.zeros(count, dtype=np.int64)
    for j in range(count):
        spans = ends[j] - starts[: j + 1]
        cost: Floats = least[: j + 1] + table.node_cost_usd(offers[: j + 1], spans)
        came[j] = int(np.argmin(cost))
        least[j + 1] = cost[came[j]]
    stretches, j = [], count - 1
    while j >= 0:
        stretches.append((int(starts[came[j]]), int(ends[j])))
        j = int(came[j]) - 1
    return stretches[::-1]
