"""The pools that a fleet may stand on: one seller's nodes of one GPU in one place and one configuration.

What replicas of a pool cost does not depend on which of its offers and node sizes they stand on, so a pool
is a table: the cheapest hour of r ready replicas, and the nodes that it takes. A pool with commitments that
are owed for the whole horizon is there once for each amount of them. L pools, R levels, U units of the case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.prices import horizon_hours
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase, Units

MOST_LEVELS = 512
NO_LIMIT = 1 << 40
SAME_RATE = 0.05
"""Replicas of a pool whose rates differ by no more than this share count at the lowest of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """``usd`` [R]: the cheapest hour of so many bundles of replicas; ``counts`` [R, n] of ``units`` [n] for
    it; ``least_usd`` [R]: of one replica more than the bundles below, which no fleet at that level costs
    less than.

    ``start_usd`` [R] is what starting the nodes of a level costs, ``least_start_usd`` [R] a lower bound on it
    that is linear in the replicas beyond what is committed. ``rate`` is of one bundle, in requests/s.
    """

    gpu: int
    place: int
    rate: float
    units: Ints
    usd: Floats
    counts: Ints
    least_usd: Floats
    start_usd: Floats
    least_start_usd: Floats
    bundle: int

    @property
    def most(self) -> int:
        """The highest level."""
        return len(self.usd) - 1


@dataclass(frozen=True, slots=True, eq=False)
class PoolTable:
    """All pools of a service. ``owner`` [L] numbers pools that are one but for their commitments.

    Tables of money [L, R] are inf above ``most`` [L].
    """

    pools: Sequence[Pool]
    owner: Ints
    gpu: Ints
    place: Ints
    rate: Floats
    most: Ints
    usd: Floats
    least_usd: Floats
    start_usd: Floats
    least_start_usd: Floats

    def __len__(self) -> int:
        return len(self.pools)

    @classmethod
    def nothing(cls) -> PoolTable:
        """No pool at all."""
        return table_of([], [])

    def take(self, at: Sequence[int] | Ints) -> PoolTable:
        """Some of the pools."""
        rows = np.asarray(at, dtype=np.int64)
        return PoolTable(
            [self.pools[int(i)] for i in rows],
            *(getattr(self, n)[rows] for n in ("owner", "gpu", "place", "rate", "most")),
            *(getattr(self, n)[rows] for n in ("usd", "least_usd", "start_usd", "least_start_usd")),
        )


@compiled
def cheapest_counts(
    replicas: Ints, usd: Floats, most: Ints, gpus: Ints, limit: int, levels: int
) -> tuple[Floats, Ints]:
    """USD [R] and counts [R, n] of the cheapest nodes that hold at least so many replicas.

    Nodes [n] hold ``replicas`` each and are cut from ``limit`` GPUs together. Of equally cheap ones the sizes
    that come first are taken.
    """
    n = len(replicas)
    least = np.full(levels + 1, np.inf)
    least[0] = 0.0
    counts = np.zeros((levels + 1, n), dtype=np.int64)
    for unit in range(n):
        before, held = least.copy(), counts.copy()
        for level in range(1, levels + 1):
            for count in range(1, most[unit] + 1):
                rest = max(0, level - count * replicas[unit])
                price = before[rest] + count * usd[unit]
                if price < least[level] - 1e-12:
                    used = count * gpus[unit]
                    for other in range(unit):
                        used += held[rest, other] * gpus[other]
                    if used <= limit:
                        least[level] = price
                        counts[level] = held[rest]
                        counts[level, unit] = count
                if rest == 0:
                    break
    return least, counts


@compiled
def joined(first: Floats, second: Floats) -> tuple[Floats, Ints]:
    """USD [R] of the cheapest split of a level over two groups, and the part [R] of the second."""
    levels = len(first)
    found, part = np.full(levels, np.inf), np.zeros(levels, dtype=np.int64)
    for level in range(levels):
        for other in range(level + 1):
            price = first[level - other] + second[other]
            if price < found[level] - 1e-12:
                found[level] = price
                part[level] = other
    return found, part


def with_empty(table: PoolTable, count: int) -> PoolTable:
    """The table with ``count`` empty pools, so that a set of fewer pools is a set as well.

    They have no GPU and no place (-1), and owners of their own.
    """
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(1)
    empty = Pool(-1, -1, 1.0, none, nothing, np.zeros((1, 0), dtype=np.int64), nothing, nothing, nothing, 1)
    first = int(table.owner.max(initial=-1)) + 1
    return table_of([*table.pools, *[empty] * count], [*table.owner.tolist(), *range(first, first + count)])


