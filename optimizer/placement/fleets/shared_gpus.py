"""Fleets on several sizes of one machine: GPUs that a search over pools takes twice are taken apart.

The search counts the stock of each of its pools by itself, and the sizes of one machine may be in several of
them. Where the cheapest fleet takes more GPUs of a machine than there are, the search is made again without
each of the offers of these GPUs that the fleet takes, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.stock import Ledger

MOST_SEARCHES = 12
"""Searches for one fleet beyond the first."""


def fleets_apart(problem: Problem, free: Ints, search: Callable[[Ints], list[Column]]) -> list[Column]:
    """The fleets that ``search`` finds on ``free`` nodes [O], and further ones while the cheapest takes GPUs
    twice; their bound is that of the first search."""
    nothing, pools = Ledger(problem), problem.table.pools
    found = search(free)
    waiting, left = deque([(free, found)]), MOST_SEARCHES
    while waiting:
        nodes, columns = waiting.popleft()
        cheapest = min(columns, key=lambda column: column.total_cents, default=None)
        pool = None if cheapest is None else nothing.overdrawn_pool(cheapest)
        if cheapest is None or pool is None:
            continue
        for offer in sorted({piece.offer for piece in cheapest.pieces if pools.of[piece.offer] == pool}):
            if not left:
                return found
            left -= 1
            fewer = nodes.copy()
            fewer[offer] = 0
            more = search(fewer)
            found = found + more
            waiting.append((fewer, more))
    return found
