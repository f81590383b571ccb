"""The pools that a fleet may use: one seller's nodes of one kind of GPU in one place and one configuration.

The cost of a pool's replicas does not depend on which of its offers and node sizes they use, so a pool is a
table: the cheapest hour of r ready replicas, and the nodes for it. A pool with commitments for the whole
horizon appears once for each committed amount. Its nodes with shorter minimum terms (``terms``) are a
separate *part*, and so are those whose offers end before the horizon; a fleet may use all parts of a pool. L
pools or parts, R levels, U units of the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from optimizer.placement.fleets.pool_loops import cheapest_counts, group_levels, joined
from optimizer.placement.fleets.pool_table import (
    PLAIN,
    Columns,
    Made,
    Pool,
    PoolTable,
    begins,
    columns_of,
    taken_levels,
)
from optimizer.placement.fleets.terms import TermBands, Terms, term_prices
from optimizer.placement.problem.problem import NEVER_GONE, Bools, Floats, Ints, Problem, horizon_hours
from optimizer.placement.problem.units import HOUR_S, FleetCase, Units, only_units
from optimizer.placement.runtime.tuning import TUNING

NO_LIMIT = 1 << 40


def build_pools_of(
    problem: Problem, case: FleetCase, hours: float, bands: TermBands | None = None
) -> PoolTable:
    """The parts of the pools of a service that is held for ``hours``; without ``bands``, minimum terms that
    end before the horizon are ignored.
    """
    if not len(case.units):
        return PoolTable.nothing()
    groups = _grouped(problem, case)
    one_of = [mine[0] for mine in groups]
    each = np.stack([case.units.in_stage(stage).largest[one_of] for stage in range(2)])
    wanted = most_wanted(case, each)
    large = wanted > TUNING.fleets.most_levels
    terms = Terms.none(case.units, len(groups))
    if bands is not None:
        terms = term_prices(problem, case, groups, bands, hours)

    def make(group: int) -> list[Pool]:
        return list(_pools(problem, case, groups[group], hours, terms, group))

    some = np.flatnonzero(~large)
    columns = _small(
        problem, case, hours, [groups[g] for g in some], some, each[:, some], wanted[some], terms
    )
    bundled = [(pool, int(group)) for group in np.flatnonzero(large) for pool in make(int(group))]
    columns = _stacked(columns, columns_of([pool for pool, _ in bundled], [group for _, group in bundled]))
    order = np.argsort(columns[0], kind="stable")
    owner, *others = (column[order] for column in columns[:-1])
    rows = np.arange(len(owner))
    nth = rows - np.searchsorted(owner, owner)
    columns = (owner, *others, taken_levels(columns[-1], columns[PLAIN.index("most")], order))
    return PoolTable(Made(make, owner, nth), rows, *columns)


def _stacked(first: Columns, second: Columns) -> Columns:
    """The rows of two tables, concatenated."""
    plain = (np.concatenate(both) for both in zip(first[:-1], second[:-1], strict=True))
    return (*plain, np.concatenate((first[-1], second[-1]), axis=1))


def _small(
    problem: Problem, case: FleetCase, hours: float, groups: Sequence[Ints], number: Ints, each: Floats,
    wanted: Ints, terms: Terms,
) -> Columns:  # fmt: skip
    """The columns of pools [G] without bundles, whose replicas serve ``each`` [2, G] in each stage, computed
    for all at once.
    """
    if not groups:
        return columns_of([], [])
    units = case.units
    mine = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    first = np.array([one[0] for one in groups])
    deviation = np.zeros(len(groups))
    np.maximum.at(deviation, group, units.deviation[mine])
    has_term, ends = terms.has[mine], is_gone_early(problem, units.offer[mine])
    owed = _is_owed(problem, units.offer[mine]) & ~has_term & ~ends
    # A commitment pays its dual price at the midpoint of the horizon. One that serves only one half does not
    # pay it, yet is owed in full, so it gets an hourly price of its own.
    halved = owed & (units.surcharge_usd_per_hour[mine] > 0)
    nothing = np.zeros(len(mine))
    start = _start_usd(problem, case, mine) + terms.start_usd[mine]
    by_hour_usd = _ending_usd(problem, units, mine, terms)

    def levels(kept: Bools, usd: Floats, begun: Floats) -> GroupLevels:
        return _group_levels(problem, case, mine[kept], group[kept], usd[kept], begun[kept], wanted)

    flexible = (~owed | halved) & ~has_term & ~ends
    flexible_usd = np.where(owed, half_usd(problem, units)[mine], by_hour_usd)
    hourly = levels(flexible, flexible_usd, np.where(owed, 0.0, start))
    commit = levels(owed, _whole_usd(problem, case, mine, hours), nothing)
    bases = commit.top
    of = np.repeat(np.arange(len(groups)), bases + 1)
    base = np.arange(len(of)) - np.repeat(np.cumsum(bases + 1) - bases - 1, bases + 1)
    beyond = np.minimum(hourly.top[of], np.maximum(wanted[of] - base, 0))
    kept = base + beyond > 0
    of, base, beyond = of[kept], base[kept], beyond[kept]
    part, level = _of_levels(base + beyond)
    above = np.maximum(level - base[part], 0)
    at = hourly.begin[of[part]] + above
    usd = (commit.usd[commit.begin[of] + base] / hours)[part] + hourly.usd[at]
    least = above * np.where(beyond > 0, hourly.least_start_usd[of], 0.0)[part]

    def columns(of: Ints, most: Ints, term: Columns, money: Floats, gone: Columns = ()) -> Columns:
        one = first[of]
        gpu, place = _gpu_numbers(problem)[units.offer[one]], units.zone[one].astype(np.int64)
        never = np.full(len(of), NEVER_GONE)
        rates = *each[:, of], deviation[of]
        return number[of], gpu, place, *rates, most, *term, *(gone or (never, never)), money

    def no_term(of: Ints) -> Columns:
        return np.zeros(len(of)), np.zeros(len(of)), np.ones(len(of)), np.ones(len(of))

    def part_of(kept: Bools) -> tuple[Ints, Ints, Floats]:
        """Groups with such nodes, their highest levels, and the money of these levels."""
        held = levels(kept, by_hour_usd, start)
        of = np.flatnonzero(held.top)
        part, level = _of_levels(held.top[of])
        at = held.begin[of[part]] + level
        least = level * held.least_start_usd[of[part]]
        return of, held.top[of], np.stack((held.usd[at], held.usd[at], held.start_usd[at], least))

    money = np.stack((usd, usd, hourly.start_usd[at], least))
    found = columns(of, base + beyond, no_term(of), money)
    if has_term.any():
        of, most, money = part_of(has_term)
        termed = mine[has_term]
        begin = _least_per_replica(case, termed, group[has_term], terms.start_usd[termed], len(groups))
        term_h = np.full(len(groups), np.inf)
        np.minimum.at(term_h, group[has_term], terms.least_h[termed])
        share = (terms.full_share[number[of]], terms.paid_share[number[of]])
        found = _stacked(found, columns(of, most, (begin[of], term_h[of], *share), money))
    if ends.any():
        of, most, money = part_of(ends)
        gone_s = problem.table.gone_s[units.offer[mine[ends]]]
        until, sure = np.zeros(len(groups), dtype=np.int64), np.full(len(groups), NEVER_GONE)
        np.maximum.at(until, group[ends], gone_s)
        np.minimum.at(sure, group[ends], gone_s)
        found = _stacked(found, columns(of, most, no_term(of), money, (until[of], sure[of])))
    return found


def _of_levels(most: Ints) -> tuple[Ints, Ints]:
    """The part and the level of each of N levels of parts with ``most`` [L]."""
    part = np.repeat(np.arange(len(most)), most + 1)
    return part, np.arange(len(part)) - begins(most)[part]


class GroupLevels(NamedTuple):
    """USD of the cheapest units of each group by level (``usd``) and of starting them (``start_usd``),
    concatenated.

    Group g begins at ``begin[g]`` [G + 1] and has ``top`` [G] as its highest level. ``least_start_usd`` [G]:
    lower bound on the start cost of a replica.
    """

    begin: Ints
    usd: Floats
    start_usd: Floats
    top: Ints
    least_start_usd: Floats


def _group_levels(
    problem: Problem, case: FleetCase, mine: Ints, group: Ints, usd: Floats, start: Floats, wanted: Ints
) -> GroupLevels:
    """The levels of each group, built from the units ``mine``."""
    units, table, groups = case.units, problem.table, len(wanted)
    offers, begin = units.offer[mine], np.searchsorted(group, np.arange(groups + 1))
    shared = table.pools.of[offers]
    room = np.bincount(group, units.most[mine] * units.replicas[mine], groups)
    levels = begins(np.minimum(wanted, room).astype(np.int64))
    least, begun = np.zeros(levels[-1]), np.zeros(levels[-1])
    tops = group_levels(
        begin, levels, units.replicas[mine], usd, start, units.most[mine],
        units.nodes[mine] * table.gpus_per_node[offers], np.where(shared >= 0, shared, -1 - offers),
        np.where(shared >= 0, np.append(table.pools.gpus, NO_LIMIT)[shared], NO_LIMIT), least, begun,
    )  # fmt: skip
    return GroupLevels(levels, least, begun, tops, _least_per_replica(case, mine, group, start, groups))


def _least_per_replica(case: FleetCase, mine: Ints, group: Ints, usd: Floats, groups: int) -> Floats:
    """Least USD [G] per replica of the units ``mine``; 0 for groups without units."""
    found = np.full(groups, np.inf)
    np.minimum.at(found, group, usd / case.units.replicas[mine])
    return np.where(np.isfinite(found), found, 0.0)


def _is_owed(problem: Problem, offers: Ints) -> Bools:
    """Offers whose minimum term is the whole horizon: they are owed in full once taken."""
    owed: Bools = problem.table.min_s[offers] >= problem.end_s - problem.t0_s
    return owed


def is_gone_early(problem: Problem, offers: Ints) -> Bools:
    """Offers that end before the horizon. Nodes of them are charged by the hour in the model, whatever their
    minimum term, which never overstates them; a fleet's own cost counts the term.
    """
    gone: Bools = problem.table.gone_s[offers] < problem.end_s
    return gone


def _ending_usd(problem: Problem, units: Units, mine: Ints, terms: Terms) -> Floats:
    """USD per hour of each unit. A term that is owed throughout has its dual price at one instant of the
    horizon, so nodes of an offer that ends before it do not pay that.
    """
    offers = units.offer[mine]
    owed = is_gone_early(problem, offers) & _is_owed(problem, offers)
    usd: Floats = np.where(owed, units.usd_per_hour[mine], terms.usd_per_hour[mine])
    return usd


def most_wanted(case: FleetCase, rate: Floats) -> Ints:
    """Replicas [G] with a ``rate`` [2, G] in each stage that carry the whole demand and the spares alone."""
    peaks = [case.demand[: case.later_from], case.demand[case.later_from :]]
    peak = np.array([float(demand.max(initial=0.0)) for demand in peaks])
    most: Ints = (
        np.ceil(peak[:, None] / rate - 1e-9).max(axis=0).astype(np.int64) + case.spare + case.idle + 1
    )
    return most


def _grouped(problem: Problem, case: FleetCase) -> list[Ints]:
    """Units of each pool; where rates within a pool differ much, each rate becomes a pool of its own."""
    units = case.units
    which = pool_numbers(problem, units)
    _, first = np.unique(which, return_index=True)
    # Pools are in the order of their first units.
    rank = first[which]
    shares = units.later_share
    order = np.lexsort((np.arange(len(units)), shares, units.largest, rank))
    rates, ranks, shares = units.largest[order].tolist(), rank[order].tolist(), shares[order].tolist()
    same, begins = 1 + TUNING.fleets.same_rate_share, [0]
    for at in range(1, len(order)):
        begin = begins[-1]
        if (
            ranks[at] != ranks[begin]
            or rates[at] > rates[begin] * same
            or max(shares[at], shares[begin]) > min(shares[at], shares[begin]) * same
        ):
            begins.append(at)
    return np.split(order, begins[1:])


def at_highest_rates(problem: Problem, units: Units) -> Units | None:
    """The units with the highest rate of their pool; None if no pool has rates so different that each becomes
    a pool of its own.
    """
    which, highest = pool_numbers(problem, units), []
    differ = False
    for rate in (units.largest, units.in_stage(1).largest):
        least, most = np.full(len(units), np.inf), np.zeros(len(units))
        np.minimum.at(least, which, rate)
        np.maximum.at(most, which, rate)
        differ |= bool((most > least * (1 + TUNING.fleets.same_rate_share)).any())
        highest.append(most[which])
    if not differ:
        return None
    first, later = highest
    return replace(units, largest=first, requests_per_s=units.replicas * first, later_share=later / first)


def pool_numbers(problem: Problem, units: Units) -> Ints:
    """The pool number [U] of each unit, from 0: its seller, GPU, place and configuration."""
    seller, gpu = _seller_numbers(problem)[units.offer], _gpu_numbers(problem)[units.offer]
    keys = np.zeros(len(units), dtype=np.int64)
    for part in (seller, gpu, units.zone, units.config):
        keys = keys * (int(part.max(initial=0)) + 1) + part
    numbers: Ints = np.unique(keys, return_inverse=True)[1].reshape(-1)
    return numbers


def _pools(
    problem: Problem, case: FleetCase, mine: Ints, hours: float, terms: Terms, group: int
) -> Iterator[Pool]:
    """The parts of one pool: one for each committed amount, the one with minimum terms, and the one whose
    offers end before the horizon.
    """
    units = case.units
    each, later = (float(units.in_stage(stage).largest[mine].min()) for stage in range(2))
    most = int(most_wanted(case, np.array([[each], [later]]))[0])
    bundle, deviation = -(-most // TUNING.fleets.most_levels), float(units.deviation[mine].max())
    wanted = -(-most // bundle)
    has_term, ends = terms.has[mine], is_gone_early(problem, units.offer[mine])
    owed = _is_owed(problem, units.offer[mine]) & ~has_term & ~ends
    by_hour, held = mine[~owed & ~has_term & ~ends], mine[has_term]
    halves = mine[owed & (units.surcharge_usd_per_hour[mine] > 0)]
    free = np.concatenate((by_hour, halves))
    hourly_usd = np.concatenate((terms.usd_per_hour[by_hour], half_usd(problem, units)[halves]))
    start = np.concatenate((_start_usd(problem, case, by_hour), np.zeros(len(halves))))
    hourly = _cheapest(problem, case, free, hourly_usd, start, wanted, bundle)
    whole_usd, no_start = _whole_usd(problem, case, mine[owed], hours), np.zeros(int(owed.sum()))
    commit = _cheapest(problem, case, mine[owed], whole_usd, no_start, wanted, bundle)
    least_start = float((start / units.replicas[free]).min(initial=np.inf)) * bundle
    gpu, place = int(_gpu_numbers(problem)[units.offer[mine[0]]]), int(units.zone[mine[0]])
    for base in range(len(commit.usd)):
        beyond = min(hourly.most, max(0, wanted - base))
        if base + beyond == 0:
            continue
        above = np.maximum(np.arange(base + beyond + 1) - base, 0)
        standing = np.repeat(commit.counts[base][None, :], len(above), axis=0)
        yield Pool(
            gpu=gpu,
            place=place,
            rate=each * bundle,
            later_share=later / each,
            deviation=deviation,
            units=np.concatenate((mine[owed], free)),
            usd=commit.usd[base] / hours + hourly.usd[above],
            counts=np.concatenate((standing, hourly.counts[above]), axis=1),
            least_usd=commit.least_usd[base] / hours + hourly.least_usd[above],
            start_usd=np.maximum.accumulate(hourly.counts[above] @ start),
            least_start_usd=np.maximum(above - (bundle > 1), 0) * (least_start if beyond else 0.0),
            bundle=bundle,
        )
    start = _start_usd(problem, case, held) + terms.start_usd[held]
    stood = _cheapest(problem, case, held, terms.usd_per_hour[held], start, wanted, bundle)
    if stood.most:
        level = np.maximum(np.arange(stood.most + 1) - (bundle > 1), 0)
        yield Pool(
            gpu=gpu,
            place=place,
            rate=each * bundle,
            later_share=later / each,
            deviation=deviation,
            units=held,
            usd=stood.usd,
            counts=stood.counts,
            least_usd=stood.least_usd,
            start_usd=np.maximum.accumulate(stood.counts @ start),
            least_start_usd=level * float((start / units.replicas[held]).min()) * bundle,
            bundle=bundle,
            term_h=float(terms.least_h[held].min()),
            full_share=float(terms.full_share[group]),
            paid_share=float(terms.paid_share[group]),
            begin_usd=float((terms.start_usd[held] / units.replicas[held]).min()) * bundle * (bundle == 1),
        )
    ending = mine[ends]
    start = _start_usd(problem, case, ending)
    usd = _ending_usd(problem, units, ending, terms)
    stood = _cheapest(problem, case, ending, usd, start, wanted, bundle)
    if stood.most:
        level = np.maximum(np.arange(stood.most + 1) - (bundle > 1), 0)
        gone_s = problem.table.gone_s[units.offer[ending]]
        yield Pool(
            gpu=gpu,
            place=place,
            rate=each * bundle,
            later_share=later / each,
            deviation=deviation,
            units=ending,
            usd=stood.usd,
            counts=stood.counts,
            least_usd=stood.least_usd,
            start_usd=np.maximum.accumulate(stood.counts @ start),
            least_start_usd=level * float((start / units.replicas[ending]).min()) * bundle,
            bundle=bundle,
            until_s=int(gone_s.max()),
            sure_s=int(gone_s.min()),
        )


def half_usd(problem: Problem, units: Units) -> Floats:
    """USD per hour [U] of a whole-horizon commitment that serves at most one half of the horizon.

    Its start is billed in whole increments too, hence the additional hours.
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
    """Costs and node counts by level, up to the stock; the fields are those of ``Pool``."""

    usd: Floats
    least_usd: Floats
    counts: Ints

    @property
    def most(self) -> int:
        return len(self.usd) - 1


