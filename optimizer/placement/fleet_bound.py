"""A lower bound on what a service costs from any start to the horizon's end.

Every fleet whose node counts change at grid hours is covered: at each hour its hourly price is at
least the least cover g(demand) over all gated units (integral, with stock, zones and spares), and each
rise of its rate pays at least the cheapest start of units that bring that rise. The shortest path over
the steps of g joins both. Minimum terms are relaxed to nothing, other workloads are left out.
J steps of g, H hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.placement.cover import GRID, least_cover
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase, Units

MAX_STEPS = 64
MAX_RATES = 12


@dataclass(frozen=True, slots=True, eq=False)
class FleetBound:
    """Least cost of a service from any start. ``price`` and ``most`` [J]: USD per hour and highest rate of
    each step of g; ``onward_usd`` [H, J]: least cost after an hour that was met at a step.

    ``in_hours``: everything is billed in whole hours of the grid; ``in_cents``: and each of those costs
    whole cents, so that amounts between two cents cannot occur.
    """

    price: Floats
    most: Ints
    needs: Ints
    onward_usd: Floats
    shortest_cold_s: float
    longest_cold_s: float
    in_hours: bool
    in_cents: bool

    def from_due(self, due_s: float) -> float:
        """Least cost when traffic is due from ``due_s`` for a fleet with the slowest start of all.

        Whatever is ready by then was held its own cold start before, in whole hours where billed so.
        """
        hour = int(due_s // HOUR_S)
        if hour >= len(self.needs):
            return 0.0
        held_from = due_s - self.shortest_cold_s
        if self.in_hours:
            held_from = held_from // HOUR_S * HOUR_S
        hours = ((hour + 1) * HOUR_S - held_from) / HOUR_S
        cost = np.where(self.most >= self.needs[hour], self.price * hours + self.onward_usd[hour], np.inf)
        return float(cost.min(initial=np.inf))

    @property
    def feasible(self) -> bool:
        """Whether the stock of all offers together could meet every hour."""
        return int(self.most.max(initial=-1)) >= int(self.needs.max(initial=-1))

    @classmethod
    def nothing(cls) -> FleetBound:
        """The bound that says nothing."""
        return cls(
            np.zeros(0),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros((0, 0)),
            0.0,
            0.0,
            False,
            False,
        )


def bound_fleet(
    problem: Problem, case: FleetCase, surcharge_usd_per_hour: Floats | None = None
) -> FleetBound:
    """The bound of one service; ``surcharge`` [O] raises the price of a node-hour of each offer."""
    units = case.units
    if not len(units):
        needs = np.zeros(len(case.demand), np.int64)
        return FleetBound(np.zeros(0), needs[:0], needs, np.zeros((len(needs), 0)), 0.0, 0.0, False, False)
    hourly = units.usd_per_hour.copy()
    if surcharge_usd_per_hour is not None:
        hourly += units.nodes * surcharge_usd_per_hour[units.offer]
    spare_rate = case.spare * float(units.largest.max())
    step = max(float(case.demand.max()) + spare_rate, 1e-12) / GRID
    cover = _net_cover(case, hourly, step)
    needs = np.minimum(np.floor(case.demand / step * (1 - 1e-9)), GRID).astype(np.int64)
    starting = _start_costs(problem, case)
    rise = _start_cover(case, starting, step)
    price, low, high = _steps_of(cover)
    lengths = _hour_lengths(problem, len(needs))
    onward = _shortest_path(price, _jumps(low, high, rise, float(starting.min())), high, needs, lengths)
    in_hours = bool((problem.table.increment_s[units.offer] % HOUR_S == 0).all()) and _on_grid(problem)
    cold = (float(units.cold_s.min()), float(units.cold_s.max()))
    in_cents = in_hours and surcharge_usd_per_hour is None and _whole_cents(problem, case)
    return FleetBound(price, high, needs, onward, *cold, in_hours, in_cents)


def _whole_cents(problem: Problem, case: FleetCase) -> bool:
    offers = np.unique(case.units.offer)
    amounts = np.concatenate((problem.table.price_usd[offers], problem.table.upfront_usd[offers])) * 100
    return bool((np.abs(amounts - np.rint(amounts)) < 1e-9).all())


def _on_grid(problem: Problem) -> bool:
    """Whether the horizon ends with a grid hour, so that whole hours stay whole."""
    return problem.end_s % HOUR_S == 0


def _hour_lengths(problem: Problem, hours: int) -> Floats:
    ends = np.minimum((np.arange(hours) + 1) * HOUR_S, problem.end_s)
    lengths: Floats = (ends - np.arange(hours) * HOUR_S) / HOUR_S
    return lengths


def _steps(rate: Floats, step: float) -> Ints:
    return np.minimum(np.ceil(rate / step * (1 - 1e-9)), GRID).astype(np.int64)


def _net_cover(case: FleetCase, hourly: Floats, step: float) -> Floats:
    """The price g over net rate: with spares, the least over what the largest replica in the fleet may be.

    Replicas larger than some level need at least that level's spare; levels are thinned to the lower
    ends of at most ``MAX_RATES`` groups, which only lowers the cost.
    """
    units = case.units
    if case.spare == 0:
        return _cover_of(case, hourly, step, np.ones(len(units), dtype=np.bool_), 0.0)
    best = np.full(GRID + 1, np.inf)
    for low, high in _rate_groups(units.largest):
        chosen = units.largest <= high
        best = np.minimum(best, _cover_of(case, hourly, step, chosen, case.spare * low))
    return best


def _rate_groups(rates: Floats) -> list[tuple[float, float]]:
    groups = np.array_split(np.unique(rates), min(MAX_RATES, len(np.unique(rates))))
    return [(float(group[0]), float(group[-1])) for group in groups]


def _cover_of(case: FleetCase, hourly: Floats, step: float, chosen: np.ndarray, spare_rate: float) -> Floats:
    keep = np.flatnonzero(chosen)
    keep = keep[_useful(case.units, keep, hourly, step, case.zones)]
    units = case.units
    gross = least_cover(
        _steps(units.requests_per_s[keep], step), hourly[keep], units.most[keep], units.zone[keep], case.zones
    )
    shift = math.floor(spare_rate / step * (1 - 1e-9))
    at = np.minimum(np.arange(GRID + 1) + shift, GRID)
    net: Floats = gross[at]
    return net


def _useful(units: Units, keep: Ints, hourly: Floats, step: float, zones: int) -> Ints:
    """Positions in ``keep`` that some cheapest cover may need.

    Within a kind the cheapest, until they could serve everything alone from enough zones; and no kind
    that another such kind beats in rate and price even with its dearest kept unit.
    """
    kinds: list[tuple[int, float, float, list[int]]] = []
    for kind in np.unique(units.kind[keep]):
        inside = np.flatnonzero(units.kind[keep] == kind)
        inside = inside[np.argsort(hourly[keep[inside]], kind="stable")]
        size = int(_steps(units.requests_per_s[keep[inside[:1]]], step)[0])
        chosen, alone = _enough(units, keep, inside, GRID // max(1, size) + 2 + zones, zones)
        dearest = float(hourly[keep[chosen[-1]]]) if alone else np.inf
        kinds.append((size, float(hourly[keep[chosen[0]]]), dearest, chosen))
    kept = [row for index, row in enumerate(kinds) if not _beaten(index, kinds)]
    return np.array(sorted(position for row in kept for position in row[3]), dtype=np.int64)


def _enough(units: Units, keep: Ints, inside: Ints, enough: int, zones: int) -> tuple[list[int], bool]:
    chosen: list[int] = []
    seen: set[int] = set()
    total = 0
    for position in inside:
        chosen.append(int(position))
        total += int(units.most[keep[position]])
        seen.add(int(units.zone[keep[position]]))
        if total >= enough and len(seen) >= zones:
            return chosen, True
    return chosen, False


def _beaten(index: int, kinds: list[tuple[int, float, float, list[int]]]) -> bool:
    size, cheapest = kinds[index][:2]
    for other, (rate, _, dearest, _) in enumerate(kinds):
        if other != index and rate >= size and dearest <= cheapest:
            same = rate == size and kinds[index][2] <= kinds[other][1]
            if not same or other < index:
                return True
    return False


def _start_costs(problem: Problem, case: FleetCase) -> Floats:
    """USD to start each unit [U]: its cold start rounded up to billing increments; 0 with two spares
    or more, when a smaller largest replica can raise the net rate for nothing."""
    units = case.units
    if case.spare > 1:
        return np.zeros(len(units))
    increment = problem.table.increment_s[units.offer]
    rounded = np.ceil(units.cold_s / increment) * increment
    lead_s = np.where((HOUR_S % increment == 0) & _on_grid(problem), rounded, units.cold_s)
    upfront = units.nodes * problem.table.upfront_usd[units.offer]
    cost: Floats = units.usd_per_hour * lead_s / HOUR_S + upfront
    return cost


def _start_cover(case: FleetCase, cost: Floats, step: float) -> Floats:
    """Least cost of starting units that bring a rise of each number of steps."""
    rates = case.units.requests_per_s
    linear = np.arange(GRID + 1) * step * float((cost / np.maximum(rates, 1e-12)).min())
    rise: Floats = np.maximum(linear * (1 - 1e-9), _whole_start_cover(_steps(rates, step), cost))
    rise[0] = 0.0
    return rise


def _whole_start_cover(steps: Ints, cost: Floats) -> Floats:
    """Unbounded knapsack over the undominated (steps, cost) pairs."""
    pairs = sorted({(float(c), -int(s)) for s, c in zip(steps, cost, strict=True)})
    kept: list[tuple[int, float]] = []
    for price, negative in pairs:
        if not kept or -negative > kept[-1][0]:
            kept.append((-negative, price))
    gains = np.array([max(1, s) for s, _ in kept], dtype=np.int64)
    prices = np.array([c for _, c in kept], dtype=np.float64)
    found = np.zeros(GRID + 1)
    for level in range(1, GRID + 1):
        found[level] = float((found[np.maximum(0, level - gains)] + prices).min())
    return found


def _jumps(low: Ints, high: Ints, rise: Floats, single: float) -> Floats:
    """Least cost of going from each step to each [J, J].

    A rate is known to one step only, so a rise counts one step less; but any rise starts some unit.
    """
    some = np.where(low[None, :] > high[:, None], single, 0.0)
    jumps: Floats = np.maximum(some, rise[np.maximum(0, low[None, :] - high[:, None] - 1)])
    return jumps


def _shortest_path(price: Floats, jumps: Floats, most: Ints, needs: Ints, lengths: Floats) -> Floats:
    """Backwards over hours: least cost after each hour [H, J] that was met at each step."""
    onward = np.zeros((len(needs), len(price)))
    for hour in range(len(needs) - 2, -1, -1):
        later = np.where(most >= needs[hour + 1], price * lengths[hour + 1] + onward[hour + 1], np.inf)
        onward[hour] = (jumps + later[None, :]).min(axis=1, initial=np.inf)
    return onward


def _steps_of(cover: Floats) -> tuple[Floats, Ints, Ints]:
    """Steps of g: price, first and last rate of each; at most ``MAX_STEPS``, merged downward."""
    finite = np.flatnonzero(np.isfinite(cover))
    if not len(finite):
        return np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside = cover[finite]
    starts = np.flatnonzero(np.append(True, np.diff(inside) > 1e-12))
    if len(starts) > MAX_STEPS:
        starts = starts[np.unique(np.linspace(0, len(starts) - 1, MAX_STEPS).astype(np.int64))]
    ends = np.append(starts[1:] - 1, len(inside) - 1)
    return inside[starts], finite[starts], finite[ends]
