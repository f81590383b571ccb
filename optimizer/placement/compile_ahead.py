"""Compiles the planner's inner loops before they are needed: ``python -m optimizer.placement.compile_ahead``.

The compiled code is kept on disk, so that no plan spends time on it. Each loop is called once with arrays of
the types that it will receive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from broker.domain.planning.effective_rules import MOST_POOLS
from optimizer.placement.fleets.bound import least_usd
from optimizer.placement.fleets.hours import HourClasses, hour_classes
from optimizer.placement.fleets.pool_loops import cheapest_counts, group_levels, joined
from optimizer.placement.fleets.pool_search import SetSearch
from optimizer.placement.fleets.pool_table import Pool, PoolTable, table_of
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.runtime.compiled import forget_others, is_complete, mark_complete, one_at_a_time


def _table() -> PoolTable:
    """A table with three pools of two kinds of GPU in two places."""
    ones, none, nothing = np.ones(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(2)
    usd, _ = cheapest_counts(ones, np.ones(1), ones, ones, 8, 2)
    joined(usd, usd)
    group_levels(
        np.array([0, 1]), np.array([0, 2]), ones, usd[1:2], usd[1:2], ones, ones, ones, ones, usd, usd.copy()
    )
    counts = np.zeros((2, 0), dtype=np.int64)
    usd = np.arange(2.0)
    pools = [
        Pool(number % 2, number % 2, 2.0, none, usd, counts, usd, nothing, nothing, 1) for number in range(3)
    ]
    termed = Pool(0, 0, 2.0, none, usd, counts, usd, usd, usd, 1, 1.0, 24.0)
    return table_of([*pools, termed], [0, 1, 2, 0])


def _hours(*, with_terms: bool = False) -> HourClasses:
    return hour_classes(np.array([1.0, 2.0, 1.0]), np.ones(3), 1, 0, with_terms=with_terms)


def _rules(pools: int) -> FleetRules:
    return FleetRules(spare=1, places=2, loss_share=0.5, least_share=0.5, pools=pools, gpus=2)


def _few_pools() -> None:
    for pools in (3, MOST_POOLS):
        SetSearch(_table(), _hours(with_terms=True), _rules(pools), 0.0).run()


def _knapsack() -> None:
    least_usd(np.ones(1), np.ones(1), np.ones(1))


LOOPS: Mapping[str, Callable[[], None]] = {
    "few pools": _few_pools,
    "hours": _knapsack,
}


def compile_one(name: str) -> None:
    """Compiles the loops of one name, unless they are on disk."""
    LOOPS[name]()


def compile_once(tell: Callable[[], None]) -> None:
    """Compiles what is not on disk yet, one process at a time; ``tell`` is called before it begins.

    It takes about a minute of one core, once for each version of the sources.
    """
    if is_complete():
        return
    tell()
    with one_at_a_time():
        if not is_complete():
            for name in LOOPS:
                compile_one(name)
            mark_complete()


def main() -> int:
    """Compiles all loops in two processes and removes the compiled code of other versions."""
    forget_others()
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(compile_one, LOOPS))
    mark_complete()
    return 0


if __name__ == "__main__":
    sys.exit(main())