def build_pools_of(problem: Problem, case: FleetCase, hours: float) -> PoolTable:
    """The pools of a service that is held for ``hours``."""
    found: list[Pool] = []
    owner: list[int] = []
    for number, units in enumerate(_grouped(problem, case)):
        for pool in _pools(problem, case, units, hours):
            found.append(pool)
            owner.append(number)
    return table_of(found, owner)


def table_of(pools: Sequence[Pool], owner: Sequence[int]) -> PoolTable:
    """The pools as arrays; ``owner`` [L] numbers those that are one but for their commitments."""
    levels = max((len(pool.usd) for pool in pools), default=1)

    def padded(rows: Sequence[Floats]) -> Floats:
        whole = np.full((len(rows), levels), np.inf)
        for number, row in enumerate(rows):
            whole[number, : len(row)] = row
        return whole

    return PoolTable(
        pools,
        np.array(owner, dtype=np.int64),
        np.array([pool.gpu for pool in pools], dtype=np.int64),
        np.array([pool.place for pool in pools], dtype=np.int64),
        np.array([pool.rate for pool in pools], dtype=np.float64),
        np.array([pool.most for pool in pools], dtype=np.int64),
        padded([pool.usd for pool in pools]),
        padded([pool.least_usd for pool in pools]),
        padded([pool.start_usd for pool in pools]),
        padded([pool.least_start_usd for pool in pools]),
    )


def most_wanted(case: FleetCase, rate: float) -> int:
    """Replicas of a rate that carry all demand and spares alone."""
    peak = float(case.demand.max(initial=0.0))
    return int(np.ceil(peak / rate - 1e-9)) + case.spare + 1


def _grouped(problem: Problem, case: FleetCase) -> Iterator[Ints]:
    """Units of each pool; where rates of one differ much, each rate is a pool of its own."""
    units, offers = case.units, problem.table.offers
    groups: defaultdict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for unit in range(len(units)):
        offer = offers[int(units.offer[unit])]
        key = (offer.provider, offer.sku.gpu, int(units.zone[unit]), int(units.config[unit]))
        groups[key].append(unit)
    for key in groups:
        mine = np.array(groups[key], dtype=np.int64)
        order = np.argsort(units.largest[mine], kind="stable")
        rates = units.largest[mine][order]
        begin = 0
        for at in range(1, len(mine) + 1):
            if at == len(mine) or rates[at] > rates[begin] * (1 + SAME_RATE):
                yield mine[order[begin:at]]
                begin = at


