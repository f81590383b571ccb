"""Ladders: a fleet as an ordered list of units, of which a demand needs a first part.

A ladder of kinds (first ``m`` of one, then another) says how many rungs each hour needs; each rung
then takes the offer of its kind on which its own hours are cheapest, and is held or released as is
cheapest. Rungs at the bottom are always on, so committed capacity carries the base by itself. Where no two
kinds are in stock for a demand, all of them share it, in the order of what a request costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.columns import Column
from optimizer.placement.fleet_columns import Slot, build_slots_column, time_of
from optimizer.placement.holding import ServiceTime
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.rungs import ROUNDING, build_rungs
from optimizer.placement.units import FleetCase, only_units

ANY_KIND, ALL_KINDS = -1, -2
CHOICES_A_ZONE = 3
MAX_CHOICES = 96
PEAKS_CARRIED = 4.0
KINDS_ALONE = 12
KINDS_MIXED = 5
KINDS_SIMPLE = 2
BASES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Ladder:
    """``base_count`` rungs of kind ``base``, then rungs of kind ``top``."""

    base: int
    base_count: int
    top: int

    def kind(self, rung: int) -> int:
        """Kind of a rung."""
        return self.base if rung < self.base_count else self.top


@dataclass(frozen=True, slots=True)
class BuiltLadder:
    """A ladder with the unit of each rung, and its price by rate of use (before exact billing)."""

    ladder: Ladder
    rungs: tuple[int, ...]
    estimate_usd: float


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Units [C] that ladders may stand on, what they are (``rungs``), and what nodes and GPUs are free."""

    unit: Ints
    whole: Ints
    usd: Floats
    free_nodes: Ints
    pool_gpus: Ints


def free_nodes(problem: Problem) -> Ints:
    """Nodes in stock of each offer [O], before anything is placed."""
    return problem.table.stock_nodes.copy()


def best_ladders(
    problem: Problem, case: FleetCase, free: Ints, after_s: float | None, count: int, *, mixed: bool = True
) -> list[BuiltLadder]:
    """The ``count`` cheapest ladders by estimate: each kind alone, then the best kinds ``mixed``."""
    if not len(case.units):
        return []
    time = time_of(problem, case, after_s)
    kinds = _kinds_by_price(case)[: KINDS_ALONE if mixed else KINDS_SIMPLE]
    alone = _built(problem, case, free, time, [Ladder(kind, 0, kind) for kind in kinds])
    alone.sort(key=_rank)
    if alone and not mixed:
        return _distinct(alone)[:count]
    order = [built.ladder.top for built in alone] + [
        k for k in kinds if k not in {b.ladder.top for b in alone}
    ]
    leading = order[:KINDS_MIXED]
    pairs = [Ladder(a, m, b) for a in leading for b in leading if a != b for m in BASES]
    found = alone + _built(problem, case, free, time, pairs)
    found.sort(key=_rank)
    return _distinct(found)[:count]


def shared_ladders(problem: Problem, case: FleetCase, free: Ints, after_s: float | None) -> list[BuiltLadder]:
    """The one ladder of all kinds, in the order of what a request costs: for a demand that no two kinds are
    in stock for. None where all together are too few."""
    if not len(case.units):
        return []
    time = time_of(problem, case, after_s)
    return _built(problem, case, free, time, [Ladder(ALL_KINDS, 0, ALL_KINDS)])


def _rank(built: BuiltLadder) -> tuple[float, int, int, int]:
    return built.estimate_usd, built.ladder.top, built.ladder.base, built.ladder.base_count


def _distinct(found: Sequence[BuiltLadder]) -> list[BuiltLadder]:
    seen: set[tuple[int, ...]] = set()
    kept = []
    for built in found:
        if built.rungs not in seen:
            seen.add(built.rungs)
            kept.append(built)
    return kept


def _kinds_by_price(case: FleetCase) -> list[int]:
    """Kinds by their cheapest price for the peak: whole units, spares and zones counted."""
    units = case.units
    peak = float(case.demand.max(initial=0.0))
    priced = []
    for kind in np.unique(units.kind):
        inside = np.flatnonzero(units.kind == kind)
        rate, largest = float(units.requests_per_s[inside[0]]), float(units.largest[inside[0]])
        whole = max(case.zones, int(np.ceil((peak + case.spare * largest) / rate * (1 - 1e-9))))
        usd = units.usd_per_hour[inside] + units.surcharge_usd_per_hour[inside]
        priced.append((whole * float(usd.min()), int(kind)))
    return [kind for _, kind in sorted(priced)]


def _built(
    problem: Problem, case: FleetCase, free: Ints, time: ServiceTime, ladders: Sequence[Ladder]
) -> list[BuiltLadder]:
    by_kind = {
        kind: _all_by_price(case, free) if kind == ALL_KINDS else _by_price(case, kind, free)
        for kind in {k for ladder in ladders for k in (ladder.base, ladder.top)}
    }
    by_kind[ANY_KIND] = _cheapest_of_zones(case, free)
    choices = _choices(problem, case, free, np.unique(np.concatenate(list(by_kind.values()))))
    if not len(choices.unit):
        return []
    place = {kind: np.searchsorted(choices.unit, units) for kind, units in by_kind.items()}
    built = (_build(case, choices, case.demand[time.first_hour :], ladder, place) for ladder in ladders)
    return [b for b in built if b is not None]


def _by_price(case: FleetCase, kind: int, free: Ints) -> Ints:
    """The cheapest units of a kind that have stock left; more than ``MAX_CHOICES`` no ladder needs."""
    units = case.units
    inside = np.flatnonzero((units.kind == kind) & (free[units.offer] >= units.nodes))
    order: Ints = inside[np.lexsort((case.units.offer[inside], case.units.usd_per_hour[inside]))]
    return order[:MAX_CHOICES]


