"""Compiles the planner's inner loops before they are needed: ``python -m optimizer.placement.compile_ahead``.

What is compiled is kept on disk, so that no plan spends its time on it. Each loop is called once with arrays
of the kinds that it will see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from optimizer.placement.compiled import forget_others
from optimizer.placement.cover import least_cover
from optimizer.placement.day_knapsack import beside_set, cheapest_days, cheapest_sets, set_of
from optimizer.placement.fleet_rules import FleetRules
from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.pools import Pool, cheapest_counts, joined, table_of
from optimizer.placement.fleets.sets import SetSearch
from optimizer.placement.hour_knapsack import cover_hours
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rungs import build_rungs
from optimizer.placement.sharing_steps import climbed, shared, stretched
from optimizer.placement.shortest_path import cheapest_after, cheapest_way


def _ints(*shape: int) -> Ints:
    return np.ones(shape, dtype=np.int64)


def _usd(*shape: int) -> Floats:
    return np.ones(shape)


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _covers() -> None:
    least_cover(_ints(2), _usd(2), _ints(2), _ints(2), 1)


def _hours() -> None:
    cover_hours(_ints(2, 4), np.array([0, 2]), _usd(2, 2), _ints(2), 1, 8, spared=True, kept=True)


def _days() -> None:
    units, usd, steps, heads = _ints(2, 5), _usd(1, 2), _ints(1, 1), np.array([0, 2])
    units[:, 4] = 0
    stand = cheapest_sets(units, heads, usd, np.array([4]), 1, 3)
    units[:, 2] = 0
    join = cheapest_sets(units, heads, usd, np.array([4]), 1, 1)
    cheapest_days(stand.usd, join.usd, units, heads, usd, _usd(1), _ints(1), steps, _ints(1), spared=True)
    set_of(stand, units, 0, True, 1)
    beside_set(join, units, usd, 0, _ints(1), _ints(1), 0, True)


def _paths() -> None:
    cheapest_after(_usd(2), _usd(2, 2), _usd(2), _usd(3), _usd(3))
    cheapest_way(_usd(2, 2), _usd(3, 2), 0, 0)


def _sharing() -> None:
    shared(_usd(2, 3), _usd(2, 5), _usd(3), _none())
    climbed(_usd(2, 3), _usd(2), _usd(2, 5), _ints(4, 2), _ints(4), _usd(3), _none(), 1.0, 2)
    stretched(_usd(3), np.zeros(9, dtype=np.int64), _usd(9), np.zeros(9, dtype=np.bool_), _usd(2), 1, 2)


def _rungs() -> None:
    first, whole = np.zeros(1, dtype=np.int64), np.array([[0, 1, 0, 1, -1, 1, 1, 1]])
    build_rungs(_usd(2), first, 1, first, first, whole, _usd(1, 5), _ints(1), _none(), 1, 0)


def _fleets() -> None:
    usd, _ = cheapest_counts(_ints(1), _usd(1), _ints(1), _ints(1), 8, 2)
    joined(usd, usd)
    nothing = np.zeros(2)
    pools = [
        Pool(gpu, gpu, 2.0, _none(), np.arange(2.0), np.zeros((2, 0), dtype=np.int64), np.arange(2.0),
             nothing, nothing, 1)
        for gpu in range(3)
    ]  # fmt: skip
    table = table_of(pools, range(3))
    demand = np.array([1.0, 2.0, 1.0])
    classes = hour_classes(demand, np.ones(3), 1, 0)
    rules = FleetRules(spare=0, places=2, loss_share=0.5, least_share=0.5, pools=3, gpus=2)
    SetSearch(table, classes, rules, 0.0).run()


LOOPS: Mapping[str, Callable[[], None]] = {
    "fleets": _fleets,
    "hours": _hours,
    "sharing": _sharing,
    "rungs": _rungs,
    "covers": _covers,
    "days": _days,
    "paths": _paths,
}


def compile_one(name: str) -> None:
    """Compiles the loops of one name, unless they are on disk."""
    LOOPS[name]()


def main() -> int:
    """Compiles all, two at a time, in place of what other sources became."""
    forget_others()
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(compile_one, LOOPS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
