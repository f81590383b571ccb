"""The pools that a fleet may stand on: one seller's nodes of one GPU in one place and one configuration.

What replicas of a pool cost does not depend on which of its offers and node sizes they stand on, so a pool
is a table: the cheapest hour of r ready replicas, and the nodes that it takes. A pool with commitments that
are owed for the whole horizon is there once for each amount of them. L pools, R levels, U units of the case.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from optimizer.placement.fleets.pool_loops import pool_levels
from optimizer.placement.problem.problem import Floats, Ints, Problem, horizon_hours
from optimizer.placement.problem.units import HOUR_S, FleetCase, Units
from optimizer.placement.runtime.compiled import compiled

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
    """All pools of a service. ``row`` [L] is where each stood when all were made, -1 for one that is empty;
    ``owner`` [L] numbers pools that are one but for their commitments.

    Tables of money [L, R] are inf above ``most`` [L].
    """

    pools: Sequence[Pool]
    row: Ints
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
        return PoolTable(Taken(self.pools, rows), *(getattr(self, name)[rows] for name in COLUMNS))


COLUMNS = (
    "row", "owner", "gpu", "place", "rate", "most", "usd", "least_usd", "start_usd", "least_start_usd"
)  # fmt: skip


Columns = tuple[Any, ...]
"""What a table says of its pools but for ``pools`` and ``row``, in the order of ``COLUMNS``."""


class Lazy(Sequence[Pool]):
    """Pools that are made when they are asked for."""

    @overload
    def __getitem__(self, at: int) -> Pool: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Pool]: ...
    def __getitem__(self, at: int | slice) -> Pool | Sequence[Pool]:
        return Taken(self, np.arange(len(self))[at]) if isinstance(at, slice) else self._one(int(at))

    @abstractmethod
    def _one(self, at: int) -> Pool: ...


class Taken(Lazy):
    """Some of other pools; -1: an empty one."""

    def __init__(self, pools: Sequence[Pool], rows: Ints) -> None:
        self._pools = pools
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def _one(self, at: int) -> Pool:
        row = int(self._rows[at])
        return EMPTY if row < 0 else self._pools[row]


class Made(Lazy):
    """The pools of a service, made group by group."""

    def __init__(self, make: Callable[[int], list[Pool]], group: Ints, nth: Ints) -> None:
        self._make = make
        self._group = group
        self._nth = nth
        self._made: dict[int, list[Pool]] = {}

    def __len__(self) -> int:
        return len(self._group)

    def _one(self, at: int) -> Pool:
        group = int(self._group[at])
        if group not in self._made:
            self._made[group] = self._make(group)
        return self._made[group][int(self._nth[at])]


_NOTHING = np.zeros(1)
EMPTY = Pool(
    -1, -1, 1.0, np.zeros(0, dtype=np.int64), _NOTHING, np.zeros((1, 0), dtype=np.int64), _NOTHING, _NOTHING,
    _NOTHING, 1,
)  # fmt: skip


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
    levels = table.usd.shape[1]
    alone = np.append(0.0, np.full(levels - 1, np.inf))
    none = np.full(count, -1, dtype=np.int64)
    first = int(table.owner.max(initial=-1)) + 1
    money = np.tile(alone, (count, 1))
    added = (none, np.arange(first, first + count), none, none, np.ones(count), none + 1, *[money] * 4)
    joint = (np.concatenate((getattr(table, name), more)) for name, more in zip(COLUMNS, added, strict=True))
    return PoolTable(Taken(table.pools, np.concatenate((np.arange(len(table)), none))), *joint)


def build_pools_of(problem: Problem, case: FleetCase, hours: float) -> PoolTable:
    """The pools of a service that is held for ``hours``."""
    if not len(case.units):
        return PoolTable.nothing()
    groups = _grouped(problem, case)
    each = case.units.largest[[mine[0] for mine in groups]]
    wanted = most_wanted(case, each)
    large = wanted > MOST_LEVELS

    def make(group: int) -> list[Pool]:
        return list(_pools(problem, case, groups[group], hours))

    some = np.flatnonzero(~large)
    columns = _small(problem, case, hours, [groups[g] for g in some], some, each[some], wanted[some])
    bundled = [(pool, int(group)) for group in np.flatnonzero(large) for pool in make(int(group))]
    columns = _stacked(columns, _columns([pool for pool, _ in bundled], [group for _, group in bundled]))
    order = np.argsort(columns[0], kind="stable")
    owner, *others = (column[order] for column in columns)
    rows = np.arange(len(owner))
    nth = rows - np.searchsorted(owner, owner)
    return PoolTable(Made(make, owner, nth), rows, owner, *others)


def _stacked(first: Columns, second: Columns) -> Columns:
    """The rows of two tables; money is inf where one has no such level."""
    levels = max(first[-1].shape[1], second[-1].shape[1])

    def padded(rows: Floats) -> Floats:
        if rows.ndim < 2:
            return rows
        return np.pad(rows, ((0, 0), (0, levels - rows.shape[1])), constant_values=np.inf)

    return tuple(np.concatenate((padded(a), padded(b))) for a, b in zip(first, second, strict=True))


def _small(
    problem: Problem, case: FleetCase, hours: float, groups: Sequence[Ints], number: Ints, each: Floats,
    wanted: Ints,
) -> Columns:  # fmt: skip
    """The columns of pools [G] without bundles, all at once."""
    if not groups:
        return _columns([], [])
    units, table = case.units, problem.table
    mine = np.concatenate(groups)
    begin = np.concatenate(([0], np.cumsum([len(group) for group in groups])))
    offers = units.offer[mine]
    owed = table.min_s[offers] >= problem.end_s - problem.t0_s
    shared = table.pools.of[offers]
    room = np.add.reduceat(units.most[mine] * units.replicas[mine], begin[:-1])
    width = int(np.minimum(wanted, room).max(initial=0)) + 1
    hourly, starts, commit = (np.full((len(groups), width), np.inf) for _ in range(3))
    tops, bases, least_start = pool_levels(
        begin, wanted, units.replicas[mine], _hourly_usd(case, mine), half_usd(problem, units)[mine],
        _whole_usd(problem, case, mine, hours), _start_usd(problem, case, mine), units.most[mine],
        units.nodes[mine] * table.gpus_per_node[offers], np.where(shared >= 0, shared, -1 - offers),
        np.where(shared >= 0, np.append(table.pools.gpus, NO_LIMIT)[shared], NO_LIMIT), owed,
        owed & (units.surcharge_usd_per_hour[mine] > 0), hourly, starts, commit,
    )  # fmt: skip
    group = np.repeat(np.arange(len(groups)), bases + 1)
    base = np.arange(len(group)) - np.repeat(np.cumsum(bases + 1) - bases - 1, bases + 1)
    beyond = np.minimum(tops[group], np.maximum(wanted[group] - base, 0))
    kept = base + beyond > 0
    group, base, beyond = group[kept], base[kept], beyond[kept]
    most = base + beyond
    level = np.arange(int(most.max(initial=0)) + 1)
    above = np.clip(level[None, :] - base[:, None], 0, width - 1)
    outside = level[None, :] > most[:, None]
    usd = commit[group, base][:, None] / hours + hourly[group[:, None], above]
    begun = np.maximum.accumulate(starts, axis=1)[group[:, None], above]
    least = np.where(beyond > 0, np.where(np.isfinite(least_start), least_start, 0.0)[group], 0.0)
    money = (usd, usd, begun, above * least[:, None])
    first = mine[begin[:-1]][group]
    return (
        number[group],
        _gpu_numbers(problem)[units.offer[first]],
        units.zone[first].astype(np.int64),
        each[group],
        most,
        *(np.where(outside, np.inf, one) for one in money),
    )


def table_of(pools: Sequence[Pool], owner: Sequence[int]) -> PoolTable:
    """The pools as arrays; ``owner`` [L] numbers those that are one but for their commitments."""
    return PoolTable(pools, np.arange(len(pools)), *_columns(pools, owner))


def _columns(pools: Sequence[Pool], owner: Sequence[int]) -> Columns:
    levels = max((len(pool.usd) for pool in pools), default=1)

    def padded(rows: Sequence[Floats]) -> Floats:
        whole = np.full((len(rows), levels), np.inf)
        for number, row in enumerate(rows):
            whole[number, : len(row)] = row
        return whole

    return (
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


def most_wanted(case: FleetCase, rate: Floats) -> Ints:
    """Replicas [G] of a rate that carry all demand and spares alone."""
    wanted = np.ceil(float(case.demand.max(initial=0.0)) / rate - 1e-9).astype(np.int64)
    most: Ints = wanted + case.spare + 1
    return most


def _grouped(problem: Problem, case: FleetCase) -> list[Ints]:
    """Units of each pool; where rates of one differ much, each rate is a pool of its own."""
    units = case.units
    seller, gpu = _seller_numbers(problem)[units.offer], _gpu_numbers(problem)[units.offer]
    keys = np.stack((seller, gpu, units.zone, units.config), axis=1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    # Pools stand in the order of their first units.
    rank = first[which.reshape(-1)]
    order = np.lexsort((np.arange(len(units)), units.largest, rank))
    rates, ranks = units.largest[order].tolist(), rank[order].tolist()
    begins = [0]
    for at in range(1, len(order)):
        begin = begins[-1]
        if ranks[at] != ranks[begin] or rates[at] > rates[begin] * (1 + SAME_RATE):
            begins.append(at)
    return np.split(order, begins[1:])


def _pools(problem: Problem, case: FleetCase, mine: Ints, hours: float) -> Iterator[Pool]:
    """One pool, for each amount that it may be committed to."""
    units, table = case.units, problem.table
    each = float(units.largest[mine].min())
    most = int(most_wanted(case, np.array([each]))[0])
    bundle = -(-most // MOST_LEVELS)
    wanted = -(-most // bundle)
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
            gpu=int(_gpu_numbers(problem)[units.offer[mine[0]]]),
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


def _seller_numbers(problem: Problem) -> Ints:
    """A number [O] for the seller of each offer."""

    def numbers() -> Ints:
        sellers = [offer.provider for offer in problem.table.offers]
        return np.unique(sellers, return_inverse=True)[1].reshape(-1).astype(np.int64)

    return problem.once_for_market(("seller numbers",), numbers)


def _gpu_numbers(problem: Problem) -> Ints:
    """A number [O] for the kind of GPU of each offer."""

    def numbers() -> Ints:
        names = sorted({sku.gpu for sku in problem.table.skus})
        of_sku = np.array([names.index(sku.gpu) for sku in problem.table.skus], dtype=np.int64)
        of_offer: Ints = of_sku[problem.table.sku_of]
        return of_offer

    return problem.once_for_market(("gpu numbers",), numbers)


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
