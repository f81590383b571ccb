"""Which units a cheapest fleet may need: the rest are beaten by others whatever the hours' prices are.

U units of the case, G groups of them (one kind of node, configuration and term), N units kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.prices import counted_midway, horizon_hours
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase, Units

EPSILON = 1e-9
STEPS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Units [N] in ascending order of their largest replica, rates in steps of ``step_rate``.

    ``steps`` of a whole unit, rounded up; ``net`` the same without the spares when this unit holds the
    largest replica; ``size`` that replica's requests/s (0 where nothing is spared). ``usd`` an hour, with the
    price of scarcity of what has no term; ``surcharge_usd`` that of the others; ``lead_h`` hours that a start
    costs; ``term_h`` the minimum term; ``whole_usd`` held throughout, with the price of scarcity.
    """

    unit: Ints
    kind: Ints
    steps: Ints
    net: Ints
    size: Floats
    zone: Ints
    most: Ints
    usd: Floats
    surcharge_usd: Floats
    lead_h: Floats
    term_h: Floats
    whole_usd: Floats

    def __len__(self) -> int:
        return len(self.unit)

    def take(self, at: Ints | Bools) -> Menu:
        """Some of the units, in the given order."""
        return Menu(**{name: getattr(self, name)[at] for name in self.__slots__})


def build_menu(problem: Problem, case: FleetCase, hours: float) -> Menu:
    """The units of a service that needs its fleet for ``hours``.

    A scarce commitment is there twice: held at the middle at its price of scarcity, and not held then.
    """
    step = step_rate(case)
    every = _menu(problem, case, np.flatnonzero(_best_configurations(problem, case, step)), step, hours)
    # What is owed in full however it is used must be the cheapest to hold throughout.
    owed = (every.term_h > hours - EPSILON) & (every.surcharge_usd == 0)
    throughout = _kept(case, every, every.whole_usd, np.zeros((3, len(every))))
    part = np.flatnonzero(~owed)
    rest = every.take(part)
    worse = np.stack((rest.surcharge_usd, rest.lead_h, rest.term_h))
    kept = part[_kept(case, rest, rest.usd, worse)]
    menu = every.take(np.concatenate((throughout[owed[throughout]], kept)))
    return _by_size(_with_halves(problem, case, menu, hours))


def _with_halves(problem: Problem, case: FleetCase, menu: Menu, hours: float) -> Menu:
    """With every scarce commitment by the hour, at what one half of the horizon makes of its cost."""
    scarce = counted_midway(problem, case.units.offer[menu.unit]) & (menu.surcharge_usd > 0)
    if not scarce.any():
        return menu
    halves = menu.take(scarce)
    free = np.zeros(len(halves))
    usd = half_usd(problem, case.units)[halves.unit]
    lead_h = _lead_s(problem, case, halves.unit) / HOUR_S
    halves = replace(
        halves, usd=usd, surcharge_usd=free, lead_h=lead_h, term_h=free, whole_usd=usd * (hours + lead_h)
    )
    both = {n: np.concatenate((getattr(menu, n), getattr(halves, n))) for n in menu.__slots__}
    return Menu(**both)


def half_usd(problem: Problem, units: Units) -> Floats:
    """USD per hour of a commitment owed in full that serves one half of the horizon at most.

    Its start is billed in whole increments beside it, hence the hours on top.
    """
    increments = problem.table.increment_s[units.offer]
    hours = horizon_hours(problem) / 2 + (units.cold_s + 2 * increments) / HOUR_S
    usd: Floats = units.usd_per_hour * horizon_hours(problem) / (hours + 1)
    return usd


def _by_size(menu: Menu) -> Menu:
    return menu.take(np.lexsort((menu.unit, menu.size)))


def step_rate(case: FleetCase) -> float:
    """Rate of one step: the grid holds the peak, and what a single replica lacks of two spares or more."""
    units, peak = case.units, float(case.demand.max(initial=0.0))
    lacking = float((case.spare * units.largest - units.requests_per_s).max(initial=0.0))
    return max(peak + min(lacking, peak), 1e-12) / STEPS


