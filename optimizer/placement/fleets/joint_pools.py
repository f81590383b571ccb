"""Pools as elements of sets: their parts combined, their dual prices, and which pools a cheapest fleet may
need.

L pools, R levels, P dual prices; N levels of all parts, concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broker.domain.basics.confidence import MEDIAN
from optimizer.placement.fleets.hours import PEAK, TROUGH, HourClasses
from optimizer.placement.fleets.pool_loops import join_levels
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.problem.problem import NEVER_GONE, Floats, Ints
from optimizer.placement.runtime.compiled import compiled
from optimizer.placement.runtime.tuning import TUNING

SAME_SHARE = 1e-9
PARTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class JointPools:
    """Pools [L] that sets consist of. ``parts`` [L, 3] are row numbers of a pool's on-demand part, of its
    part with minimum terms and of that whose offers end early in the table of parts (-1: none).

    ``usd`` [P, L, R] is the hourly cost and ``rate`` [P, L] the requests/s of a level at each dual price;
    ``usd`` never falls with the level and is inf above ``most`` [L]. A pool without parts is empty: it pads
    sets of fewer pools. It has no GPU and no place (-1), and an owner of its own.
    """

    parts: Ints
    owner: Ints
    gpu: Ints
    place: Ints
    rate: Floats
    most: Ints
    usd: Floats

    def __len__(self) -> int:
        return len(self.parts)


def paired_parts(table: PoolTable) -> Ints:
    """The parts [L, 3] of each pool: on demand, with minimum terms, and of offers that end early."""
    rows, which = np.arange(len(table)), (table.term_h > 0) + 2 * (table.until_s < NEVER_GONE)
    of_owner = np.full((int(table.owner.max(initial=-1)) + 1, PARTS), -1, dtype=np.int64)
    for part in range(1, PARTS):
        of_owner[table.owner[which == part], part] = rows[which == part]
    by_hour = rows[which == 0]
    found = of_owner[table.owner[by_hour]]
    found[:, 0] = by_hour
    others = np.setdiff1d(table.owner, table.owner[by_hour])
    found = np.concatenate((found, of_owner[others]))
    first = found[np.arange(len(found)), first_parts(found)]
    ordered: Ints = found[np.argsort(first, kind="stable")]
    return ordered


def first_parts(parts: Ints) -> Ints:
    """The column [L] of the first part that each pool has; 0 if it has none."""
    first: Ints = np.argmax(parts >= 0, axis=1)
    return first


def join_parts(
    table: PoolTable, parts: Ints, usd: Floats, stage: Ints, wanted: Ints, empty: int
) -> JointPools:
    """Combines the ``parts`` [L, 3], which cost ``usd`` [P, .., R] in each ``stage`` [P], to pools of up to
    ``wanted`` [L] levels; adds ``empty`` empty pools.
    """
    first = parts[np.arange(len(parts)), first_parts(parts)]
    most = np.where(parts >= 0, table.most[parts], 0)
    several = (parts >= 0).sum(axis=1) > 1
    top = np.where(
        several, np.minimum(most.sum(axis=1), np.maximum(wanted, most.max(axis=1))), most.max(axis=1)
    )
    none = np.full((empty, PARTS), -1, dtype=np.int64)
    every, most = np.concatenate((parts, none)), np.concatenate((top, np.zeros(empty, dtype=np.int64)))
    joint = joined_usd(table, every, usd, most, max(int(most.max(initial=0)) + 1, usd.shape[2]))
    own = int(table.owner.max(initial=-1)) + 1 + np.arange(empty)
    return JointPools(
        every,
        np.concatenate((table.owner[first], own)),
        np.concatenate((table.gpu[first], none[:, 0])),
        np.concatenate((table.place[first], none[:, 0])),
        np.concatenate((table.stage_rates[:, first], np.ones((2, empty))), axis=1)[stage],
        most,
        joint,
    )


def joined_usd(table: PoolTable, parts: Ints, usd: Floats, most: Ints, levels: int) -> Floats:
    """USD [P, L, levels] an hour of pools of ``parts`` [L, 3] up to their levels ``most`` [L]; parts cost
    ``usd`` [P, .., R]. A pool without parts costs nothing.
    """
    joint = np.full((len(usd), len(parts), levels), np.inf)
    count, single = (parts >= 0).sum(axis=1), parts.max(axis=1)
    one = np.flatnonzero(count == 1)
    joint[:, one, : usd.shape[2]] = usd[:, single[one]]
    joint[:, count == 0, 0] = 0.0
    join_levels(parts, np.flatnonzero(count > 1), usd, table.most, most, joint)
    return joint


def comparable_terms(table: PoolTable, classes: HourClasses) -> Floats:
    """Minimum term of each part, as a key: only parts with equal keys may be compared for dominance.

    Of nodes with the same term, those with a lower rate and start cost less however long they are held. A
    part with several terms or with dual prices gets a key of its own.
    """
    if classes.bands is None:
        return table.term_h
    term_h = np.maximum(table.term_h, 1.0)
    one = np.abs(table.full_share - (term_h + classes.bands.usual_rest_h) / term_h) < SAME_SHARE
    found: Floats = np.where(one | (table.term_h == 0), table.term_h, -1.0 - np.arange(len(table)))
    return found


def needed_pools(table: PoolTable, parts: Ints, rules: FleetRules, terms: Floats) -> Ints:
    """The pools of ``parts`` [L, 3] (1: keep) that a cheapest fleet may need; ``terms`` are the keys of
    ``comparable_terms``.
    """
    if not len(parts):
        return np.zeros(0, dtype=np.int64)
    begin, usd = table.begin[:-1], table.money[0]
    level = np.arange(len(usd)) - np.repeat(begin, table.most + 1)
    served = np.repeat(table.rate, table.most + 1) * level
    each = np.add.reduceat(np.where(np.isfinite(usd), usd, 0.0), begin)
    cheapest = np.minimum.reduceat(
        np.divide(usd, served, out=np.full(len(usd), np.inf), where=level > 0), begin
    )
    first = parts.max(axis=1)
    each = np.where(parts >= 0, each[parts], 0.0).sum(axis=1)
    order = np.lexsort((each, np.where(parts >= 0, cheapest[parts], np.inf).min(axis=1)))
    gpu = table.gpu[first]
    # Another kind of GPU may be one kind more, beside which all kinds count less.
    is_apart = rules.gpus < rules.pools or rules.confidence != MEDIAN
    group = gpu if is_apart else np.zeros_like(gpu)
    beside = table.rate * rules.kinds_share(table.deviation, rules.most_kinds)
    rates = np.concatenate((table.stage_rates, beside[None]))
    return undominated(
        parts, terms, table.begin, usd, table.money[2], rates, group, table.place[first],
        table.owner[first], rules.pools, rules.spare > 0, rules.places > 1, order.astype(np.int64),
        table.until_s, table.sure_s,
    )  # fmt: skip


def priced(table: PoolTable, classes: HourClasses) -> Floats:
    """USD [P, L, R] an hour of each part at each dual price; never falls with the level. Nodes with minimum
    terms are charged in full, and those of an offer that is gone cost inf.
    """
    return _priced(table, classes, np.arange(len(classes.phase)), table.full_share[None, :])


def priced_in_bands(table: PoolTable, classes: HourClasses, charged: int) -> tuple[Floats, Ints, Ints]:
    """The same [K, L, R] where nodes with minimum terms are charged in the first bands of demand only, the
    dual price of each [K], and the index of each class [C] among the K prices.
    """
    assert classes.bands is not None
    keys, of_class = np.unique(classes.dual * TUNING.fleets.bands + classes.band, return_inverse=True)
    share = classes.bands.shares_of(charged, table.term_h, table.full_share, table.paid_share)
    dual = keys // TUNING.fleets.bands
    usd = _priced(table, classes, dual, share[keys % TUNING.fleets.bands])
    return usd, dual, of_class.reshape(-1).astype(np.int64)


def _priced(table: PoolTable, classes: HourClasses, dual: Ints, term_share: Floats) -> Floats:
    """USD [K, L, R] at dual prices ``dual`` [K], where parts with minimum terms are charged ``term_share``
    [K, L] of their rate, without starts.
    """
    found: Floats = phased_usd(table)[classes.phase[dual]]
    termed = np.flatnonzero(table.term_h)
    if len(termed):
        least = table.least_usd[termed]
        share = np.broadcast_to(term_share, (len(dual), len(table)))[:, termed, None]
        with np.errstate(invalid="ignore"):
            found[:, termed] = np.where(np.isfinite(least), share * least, np.inf)
    gone = classes.era_s[classes.era[dual]][:, None] >= table.until_s[None, :]
    if gone.any():
        found[..., 1:] = np.where(gone[:, :, None], np.inf, found[..., 1:])
    return found


def phased_usd(table: PoolTable) -> Floats:
    """USD [3, L, R] an hour at the dual prices of a trough, a slope and a peak; never falls with the
    level.
    """
    usd, start = table.least_usd, table.least_start_usd
    stands = np.isfinite(usd)
    start = np.where(stands, start, 0.0)
    beyond = start > 0
    base = np.where(stands & ~beyond, usd, 0.0).max(axis=1, initial=0.0)
    worth = np.full(usd.shape, np.inf)
    np.divide(usd - base[:, None], start, out=worth, where=beyond)
    start = start * np.clip(worth.min(axis=1, initial=np.inf), 0.0, 1.0)[:, None]
    found = np.stack([usd] * 3)
    found[PEAK] += start
    # A higher level is never cheaper.
    found[TROUGH] = np.minimum.accumulate((usd - start)[:, ::-1], axis=1)[:, ::-1]
    return found


def alike_pools(table: PoolTable, parts: Ints) -> Ints:
    """Equal numbers [L] for pools whose parts have the same rates, stock, prices and start costs."""
    money = (table.usd, table.least_usd, table.start_usd, table.least_start_usd)
    others = (
        table.rate, table.later_rate, table.deviation, table.most, table.term_h, table.full_share,
        table.paid_share, table.begin_usd, table.until_s, table.sure_s,
    )  # fmt: skip
    rows = np.concatenate((*money, *(one[:, None] for one in others)), axis=1)
    numbers: dict[bytes, int] = {}
    of_part = np.array(
        [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows] + [-1], dtype=np.int64
    )
    alike: Ints = np.unique(of_part[parts], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return alike


def usd_per_rate(usd: Floats, rate: Floats) -> Floats:
    """Least USD [P, L] an hour per unit of ``rate`` [P, L]."""
    served = rate[:, :, None] * np.maximum(np.arange(usd.shape[2]), 1)
    found: Floats = (usd / served)[:, :, 1:].min(axis=2, initial=np.inf)
    return found


@compiled
def undominated(
    parts: Ints,
    term: Floats,
    begin: Ints,
    usd: Floats,
    start: Floats,
    rate: Floats,
    group: Ints,
    place: Ints,
    owner: Ints,
    needed: int,
    spared: bool,
    by_place: bool,
    order: Ints,
    until: Ints,
    sure: Ints,
) -> Ints:
    """The pools [L] of ``parts`` [L, 3] (1: keep) that some cheapest fleet may need.

    A pool is removed if ``needed`` others dominate it (in as many places, if places matter), since one of
    them is then always free to replace it. A pool dominates another if it serves at least as much at every
    level of each part in both stages and beside other kinds (``rate`` [3, P]), costs no more per hour and per
    start, has the same minimum ``term`` for each part, is there as long (``until``, ``sure``) and, if
    replicas are spared, no larger replica. ``order``: a dominating pool comes before the pools that it
    dominates.
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
            if group[other] != group[pool] or (
                spared and _is_larger(rate, parts[other].max(), parts[pool].max())
            ):
                continue
            word = place[other] if by_place else owner[other]
            known = False
            for i in range(beaten):
                known = known or seen[i] == word
            if known or not _beats(parts, term, begin, usd, start, rate, until, sure, other, pool):
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
def _is_larger(rate: Floats, other: int, mine: int) -> bool:
    """Whether a replica of another part carries more than one of this part in some stage."""
    larger = False
    for stage in range(len(rate)):
        larger = larger or rate[stage, other] > rate[stage, mine] * (1 + 1e-12)
    return larger


@compiled
def _beats(
    parts: Ints, term: Floats, begin: Ints, usd: Floats, start: Floats, rate: Floats, until: Ints, sure: Ints,
    other: int, pool: int,
) -> bool:  # fmt: skip
    for part in range(parts.shape[1]):
        mine, its = parts[pool, part], parts[other, part]
        if mine < 0:
            continue
        if its < 0 or term[its] != term[mine] or until[its] < until[mine] or sure[its] < sure[mine]:
            return False
        if not _part_beats(begin, usd, start, rate, its, mine):
            return False
    return True


@compiled
def _part_beats(begin: Ints, usd: Floats, start: Floats, rate: Floats, other: int, mine: int) -> bool:
    level = begin[other]
    for wanted in range(begin[mine + 1] - begin[mine]):
        for stage in range(len(rate)):
            served = rate[stage, mine] * wanted * (1 - 1e-9)
            while level < begin[other + 1] and rate[stage, other] * (level - begin[other]) < served:
                level += 1
        if level >= begin[other + 1]:
            return False
        own = begin[mine] + wanted
        if usd[level] > usd[own] + 1e-9 or start[level] > start[own] + 1e-9:
            return False
    return True