def _cheapest(
    problem: Problem, case: FleetCase, mine: Ints, usd: Floats, start: Floats, wanted: int, bundle: int
) -> _Levels:
    """The cheapest nodes for each level, combined over groups of offers that are cut from the same GPUs.

    Of equally cheap nodes, those with the lower ``start`` cost (USD [n]) are taken.
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
    # Of equal offers the first is taken, so groups come in the order of their offers.
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
    """For very many replicas: nodes in ascending order of price per replica, the last one whole.

    With a fraction of the last node it is the LP relaxation, which is a lower bound.
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


def _whole_usd(problem: Problem, case: FleetCase, mine: Ints, hours: float) -> Floats:
    """What a commitment is owed in total, with its dual price for the whole horizon."""
    units, table = case.units, problem.table
    held_s = np.full(len(mine), int(hours * HOUR_S), dtype=np.int64)
    whole_h = (problem.end_s - problem.t0_s) / HOUR_S
    usd: Floats = units.nodes[mine] * table.node_cost_usd(units.offer[mine], held_s)
    return usd + units.surcharge_usd_per_hour[mine] * whole_h


def _start_usd(problem: Problem, case: FleetCase, mine: Ints) -> Floats:
    """USD of starting a unit after the service began: its cold start in whole billing increments, the upfront
    price, and what its order is expected to cost where it may fail.
    """
    units, table = case.units, problem.table
    increment = table.increment_s[units.offer[mine]]
    whole = (HOUR_S % increment == 0) & (problem.end_of(case.service) % HOUR_S == 0)
    lead_s = np.where(whole, np.ceil(units.cold_s[mine] / increment) * increment, units.cold_s[mine])
    usd: Floats = (
        units.usd_per_hour[mine] * lead_s + units.surcharge_usd_per_hour[mine] * units.cold_s[mine]
    ) / HOUR_S
    return usd + units.nodes[mine] * table.upfront_usd[units.offer[mine]] + case.relaunch_usd(mine)


