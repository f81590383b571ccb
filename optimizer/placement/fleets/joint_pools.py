"""Pools as sets are made of them: their parts joined, and which of them a best fleet may need.

L pools, R levels, P dual prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleets.pool_loops import joined_levels
from optimizer.placement.fleets.pools import PoolTable
from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.compiled import compiled


@dataclass(frozen=True, slots=True, eq=False)
class JointPools:
    """Pools [L] as sets are made of them: the ``parts`` [L, 2] of each, by the hour and with minimum terms,
    in a table of parts (-1: it has none), and what both together are.

    ``usd`` [P, L, R] an hour at each dual price never falls with the level, and is inf above ``most`` [L].
    A pool without parts is empty, so that a set of fewer pools is a set as well: it has no GPU and no place
    (-1), and an owner of its own.
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
    """Parts [L, 2] of all pools: each by the hour with that of its owner with minimum terms."""
    rows, is_term = np.arange(len(table)), table.term_h > 0
    of_owner = np.full(int(table.owner.max(initial=-1)) + 1, -1, dtype=np.int64)
    of_owner[table.owner[is_term]] = rows[is_term]
    by_hour = rows[~is_term]
    alone = rows[is_term & ~np.isin(table.owner, table.owner[by_hour])]
    first = np.concatenate((by_hour, np.full(len(alone), -1, dtype=np.int64)))
    second = np.concatenate((of_owner[table.owner[by_hour]], alone))
    order = np.argsort(np.where(first >= 0, first, second), kind="stable")
    return np.stack((first, second), axis=1)[order]


def join_parts(table: PoolTable, parts: Ints, usd: Floats, wanted: Ints, empty: int) -> JointPools:
    """Pools of ``parts`` [L, 2] that cost ``usd`` [P, .., R], up to ``wanted`` [L] levels, and ``empty``
    ones."""
    first = np.where(parts[:, 0] >= 0, parts[:, 0], parts[:, 1])
    most = np.where(parts >= 0, table.most[parts], 0)
    both = (parts >= 0).all(axis=1)
    top = np.where(both, np.minimum(most.sum(axis=1), np.maximum(wanted, most.max(axis=1))), most.max(axis=1))
    levels = int(top.max(initial=0)) + 1
    joint = np.full((len(usd), len(parts) + empty, max(levels, usd.shape[2])), np.inf)
    joint[:, : len(parts), : usd.shape[2]] = usd[:, first]
    for row in np.flatnonzero(both):
        one, two = parts[row]
        joint[:, row, : top[row] + 1] = joined_levels(
            usd[:, one, : most[row, 0] + 1], usd[:, two, : most[row, 1] + 1], int(top[row])
        )
    joint[:, len(parts) :, 0] = 0.0
    none = np.full(empty, -1, dtype=np.int64)
    own = int(table.owner.max(initial=-1)) + 1 + np.arange(empty)
    return JointPools(
        np.concatenate((parts, np.stack((none, none), axis=1))),
        np.concatenate((table.owner[first], own)),
        np.concatenate((table.gpu[first], none)),
        np.concatenate((table.place[first], none)),
        np.concatenate((table.rate[first], np.ones(empty))),
        np.concatenate((top, none + 1)),
        joint,
    )


@compiled
def undominated(
    parts: Ints,
    term: Floats,
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
    """Pools [L] of ``parts`` [L, 2] (1: keep) that some best fleet may need.

    A pool goes when ``needed`` others beat it, in as many places where places count: each serves at least as
    much at every level of either part, for no more an hour and no more to start, with the same minimum
    ``term`` of the part, and with no larger replica where replicas are spared. Then one of them is always
    free to take its part. ``order``: what beats another stands before it.
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
                spared and rate[parts[other].max()] > rate[parts[pool].max()] * (1 + 1e-12)
            ):
                continue
            word = place[other] if by_place else owner[other]
            known = False
            for i in range(beaten):
                known = known or seen[i] == word
            if known or not _beats(parts, term, usd, start, most, rate, other, pool):
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
def _beats(
    parts: Ints, term: Floats, usd: Floats, start: Floats, most: Ints, rate: Floats, other: int, pool: int
) -> bool:
    for part in range(2):
        mine, its = parts[pool, part], parts[other, part]
        if mine >= 0 and (
            its < 0 or term[its] != term[mine] or not _part_beats(usd, start, most, rate, its, mine)
        ):
            return False
    return True


@compiled
def _part_beats(usd: Floats, start: Floats, most: Ints, rate: Floats, other: int, mine: int) -> bool:
    level = 0
    for wanted in range(most[mine] + 1):
        served = rate[mine] * wanted * (1 - 1e-9)
        while level <= most[other] and rate[other] * level < served:
            level += 1
        if level > most[other]:
            return False
        if usd[other, level] > usd[mine, wanted] + 1e-9 or start[other, level] > start[mine, wanted] + 1e-9:
            return False
    return True
