"""Fleets that use several sizes of one machine, whose GPUs a search over pools may count twice.

The search limits the stock of each pool separately, but sizes of one machine may belong to several pools. If
the cheapest fleet takes more GPUs of a machine than exist, the search is repeated without each of the
machine's offers that the fleet uses, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.stock import Ledger

MOST_SEARCHES = 12
"""How many times the search is repeated for one fleet."""


def fleets_apart(problem: Problem, free: Ints, search: Callable[[Ints], list[Column]]) -> list[Column]:
    """The fleets that ``search`` finds on ``free`` nodes [O], and further ones while the cheapest takes GPUs
    twice.

    The bound of the first search holds for all.
    """
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