def _pools(problem: Problem, case: FleetCase, mine: Ints, hours: float) -> Iterator[Pool]:
    """One pool, for each amount that it may be committed to."""
    units, table = case.units, problem.table
    each = float(units.largest[mine].min())
    bundle = -(-most_wanted(case, each) // MOST_LEVELS)
    wanted = -(-most_wanted(case, each) // bundle)
    owed = table.min_s[units.offer[mine]] >= problem.end_s - problem.t0_s
    # A commitment is charged its dual price in the middle of the horizon. One that serves only a half
    # is not; it is owed in full all the same, which makes an hourly price of its own.
    halves = mine[owed & (units.surcharge_usd_per_hour[mine] > 0)]
    free = np.concatenate((mine[~owed], halves))
    hourly_usd = np.concatenate((_hourly_usd(case, mine[~owed]), half_usd(problem, units)[halves]))
    start = np.concatenate((_start_usd(problem, case, mine[~owed]), np.zeros(len(halves))))
    hourly = _cheapest(problem, case, free, hourly_usd, start, wanted, bundle)
    whole_usd, no_start = _whole_usd(problem, case, mine[owed], hours), np.zeros(int(owed.sum()))
    commit = _cheapest(problem, case, mine[owed], whole_usd, no_start, wanted, bundle)
    least_start = float((start / units.replicas[free]).min(initial=np.inf)) * bundle
    for base in range(len(commit.usd)):
        beyond = min(hourly.most, max(0, wanted - base))
        if base + beyond == 0:
            continue
        above = np.maximum(np.arange(base + beyond + 1) - base, 0)
        held = np.repeat(commit.counts[base][None, :], len(above), axis=0)
        yield Pool(
            gpu=_gpu_number(problem, int(units.offer[mine[0]])),
            place=int(units.zone[mine[0]]),
            rate=each * bundle,
            units=np.concatenate((mine[owed], free)),
            usd=commit.usd[base] / hours + hourly.usd[above],
            counts=np.concatenate((held, hourly.counts[above]), axis=1),
            least_usd=commit.least_usd[base] / hours + hourly.least_usd[above],
            start_usd=np.maximum.accumulate(hourly.counts[above] @ start),
            least_start_usd=np.maximum(above - (bundle > 1), 0) * (least_start if beyond else 0.0),
            bundle=bundle,
        )


def half_usd(problem: Problem, units: Units) -> Floats:
    """USD per hour [U] of a commitment owed in full that serves one half of the horizon at most.

    Its start is billed in whole increments beside it, hence the hours on top.
    """
    increments = problem.table.increment_s[units.offer]
    hours = horizon_hours(problem) / 2 + (units.cold_s + 2 * increments) / HOUR_S
    usd: Floats = units.usd_per_hour * horizon_hours(problem) / (hours + 1)
    return usd


def _gpu_number(problem: Problem, offer: int) -> int:
    """A number for each kind of GPU of the market."""

    def numbers() -> dict[str, int]:
        return {gpu: i for i, gpu in enumerate(sorted({sku.gpu for sku in problem.table.skus}))}

    return problem.once_for_market(("gpu numbers",), numbers)[problem.table.offers[offer].sku.gpu]


@dataclass(frozen=True, slots=True, eq=False)
class _Levels:
    """By level, as far as stock goes: as of a pool."""

    usd: Floats
    least_usd: Floats
    counts: Ints

    @property
    def most(self) -> int:
        """The highest level."""
        return len(self.usd) - 1


def _cheapest(
    problem: Problem, case: FleetCase, mine: Ints, usd: Floats, start: Floats, wanted: int, bundle: int
) -> _Levels:
    """The cheapest nodes for each level, group by group of offers that are cut from the same GPUs.

    Of equally cheap ones those are taken that are cheaper to ``start`` (USD [n]).
    """
    units, table = case.units, problem.table
    gpus = units.nodes[mine] * table.gpus_per_node[units.offer[mine]]
    shared = table.pools.of[units.offer[mine]]
    group = np.where(shared >= 0, shared, -1 - units.offer[mine])
    if bundle > 1:
        return _in_order(
            case,
            mine,
            usd,
            start,
            gpus,
            np.append(table.pools.gpus, NO_LIMIT)[shared],
            group,
            wanted,
            bundle,
        )
    total = np.full(wanted + 1, np.inf)
    total[0] = 0.0
    counts = np.zeros((wanted + 1, len(mine)), dtype=np.int64)
    each = start / units.replicas[mine]
    # Of offers that cost the same the first are taken: then groups come in the order of their offers.
    for name in dict.fromkeys(group[np.argsort(each, kind="stable")].tolist()):
        at = np.flatnonzero(group == name)
        at = at[np.lexsort((each[at], usd[at], units.replicas[mine[at]]))]
        limit = int(table.pools.gpus[name]) if name >= 0 else NO_LIMIT
        price, held = cheapest_counts(
            units.replicas[mine[at]], usd[at], units.most[mine[at]], gpus[at], limit, wanted
        )
        total, part = joined(total, price)
        counts = counts[np.arange(wanted + 1) - part]
        counts[:, at] += held[part]
    usable = slice(int(np.flatnonzero(np.isfinite(total)).max()) + 1)
    return _Levels(total[usable], total[usable], counts[usable])


def _in_order(
    case: FleetCase,
    mine: Ints,
    usd: Floats,
    start: Floats,
    gpus: Ints,
    limit: Ints,
    group: Ints,
    wanted: int,
    bundle: int,
) -> _Levels:
    """Of very many replicas: nodes in the order of their price per replica, the last of them whole.

    With a part of the last one instead it is the linear relaxation, which no choice costs less than.
    """
    each = case.units.replicas[mine]
    order = np.lexsort((start / each, usd / each))
    left = dict(zip(group.tolist(), limit.tolist(), strict=True))
    most = np.zeros(len(mine), dtype=np.int64)
    for at in order:
        name = int(group[at])
        most[at] = min(int(case.units.most[mine[at]]), left[name] // int(gpus[at]))
        left[name] -= int(most[at] * gpus[at])
    reach = np.cumsum(each[order] * most[order])
    spent = np.cumsum(usd[order] * most[order])
    levels = min(wanted, int(reach[-1]) // bundle if len(reach) else 0)
    need = np.arange(levels + 1) * bundle
    last = np.minimum(np.searchsorted(reach, need), max(len(order) - 1, 0))
    counts = np.zeros((levels + 1, len(mine)), dtype=np.int64)
    whole, least = np.zeros(levels + 1), np.zeros(levels + 1)
    for level in range(1, levels + 1):
        at, before = order[last[level]], order[: last[level]]
        begun = need[level] - (reach[last[level] - 1] if last[level] else 0)
        paid = spent[last[level] - 1] if last[level] else 0.0
        counts[level, before] = most[before]
        counts[level, at] = -(-begun // each[at])
        whole[level] = counts[level] @ usd
        # A level is reached with one replica more than the level below.
        least[level] = max(least[level - 1], paid + (begun - bundle + 1) / each[at] * usd[at])
    return _Levels(whole, least, counts)


def _hourly_usd(case: FleetCase, mine: Ints) -> Floats:
    usd: Floats = case.units.usd_per_hour[mine] + case.units.surcharge_usd_per_hour[mine]
    return usd


def _whole_usd(problem: Problem, case: FleetCase, mine: Ints, hours: float) -> Floats:
    """What a commitment is owed however it is used, with its dual price for the whole horizon."""
    units, table = case.units, problem.table
    held_s = np.full(len(mine), int(hours * HOUR_S), dtype=np.int64)
    whole_h = (problem.end_s - problem.t0_s) / HOUR_S
    usd: Floats = units.nodes[mine] * table.node_cost_usd(units.offer[mine], held_s)
    return usd + units.surcharge_usd_per_hour[mine] * whole_h


def _start_usd(problem: Problem, case: FleetCase, mine: Ints) -> Floats:
    """What starting a unit costs: its cold start in whole billing increments, and what is paid upfront."""
    units, table = case.units, problem.table
    increment = table.increment_s[units.offer[mine]]
    whole = (HOUR_S % increment == 0) & (problem.end_s % HOUR_S == 0)
    lead_s = np.where(whole, np.ceil(units.cold_s[mine] / increment) * increment, units.cold_s[mine])
    usd: Floats = (
        units.usd_per_hour[mine] * lead_s + units.surcharge_usd_per_hour[mine] * units.cold_s[mine]
    ) / HOUR_S
    return usd + units.nodes[mine] * table.upfront_usd[units.offer[mine]]


@compiled
def undominated(
    usd: Floats,
    start: Floats,
    most: Ints,
    rate: Floats,
    group: Ints,
    place: Ints,
    owner: Ints,
    needed: int,
    spared: bool,
    by_place: bool,
    order: Ints,
) -> Ints:
    """Pools [L] (1: keep) that some best fleet may need.

    A pool goes when ``needed`` others beat it, in as many places where places count: each serves at least as
    much at every level, for no more an hour and no more to start, with no larger replica where replicas are
    spared. Then one of them is always free to take its part. ``order``: what beats another stands before it.
    """
    keep = np.zeros(len(order), dtype=np.int64)
    kept = np.empty(len(order), dtype=np.int64)
    seen = np.empty(len(order), dtype=np.int64)
    count = 0
    for at in range(len(order)):
        pool = order[at]
        beaten = 0
        for before in range(count):
            other = kept[before]
            if group[other] != group[pool] or (spared and rate[other] > rate[pool] * (1 + 1e-12)):
                continue
            word = place[other] if by_place else owner[other]
            known = False
            for i in range(beaten):
                known = known or seen[i] == word
            if known or not _beats(usd, start, most, rate, other, pool):
                continue
            seen[beaten] = word
            beaten += 1
            if beaten >= needed:
                break
        if beaten < needed:
            keep[pool] = 1
            kept[count] = pool
            count += 1
    return keep


@compiled
def _beats(usd: Floats, start: Floats, most: Ints, rate: Floats, other: int, pool: int) -> bool:
    level = 0
    for mine in range(most[pool] + 1):
        served = rate[pool] * mine * (1 - 1e-9)
        while level <= most[other] and rate[other] * level < served:
            level += 1
        if level > most[other]:
            return False
        if usd[other, level] > usd[pool, mine] + 1e-9 or start[other, level] > start[pool, mine] + 1e-9:
            return False
    return True
