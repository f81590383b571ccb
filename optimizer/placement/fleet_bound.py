"""A lower bound on what a service costs from any start to the horizon's end.

Every fleet whose node counts change at grid hours is covered: at each hour its hourly price is at
least the least cover g(demand) over all gated units (integral, with stock, zones and spares), and each
rise of its rate pays at least the cheapest start of units that bring that rise. The shortest path over
the steps of g joins both. Commitments as long as the horizon are owed in full however they are used,
so each amount of them is a layer of its own, with the path over what it leaves; shorter minimum terms
are relaxed to nothing, and other workloads are left out. The bound is the least of the layers.
With prices of scarcity (``prices``) it bounds cost + price × what is held. J steps of g, H hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.placement.cover import GRID, least_cover
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_dual import build_dual
from optimizer.placement.fleet_menu import build_menu, half_usd
from optimizer.placement.holding import due_s
from optimizer.placement.net_cover import gross_cover, in_steps, net_cover
from optimizer.placement.prices import horizon_hours
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.shortest_path import cheapest_after
from optimizer.placement.start_costs import jump_costs, on_grid, start_costs, start_cover
from optimizer.placement.stopwatch import never
from optimizer.placement.units import HOUR_S, Counts, FleetCase, Units, no_covers, only_units, with_units

MAX_STEPS = 64
MAX_BASES = 12
MAX_BASE_RATES = 6
MAX_BASE_STEPS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """``base_usd`` owed for commitments, and the path of the rest.

    ``price`` and ``most`` [J]: USD per hour and highest rate of each step of g; ``needs`` [H] in the same
    steps of rate; ``onward_usd`` [H, J]: least cost after an hour that was met at a step.
    """

    base_usd: float
    price: Floats
    most: Ints
    needs: Ints
    onward_usd: Floats

    def least_usd(self, hour: int, hours: float) -> float:
        """Least cost from ``hour`` on, when that hour's fleet is held for ``hours``."""
        rest = self.price * hours + self.onward_usd[hour]
        return self.base_usd + float(
            np.where(self.most >= self.needs[hour], rest, np.inf).min(initial=np.inf)
        )