def _in_steps(case: FleetCase, at: Ints, step: float) -> tuple[Ints, Ints]:
    """Rates of units in steps, rounded up: whole, and without the spares of their own replicas."""
    rate, spare = case.units.requests_per_s[at], case.spare * case.units.largest[at]
    steps = np.clip(np.ceil(rate / step * (1 - EPSILON)), 1, STEPS).astype(np.int64)
    net = np.minimum(np.ceil((rate - spare) / step - EPSILON), STEPS).astype(np.int64)
    return steps, np.maximum(net, -STEPS)


def _best_configurations(problem: Problem, case: FleetCase, step: float) -> Bools:
    """On one kind of node a configuration that serves less, from no smaller replicas, is never needed."""
    units = case.units
    kinds, first, inverse = np.unique(units.kind, return_index=True, return_inverse=True)
    sku, nodes = problem.table.sku_of[units.offer[first]], units.nodes[first]
    rank = np.stack(
        (
            *_in_steps(case, first, step),
            -(units.largest[first] if case.spare else np.zeros(len(first))),
            -units.cold_s[first],
        )
    )
    keep = np.ones(len(kinds), dtype=np.bool_)
    for name in np.unique(sku):
        inside = np.flatnonzero(sku == name)
        mine, other = rank[:, inside, None], rank[:, None, inside]
        as_good = (other >= mine).all(axis=0) & (nodes[inside][None, :] == nodes[inside][:, None])
        better = (other > mine).any(axis=0) | (inside[None, :] < inside[:, None])
        keep[inside] = ~(as_good & better).any(axis=1)
    chosen: Bools = keep[inverse]
    return chosen


def _menu(problem: Problem, case: FleetCase, at: Ints, step: float, hours: float) -> Menu:
    units, table = case.units, problem.table
    offer, surcharge = units.offer[at], units.surcharge_usd_per_hour[at]
    steps, net = _in_steps(case, at, step)
    held_s = np.full(len(at), int(hours * HOUR_S), dtype=np.int64)
    midway = counted_midway(problem, offer)
    scarce_h = np.where(midway, horizon_hours(problem), hours)
    term_h = np.where(table.min_s[offer] > HOUR_S, table.min_s[offer] / HOUR_S, 0.0)
    # By the hour a price of scarcity is paid like the price, while a node starts, too.
    alike = np.where((term_h > 0) | midway, 0.0, surcharge)
    usd = units.usd_per_hour[at] + alike
    lead_usd = (units.usd_per_hour[at] * _lead_s(problem, case, at) + alike * units.cold_s[at]) / HOUR_S
    lead_usd += units.nodes[at] * table.upfront_usd[offer]
    return Menu(
        unit=at,
        kind=units.kind[at],
        steps=steps,
        net=net,
        size=units.largest[at] if case.spare else np.zeros(len(at)),
        zone=units.zone[at],
        most=units.most[at],
        usd=usd,
        surcharge_usd=surcharge - alike,
        lead_h=np.divide(lead_usd, usd, out=np.zeros(len(at)), where=usd > 0),
        term_h=term_h,
        whole_usd=units.nodes[at] * table.node_cost_usd(offer, held_s) + surcharge * scarce_h,
    )


def _lead_s(problem: Problem, case: FleetCase, at: Ints) -> Floats:
    """Seconds that are paid before a unit is ready, in whole increments where those divide the hour."""
    cold_s, increment = case.units.cold_s[at], problem.table.increment_s[case.units.offer[at]]
    whole = (HOUR_S % increment == 0) & (problem.end_s % HOUR_S == 0)
    lead: Floats = np.where(whole, np.ceil(cold_s / increment) * increment, cold_s)
    return lead