def _all_by_price(case: FleetCase, free: Ints) -> Ints:
    """Units of all kinds that have stock left, ascending by their price for a request, as many as could be
    needed: configurations of one offer share its nodes, so those that carry the peak several times."""
    units = case.units
    inside = np.flatnonzero(free[units.offer] >= units.nodes)
    price = (units.usd_per_hour + units.surcharge_usd_per_hour)[inside] / units.requests_per_s[inside]
    order: Ints = inside[np.lexsort((units.offer[inside], price))]
    alone = units.requests_per_s[order] * (free[units.offer[order]] // units.nodes[order])
    reach = np.cumsum(alone) - alone
    return order[reach < PEAKS_CARRIED * float(case.demand.max(initial=0.0))]


def _cheapest_of_zones(case: FleetCase, free: Ints) -> Ints:
    """The few cheapest units of each zone: what fills a zone that a kind is not sold in."""
    units = case.units
    order = np.lexsort((units.offer, units.usd_per_hour, units.zone))
    order = order[free[units.offer[order]] >= units.nodes[order]]
    zone = units.zone[order]
    first = np.searchsorted(zone, zone)
    chosen: Ints = order[np.arange(len(order)) - first < CHOICES_A_ZONE]
    return chosen


def _choices(problem: Problem, case: FleetCase, free: Ints, unit: Ints) -> _Choices:
    """What a ladder may stand on, as ``rungs`` takes it."""
    units, table = case.units, problem.table
    offers, offer = np.unique(units.offer[unit], return_inverse=True)
    own, increment = units.offer[unit], table.increment_s[units.offer[unit]]
    lead_s = np.ceil(units.cold_s[unit] / increment).astype(np.int64) * increment
    zone = np.unique(units.zone[unit], return_inverse=True)[1]
    gpus, pool, least_s = table.gpus_per_node[own], table.pools.of[own], table.min_s[own]
    whole = np.stack((offer, units.nodes[unit], zone, gpus, pool, least_s, increment, lead_s), axis=1)
    scarce, price, upfront = units.surcharge_usd_per_hour[unit], table.price_usd[own], table.upfront_usd[own]
    usd = np.stack((units.requests_per_s[unit], units.largest[unit], scarce, price, upfront), axis=1)
    return _Choices(unit, whole, usd, free[offers], table.pools.left(free, table.gpus_per_node))


def _build(
    case: FleetCase, choices: _Choices, demand: Floats, ladder: Ladder, place: dict[int, Ints]
) -> BuiltLadder | None:
    """Rung by rung from the base until the peak is met; None when stock or zones run out."""
    base, top, anywhere = place[ladder.base], place[ladder.top], place[ANY_KIND]
    free, gpus = choices.free_nodes.copy(), choices.pool_gpus.copy()
    rungs, usd = build_rungs(
        demand,
        base,
        ladder.base_count,
        top,
        anywhere,
        choices.whole,
        choices.usd,
        free,
        gpus,
        case.zones,
        case.spare,
    )
    if not len(rungs):
        return None
    return BuiltLadder(ladder, tuple(int(unit) for unit in choices.unit[rungs]), usd)


def build_service_column(
    problem: Problem, case: FleetCase, built: BuiltLadder, after_s: float | None
) -> Column | None:
    """The ladder as an exact column; None when no time is left to serve, or it ends below some hour's demand.

    A ladder built for a later start may end below the hours before it.
    """
    first = time_of(problem, case, after_s).first_hour
    demand = case.demand[first:]
    if float(demand.max(initial=0.0)) * (1 - ROUNDING) > _reach(case, built.rungs):
        return None
    needed = rungs_needed(case, built.rungs, demand)
    slots = [Slot(unit, needed > rung) for rung, unit in enumerate(built.rungs)]
    return build_slots_column(problem, case, slots, after_s)


def rungs_needed(case: FleetCase, rungs: Sequence[int], demand: Floats) -> Ints:
    """How many first rungs each demand [H] needs; all where they do not reach it."""
    meets = _net_rates(case, rungs)[None, :] >= demand[:, None] * (1 - ROUNDING)
    found: Ints = np.where(meets.any(axis=1), meets.argmax(axis=1) + 1, len(rungs)).astype(np.int64)
    return np.full_like(found, len(rungs)) if _is_held_whole(case, rungs) else found


def _net_rates(case: FleetCase, rungs: Sequence[int]) -> Floats:
    """Rate without its spares of each number of first rungs; minus infinity in too few zones."""
    units, chosen = case.units, np.asarray(rungs, dtype=np.int64)
    net = np.cumsum(units.requests_per_s[chosen]) - case.spare * np.maximum.accumulate(units.largest[chosen])
    zones = [len({int(z) for z in units.zone[chosen[: i + 1]]}) for i in range(len(chosen))]
    rates: Floats = np.where(np.array(zones) >= case.zones, net, -np.inf)
    return rates


def _is_held_whole(case: FleetCase, rungs: Sequence[int]) -> bool:
    """With two spares or more one larger replica held on can lower the net rate: all are held then."""
    return case.spare > 1 and len(np.unique(case.units.largest[np.asarray(rungs, dtype=np.int64)])) > 1


def _reach(case: FleetCase, rungs: Sequence[int]) -> float:
    """The highest demand that the rungs meet as they are held."""
    net = _net_rates(case, rungs)
    return float(net[-1] if _is_held_whole(case, rungs) else net.max())


def without_offers(case: FleetCase, offers: frozenset[int]) -> FleetCase:
    """The case over fewer offers."""
    return only_units(case, ~np.isin(case.units.offer, sorted(offers)))