@dataclass(frozen=True, slots=True, eq=False)
class FleetBound:
    """Least cost of a service from any start.

    ``layers`` are the ways to commit, of which every fleet is one; ``relaxed`` is a bound over all of them.
    ``in_hours``: everything is billed in whole hours of the grid; ``in_cents``: and each of those costs
    whole cents, so that amounts between two cents cannot occur. ``spare_rates``: the largest replica's rates
    at which some demand is cheapest to cover. ``due_usd``: least cost when traffic is due from ``due_s``, for
    a service whose start is known; ``covers`` [M, U]: units that are cheap for some demand;
    ``met``: whether it is feasible, of a bound without its layers, which knows of a start later than
    ``due_s`` only what each hour [H] costs at least (``hourly_usd``) and what ``whole_days`` that are alike
    do (``days_usd``). ``is_exact``: asking deeper adds nothing.
    """

    layers: tuple[Layer, ...]
    relaxed: Layer | None
    hours: int
    shortest_cold_s: float = 0.0
    longest_cold_s: float = 0.0
    in_hours: bool = False
    in_cents: bool = False
    spare_rates: tuple[float, ...] = ()
    due_s: float = 0.0
    due_usd: float = 0.0
    covers: Counts = field(default_factory=no_covers)
    met: bool | None = None
    whole_days: int = 0
    days_usd: float = 0.0
    hourly_usd: Floats = field(default_factory=lambda: np.zeros(0))
    is_exact: bool = False

    def from_due(self, due_s: float) -> float:
        """Least cost when traffic is due from ``due_s`` for a fleet with the slowest start of all.

        Whatever is ready by then was held its own cold start before, in whole hours where billed so.
        """
        hour = int(due_s // HOUR_S)
        if hour >= self.hours:
            return 0.0
        if self.met is not None:
            return self.due_usd if due_s <= self.due_s else self._from_later(due_s)
        hours = self.first_hours(due_s)
        least = min((layer.least_usd(hour, hours) for layer in self.layers), default=np.inf)
        if self.relaxed is not None:
            least = max(least, self.relaxed.least_usd(hour, hours))
        # Whatever meets traffic from before the start meets it from then on.
        return max(least, self.due_usd) if due_s <= self.due_s else least

    def _from_later(self, due_s: float) -> float:
        """Least cost of a start that was not asked for: hour by hour, and of days that are alike their
        part."""
        hour = int(due_s // HOUR_S)
        if hour >= len(self.hourly_usd):
            return 0.0
        hours = float(self.hourly_usd[hour + 1 :].sum() + self.hourly_usd[hour] * self.first_hours(due_s))
        left = min(self.whole_days, int((self.hours - due_s / HOUR_S) // 24))
        return max(hours, self.days_usd * left / self.whole_days) if left else hours

    def first_hours(self, due_s: float, last: float = 1.0) -> float:
        """Hours that are paid up to the end of the hour of ``due_s``, which lasts ``last`` hours."""
        held_from = due_s - self.shortest_cold_s
        if self.in_hours:
            held_from = held_from // HOUR_S * HOUR_S
        return (int(due_s // HOUR_S) + last) - held_from / HOUR_S

    def no_lower_than(self, before: FleetBound) -> FleetBound:
        """The bound with what was known of the start before, where that is more, and with its covers."""
        covers = self.covers if self.covers.size else before.covers
        if before.due_usd <= self.due_usd or before.due_s < self.due_s:
            return replace(self, covers=covers)
        return replace(self, due_s=before.due_s, due_usd=before.due_usd, covers=covers)

    @property
    def feasible(self) -> bool:
        """Whether the stock of all offers together could meet every hour."""
        if self.met is not None:
            return self.met
        return any(int(x.most.max(initial=-1)) >= int(x.needs.max(initial=-1)) for x in self.layers)

    def only_from(self, due_s: float) -> FleetBound:
        """The same for one start, without the layers: small enough to keep many, and to send."""
        usd, met = self.from_due(due_s), self.feasible
        return replace(self, layers=(), relaxed=None, due_s=due_s, due_usd=usd, met=met)

    def at_prices(self, units: Units) -> FleetBound:
        """What is known without asking of the same start at prices of scarcity, where ``units`` may serve."""
        cold = float(units.cold_s.min()), float(units.cold_s.max())
        return FleetBound((), None, self.hours, *cold, met=self.feasible)

    @classmethod
    def nothing(cls) -> FleetBound:
        """The bound that says nothing."""
        return cls((), None, 0)


def bound_fleet(problem: Problem, case: FleetCase) -> FleetBound:
    """The bound of one service: the layers, and where its start is known the dual of its fleet."""
    return with_dual(problem, case, layer_bound(problem, case))


def layer_bound(problem: Problem, case: FleetCase) -> FleetBound:
    """The layers alone: the quicker and weaker part of ``bound_fleet``."""
    units, hours = case.units, len(case.demand)
    if not len(units):
        return FleetBound((), None, hours)
    scarce = bool((units.surcharge_usd_per_hour > 0).any())
    in_hours = bool((problem.table.increment_s[units.offer] % HOUR_S == 0).all()) and on_grid(problem)
    in_hours = in_hours and not scarce
    in_cents = in_hours and in_whole_cents(problem, case)
    cold = (float(units.cold_s.min()), float(units.cold_s.max()))
    whole_h = (problem.end_s - problem.t0_s) / HOUR_S
    menu = build_menu(problem, case, whole_h)
    lean = only_units(case, np.isin(np.arange(len(units)), menu.unit))
    in_full = owed_in_full(problem, lean.units)
    relaxed, rates = _relaxed_sketch(_by_the_hour(problem, lean, in_full))
    layer = _path_layer(problem, relaxed, MAX_STEPS)
    layers: tuple[Layer, ...] = (layer,)
    if in_full.any():
        layers = _layers(problem, list(_sketches(problem, lean, in_full)))
    return FleetBound(layers, layer, hours, *cold, in_hours, in_cents, rates)


def with_dual(
    problem: Problem, case: FleetCase, known: FleetBound, out_of_time: Callable[[], bool] = never
) -> FleetBound:
    """With the dual for the service's own start, where that is known, at the slowest cold start of all."""
    time = held_hours(problem, case, known)
    if time is None:
        return known
    due, first, lengths = time
    dual = build_dual(problem, case, first, lengths, known.from_due(due), out_of_time)
    usd = max(dual.least_usd, known.due_usd) if known.met is not None else dual.least_usd
    return replace(known, due_s=due, due_usd=usd, covers=dual.covers)


def held_hours(problem: Problem, case: FleetCase, known: FleetBound) -> tuple[float, int, Floats] | None:
    """When a service is due at the slowest cold start of all, its first hour, and the lengths [H] that it and
    those after are held; None where its start is not known, or nothing can serve it."""
    if case.service.starts_after is not None or not known.feasible:
        return None
    due = due_s(problem, time_of(problem, case, None), False, known.longest_cold_s)
    first = int(due // HOUR_S)
    if first >= known.hours:
        return None
    lengths = _hour_lengths(problem, known.hours)[first:]
    lengths[0] = known.first_hours(due, float(lengths[0]))
    return due, first, lengths


def _by_the_hour(problem: Problem, case: FleetCase, in_full: Bools) -> FleetCase:
    """The case with every scarce commitment as a unit by the hour, at the less of its two prices.

    Held at the middle it pays its price of scarcity for all hours, and serves at most those. Else it
    serves one half of the horizon at most, and is owed in full all the same.
    """
    units = case.units
    scarce = in_full & (units.surcharge_usd_per_hour > 0)
    if not scarce.any():
        return case
    through = units.usd_per_hour + units.surcharge_usd_per_hour
    usd = np.where(scarce, np.minimum(through, half_usd(problem, units)), units.usd_per_hour)
    surcharge = np.where(scarce, 0.0, units.surcharge_usd_per_hour)
    return replace(case, units=replace(units, usd_per_hour=usd, surcharge_usd_per_hour=surcharge))


def _halves(problem: Problem, case: FleetCase) -> FleetCase:
    """Scarce commitments that dodge their price by serving one half of the horizon, by the hour."""
    units = only_units(case, case.units.surcharge_usd_per_hour > 0).units
    free = np.zeros(len(units))
    usd = half_usd(problem, units)
    return replace(case, units=replace(units, usd_per_hour=usd, surcharge_usd_per_hour=free))


def owed_in_full(problem: Problem, units: Units) -> Bools:
    """Units [U] whose minimum term is at least all the time that is left."""
    mask: Bools = problem.table.min_s[units.offer] >= problem.end_s - problem.t0_s
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class _Sketch:
    """A layer before its path: what is owed, and what the rest must cover at which price."""

    base_usd: float
    rest: FleetCase
    cover: Floats
    needs: Ints
    step: float


def _relaxed_sketch(case: FleetCase) -> tuple[_Sketch, tuple[float, ...]]:
    """Every unit by the hour, with zones and spares; and the rates of the largest replica that decide it."""
    step = max(float(case.demand.max()), 1e-12) / GRID
    needs = np.minimum(np.floor(case.demand / step * (1 - 1e-9)), GRID).astype(np.int64)
    cover, rates = net_cover(case, step, needs)
    return _Sketch(0.0, case, cover, needs, step), rates


def _sketches(problem: Problem, case: FleetCase, in_full: Bools) -> Iterator[_Sketch]:
    """No commitment in full, then each amount of them, by the zones that they stand in."""
    halves = _halves(problem, only_units(case, in_full))
    flexible = with_units(only_units(case, ~in_full), halves.units)
    if len(flexible.units):
        yield _relaxed_sketch(flexible)[0]
    step = max(float(case.demand.max()) + case.spare * float(case.units.largest.max()), 1e-12) / GRID
    covers = [gross_cover(flexible, step, zones=case.zones - zones) for zones in range(1, case.zones + 1)]
    largest = case.units.largest
    for low, high in _rate_groups(largest[in_full], MAX_BASE_RATES if case.spare else 1):
        committed = only_units(case, in_full & (largest <= high))
        # What stands all the time is spared in every hour; a larger replica only in those that it joins.
        needs = np.floor((case.demand + case.spare * low) / step * (1 - 1e-9)).astype(np.int64)
        for zones, cover in enumerate(covers, 1):
            for owed, rate in _bases(problem, committed, step, zones):
                yield _Sketch(owed, flexible, cover, np.clip(needs - rate, 0, GRID), step)


def _layers(problem: Problem, sketches: list[_Sketch]) -> tuple[Layer, ...]:
    """The most promising sketches with their paths, the others by their hourly prices alone."""
    flat = [_flat_layer(problem, sketch) for sketch in sketches]
    order = sorted(range(len(flat)), key=lambda i: (_whole_usd(flat[i]), i))
    layers, best = [], np.inf
    for index in order:
        layer = flat[index]
        if _whole_usd(layer) < best:
            layer = _path_layer(problem, sketches[index], MAX_BASE_STEPS)
            best = min(best, _whole_usd(layer))
        layers.append(layer)
    return tuple(layers)


def _whole_usd(layer: Layer) -> float:
    return layer.least_usd(0, 1.0)


def _flat_layer(problem: Problem, sketch: _Sketch) -> Layer:
    """The layer without what starting costs."""
    lengths = _hour_lengths(problem, len(sketch.needs))
    levels, inverse = np.unique(sketch.needs, return_inverse=True)
    price = sketch.cover[levels]
    later = np.append(np.cumsum((price[inverse] * lengths)[::-1])[::-1][1:], 0.0)
    onward = np.broadcast_to(later[:, None], (len(later), len(price)))
    return Layer(sketch.base_usd, price, levels, sketch.needs, onward)


def _bases(problem: Problem, case: FleetCase, step: float, zones: int) -> Iterator[tuple[float, int]]:
    """Amounts owed for commitments, with the highest rate (in steps) that each can buy."""
    if not len(case.units):
        return
    units, table = case.units, problem.table
    owed = units.nodes * table.node_cost_usd(units.offer, np.zeros(len(units), dtype=np.int64))
    owed = owed + units.surcharge_usd_per_hour * horizon_hours(problem)
    cover = least_cover(in_steps(units.requests_per_s, step), owed, units.most, units.zone, zones)
    price, _, most = _steps_of(cover, MAX_BASES)
    yield from ((float(p), int(m)) for p, m in zip(price, most, strict=True))


def _path_layer(problem: Problem, sketch: _Sketch, steps: int) -> Layer:
    price, low, high = _steps_of(sketch.cover, steps, sketch.needs)
    starting = start_costs(problem, sketch.rest)
    jumps = jump_costs(
        low, high, start_cover(sketch.rest, starting, sketch.step), float(starting.min(initial=np.inf))
    )
    hours, needs = _hour_lengths(problem, len(sketch.needs)), sketch.needs.astype(np.float64)
    onward = cheapest_after(price, np.ascontiguousarray(jumps.T), high.astype(np.float64), needs, hours)
    return Layer(sketch.base_usd, price, high, sketch.needs, onward)


def in_whole_cents(problem: Problem, case: FleetCase) -> bool:
    """Whether every price of what may serve is a whole number of cents."""
    offers, table = np.unique(case.units.offer), problem.table
    amounts = np.concatenate((table.price_usd[offers], table.upfront_usd[offers])) * 100
    return bool((np.abs(amounts - np.rint(amounts)) < 1e-9).all())


def _hour_lengths(problem: Problem, hours: int) -> Floats:
    ends = np.minimum((np.arange(hours) + 1) * HOUR_S, problem.end_s)
    lengths: Floats = (ends - np.arange(hours) * HOUR_S) / HOUR_S
    return lengths


def _rate_groups(rates: Floats, most: int) -> list[tuple[float, float]]:
    groups = np.array_split(np.unique(rates), min(most, len(np.unique(rates))))
    return [(float(group[0]), float(group[-1])) for group in groups]


def _steps_of(cover: Floats, count: int, needs: Ints | None = None) -> tuple[Floats, Ints, Ints]:
    """Steps of g: price, first and last rate of each; at most ``count``, merged downward.

    Where there are more, those remain that begin at one of ``needs``: at these nothing is lost.
    """
    finite = np.flatnonzero(np.isfinite(cover))
    if not len(finite):
        return np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside = cover[finite]
    starts = np.flatnonzero(np.append(True, np.diff(inside) > 1e-12))
    if len(starts) > count and needs is not None:
        wanted = np.searchsorted(finite, np.append(np.unique(needs), 0))
        starts = np.unique(np.append(0, wanted[wanted < len(finite)]))
    if len(starts) > count:
        starts = starts[np.unique(np.linspace(0, len(starts) - 1, count).astype(np.int64))]
    ends = np.append(starts[1:] - 1, len(inside) - 1)
    return inside[starts], finite[starts], finite[ends]