def _kept(case: FleetCase, menu: Menu, usd: Floats, worse: Floats) -> Ints:
    """Positions of units that some cheapest fleet may need.

    Of a kind and term the cheapest, until they could serve everything alone from enough zones; and none
    that the dearest of another such group beats: cheaper, and no worse in rate, spares or ``worse`` [3, N].
    """
    if not len(menu):
        return np.zeros(0, dtype=np.int64)
    term = worse[2]
    order = np.lexsort((menu.unit, usd, term, menu.kind))
    kind, price, plain = menu.kind[order], usd[order], worse[0][order] == 0
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (kind[1:] != kind[:-1]) | (term[order][1:] != term[order][:-1])
    group = np.cumsum(first) - 1
    heads = np.flatnonzero(first)
    each = np.maximum(menu.steps[order][heads], 1)
    enough = (STEPS + np.maximum(0, each - menu.net[order][heads])) // each + 2 + case.zones
    stock = np.minimum(menu.most[order], STEPS) * plain
    elsewhere = plain & (menu.zone[order] != _first_zone(menu.zone[order], plain, group, len(heads))[group])
    before = _before(stock, heads, group) >= enough[group]
    if case.zones > 1:
        before &= _spread_before(menu.zone[order], plain, elsewhere, heads, group, case.zones)
    inside = ~before
    counts = np.bincount(group, weights=stock * inside, minlength=len(heads)) >= enough
    if case.zones > 1:
        counts &= _zone_counts(menu.zone[order], plain & inside, group, len(heads)) >= case.zones
    dearest = np.full(len(heads), -np.inf)
    np.maximum.at(dearest, group[inside & plain], price[inside & plain])
    dearest[~counts] = np.inf
    at = order[heads]
    rank = np.stack((menu.steps[at], menu.net[at], -menu.size[at], -worse[1][at], -worse[2][at]))
    kept = np.flatnonzero(inside)
    chosen: Ints = order[kept[~_beaten(rank, dearest, group[kept], price[kept])]]
    return chosen


def _before(values: Ints, heads: Ints, group: Ints) -> Ints:
    """Sum of what stands before each row in its group."""
    total = np.cumsum(values) - values
    found: Ints = total - total[heads][group]
    return found


def _first_zone(zone: Ints, plain: Bools, group: Ints, groups: int) -> Ints:
    found = np.full(groups, -1, dtype=np.int64)
    rows = np.flatnonzero(plain)[::-1]
    found[group[rows]] = zone[rows]
    return found


def _spread_before(zone: Ints, plain: Bools, elsewhere: Bools, heads: Ints, group: Ints, zones: int) -> Bools:
    """Whether the rows before each in its group stand in enough zones."""
    if zones == 2:
        return _before(elsewhere.astype(np.int64), heads, group) > 0
    fresh = np.zeros(len(zone), dtype=np.int64)
    rows = np.flatnonzero(plain)
    pairs = np.stack((group[rows], zone[rows]), axis=1)
    fresh[rows[np.unique(pairs, axis=0, return_index=True)[1]]] = 1
    return _before(fresh, heads, group) >= zones


def _zone_counts(zone: Ints, rows: Bools, group: Ints, groups: int) -> Ints:
    at = np.flatnonzero(rows)
    pairs = np.unique(np.stack((group[at], zone[at]), axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=groups)


def _beaten(rank: Floats, dearest: Floats, group: Ints, price: Floats) -> Bools:
    """Whether another group [G] with everything at hand beats each row: nothing worse, and not dearer."""
    as_good = (rank[:, None, :] >= rank[:, :, None]).all(axis=0)
    same = (rank[:, None, :] == rank[:, :, None]).all(axis=0)
    index = np.arange(rank.shape[1])
    as_good &= index[None, :] != index[:, None]
    later = index[None, :] < index[:, None]
    strict = as_good & ~same
    # Of two that are the same in all but the price, the first stays where prices are equal.
    cheapest_strict = np.where(strict | (as_good & later), dearest[None, :], np.inf).min(
        axis=1, initial=np.inf
    )
    cheapest_same = np.where(as_good & same & ~later, dearest[None, :], np.inf).min(axis=1, initial=np.inf)
    found: Bools = (cheapest_strict[group] <= price) | (cheapest_same[group] < price)
    return found
