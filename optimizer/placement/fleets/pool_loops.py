"""Compiled loops of pools: the cheapest nodes for each number of replicas, for all pools at once.

G pools, U units in the order of their pools, N levels of all pools, concatenated.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.compiled import compiled


@compiled
def _cut_from_one(
    at: Ints, replicas: Ints, usd: Floats, start: Floats, most: Ints, gpus: Ints, limit: int,
    least: Floats, begun: Floats,
) -> None:  # fmt: skip
    """USD [R] of the cheapest nodes ``at`` [n] that hold at least each number of replicas, and their start
    costs.

    The nodes are cut from ``limit`` GPUs together; ``begun`` [R] receives the start costs.
    """
    levels = len(least) - 1
    used = np.zeros(levels + 1, dtype=np.int64)
    least[:] = np.inf
    least[0] = 0.0
    begun[:] = 0.0
    for unit in at:
        before, taken, started = least.copy(), used.copy(), begun.copy()
        for level in range(1, levels + 1):
            for count in range(1, most[unit] + 1):
                rest = max(0, level - count * replicas[unit])
                price = before[rest] + count * usd[unit]
                if price < least[level] - 1e-12 and taken[rest] + count * gpus[unit] <= limit:
                    least[level] = price
                    used[level] = taken[rest] + count * gpus[unit]
                    begun[level] = started[rest] + count * start[unit]
                if rest == 0:
                    break


@compiled
def _cheapest_levels(
    at: Ints, replicas: Ints, usd: Floats, start: Floats, most: Ints, gpus: Ints, shared: Ints, limit: Ints,
    least: Floats, begun: Floats,
) -> int:  # fmt: skip
    """The same for nodes from several stocks (``shared`` [U] identifies them); returns the highest feasible
    level.
    """
    levels = len(least) - 1
    least[:] = np.inf
    least[0] = 0.0
    begun[:] = 0.0
    part, part_begun = np.empty(levels + 1), np.empty(levels + 1)
    # Among stocks of equal price, those with lower start costs come first.
    at = at[np.argsort(start[at] / replicas[at], kind="mergesort")]
    first = True
    for i in range(len(at)):
        name, seen = shared[at[i]], False
        for j in range(i):
            seen = seen or shared[at[j]] == name
        if seen:
            continue
        mine = at[shared[at] == name]
        # Smaller nodes first, then cheaper ones.
        for j in range(1, len(mine)):
            k = j
            while k > 0 and (
                replicas[mine[k]] < replicas[mine[k - 1]]
                or (replicas[mine[k]] == replicas[mine[k - 1]] and usd[mine[k]] < usd[mine[k - 1]])
            ):
                mine[k], mine[k - 1] = mine[k - 1], mine[k]
                k -= 1
        _cut_from_one(mine, replicas, usd, start, most, gpus, limit[at[i]], part, part_begun)
        if first:
            least[:] = part
            begun[:] = part_begun
            first = False
            continue
        before, started = least.copy(), begun.copy()
        for level in range(1, levels + 1):
            for other in range(1, level + 1):
                price = before[level - other] + part[other]
                if price < least[level] - 1e-12:
                    least[level] = price
                    begun[level] = started[level - other] + part_begun[other]
    highest = 0
    for level in range(levels + 1):
        if np.isfinite(least[level]):
            highest = level
    return highest


@compiled
def group_levels(
    begin: Ints, levels: Ints, replicas: Ints, usd: Floats, start: Floats, most: Ints, gpus: Ints,
    shared: Ints, limit: Ints, least: Floats, begun: Floats,
) -> Ints:  # fmt: skip
    """The highest level [G] of each group of nodes; writes the cost (``least`` [N]) and start cost of each
    level.

    Start costs (``begun`` [N]) are made non-decreasing in the level. Group g has units ``begin[g]`` to
    ``begin[g + 1]`` and levels ``levels[g]`` to ``levels[g + 1]``.
    """
    groups = len(begin) - 1
    tops = np.zeros(groups, dtype=np.int64)
    for group in range(groups):
        here = np.arange(begin[group], begin[group + 1])
        first, end = levels[group], levels[group + 1]
        tops[group] = _cheapest_levels(
            here, replicas, usd, start, most, gpus, shared, limit, least[first:end], begun[first:end]
        )
        for level in range(first + 1, end):
            begun[level] = max(begun[level], begun[level - 1])
    return tops


@compiled
def joined_levels(first: Floats, second: Floats, most: int) -> Floats:
    """USD [P, most + 1] of the cheapest split of each level over two parts [P, ..], at each of P prices."""
    prices = len(first)
    found = np.full((prices, most + 1), np.inf)
    for price in range(prices):
        for level in range(most + 1):
            for other in range(min(level + 1, second.shape[1])):
                if level - other < first.shape[1]:
                    usd = first[price, level - other] + second[price, other]
                    found[price, level] = min(found[price, level], usd)
    return found


@compiled
def join_levels(parts: Ints, pools: Ints, usd: Floats, most: Ints, top: Ints, joint: Floats) -> None:
    """Writes to ``joint`` [P, L, R] the cheapest split of each level of ``pools`` over their ``parts`` [L, 3]
    (-1: none), which cost ``usd`` [P, .., R] and have ``most`` levels.
    """
    for pool in pools:
        both, levels = np.zeros((len(usd), 1)), 0
        for part in parts[pool]:
            if part >= 0:
                levels = min(top[pool], levels + most[part])
                both = joined_levels(both, usd[:, part, : most[part] + 1], levels)
        joint[:, pool, : levels + 1] = both


@compiled
def cheapest_counts(
    replicas: Ints, usd: Floats, most: Ints, gpus: Ints, limit: int, levels: int
) -> tuple[Floats, Ints]:
    """USD [R] and counts [R, n] of the cheapest nodes that hold at least each number of replicas.

    Nodes [n] hold ``replicas`` each and are cut from ``limit`` GPUs together. Of equally cheap nodes the
    first are taken.
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