def on_promising(problem: Problem, case: FleetCase, first: int = TUNING.fleets.first_units) -> FleetCase:
    """The case restricted to the pools of its ``first`` best units; unchanged if it has few units.

    The criteria are cost per request and cost of carrying half of the peak. The best units of one place more
    than required are added, then further pools until they hold ``ample`` times the peak.
    """
    units = case.units
    if len(units) <= TUNING.fleets.most_units:
        return case
    usd = units.usd_per_hour + units.surcharge_usd_per_hour
    each = usd / units.requests_per_s
    peak = float(case.demand.max(initial=0.0))
    needed = np.maximum(np.ceil(peak / 2 / units.requests_per_s - 1e-9), 1.0)
    half_usd = np.where(needed <= units.most, needed * usd, np.inf)
    by_each, by_half = np.argsort(each, kind="stable"), np.lexsort((each, half_usd))
    pool = pool_numbers(problem, units)
    _, best_of_place = np.unique(units.zone[by_half], return_index=True)
    order = [by_half[:first], by_each[:first], by_half[np.sort(best_of_place)[: case.zones + 1]]]
    kept = np.isin(pool, pool[np.concatenate(order)])
    held = float((units.requests_per_s * units.most)[kept].sum())
    for unit in by_each[~kept[by_each]]:
        if held >= TUNING.fleets.ample * peak:
            break
        if not kept[unit]:
            fresh = (pool == pool[unit]) & ~kept
            held += float((units.requests_per_s * units.most)[fresh].sum())
            kept |= fresh
    return only_units(case, kept)
