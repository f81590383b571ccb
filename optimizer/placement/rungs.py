"""Rung by rung: which unit carries each further piece of demand, compiled.

C choices (units of a service that ladders may stand on), O offers that they are of, H hours.
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Bools, Floats, Ints

HOUR_S = 3600
MAX_RUNGS = 4096
ROUNDING = 1e-12
OFFER, NODES, ZONE, GPUS, POOL, MIN, INCREMENT, LEAD = range(8)
RATE, LARGEST, SCARCE, PRICE, UPFRONT = range(5)


@compiled
def build_rungs(
    demand: Floats,
    base: Ints,
    base_count: int,
    top: Ints,
    anywhere: Ints,
    whole: Ints,
    usd: Floats,
    free: Ints,
    gpus: Ints,
    zones: int,
    spare: int,
) -> tuple[Ints, float]:
    """Choices for each rung until the peak is met, and about what they cost; none if stock or zones run out.

    ``base``, ``top``: the choices of the first ``base_count`` rungs and of the others; ``anywhere``: those
    that fill a zone in which neither is. ``whole`` [C, 8]: offer, nodes, zone, GPUs of a node, pool of GPUs,
    minimum term (s), billing increment (s), time of a start (s); ``usd`` [C, 5]: requests/s, largest replica,
    price of scarcity an hour, price of a node-hour, upfront. ``free`` [O] nodes and ``gpus`` of pools are
    used up.
    """
    rungs = np.empty(MAX_RUNGS, dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    needed, is_open = np.ones(len(demand), dtype=np.bool_), np.zeros(len(whole), dtype=np.bool_)
    count, opened, total, largest, estimate = 0, 0, 0.0, 0.0, 0.0
    while True:
        use = _use(needed)
        if use[0] == 0:
            return rungs[:count], estimate
        choices = base if count < base_count else top
        elsewhere = opened < zones
        at = _cheapest(choices, whole, usd, free, is_open, elsewhere, use, True)
        if at < 0 and elsewhere:
            at = _cheapest(anywhere, whole, usd, free, is_open, elsewhere, use, False)
        if at < 0 or count >= MAX_RUNGS:
            return nothing, np.inf
        _hold(whole, at, free, gpus)
        opened += not is_open[whole[at, ZONE]]
        is_open[whole[at, ZONE]] = True
        rungs[count] = at
        count += 1
        estimate += _use_usd(whole[at], usd[at], use)
        total += usd[at, RATE]
        largest = max(largest, usd[at, LARGEST])
        few = opened < zones or count < max(1, zones)
        for hour in range(len(demand)):
            needed[hour] = few or total - spare * largest < demand[hour] * (1 - ROUNDING)


@compiled
def _use(needed: Bools) -> tuple[int, int, int]:
    """Hours in which a rung is needed, how often it then starts, and hours from the first to the last."""
    hours, starts, first, last = 0, 0, -1, -1
    for hour in range(len(needed)):
        if needed[hour]:
            hours += 1
            starts += hour == 0 or not needed[hour - 1]
            first = hour if first < 0 else first
            last = hour
    return hours, starts, last - first + 1


@compiled
def _cheapest(
    choices: Ints,
    whole: Ints,
    usd: Floats,
    free: Ints,
    is_open: Bools,
    elsewhere: bool,
    use: tuple[int, int, int],
    per_rate: bool,
) -> int:
    """The free choice that costs least, ``per_rate`` or whole, in a new zone if it must stand ``elsewhere``;
    -1: there is none."""
    best, least = -1, np.inf
    for at in choices:
        if free[whole[at, OFFER]] >= whole[at, NODES] and not (elsewhere and is_open[whole[at, ZONE]]):
            cost = _use_usd(whole[at], usd[at], use)
            if per_rate:
                cost /= usd[at, RATE]
            if cost < least:
                best, least = at, cost
    return best


@compiled
def _use_usd(whole: Ints, usd: Floats, use: tuple[int, int, int]) -> float:
    """Roughly what a unit costs over its hours: the cheaper of follow-the-curve and held throughout."""
    hours, starts, span = use
    each = (hours * HOUR_S + (starts - 1) * whole[LEAD]) // starts
    node_usd: float = min(starts * _node_usd(whole, usd, each), _node_usd(whole, usd, span * HOUR_S))
    cost: float = node_usd * whole[NODES] + usd[SCARCE] * hours
    return cost


@compiled
def _node_usd(whole: Ints, usd: Floats, held_s: int) -> float:
    """The same bill as ``OfferTable.node_cost_usd``."""
    billed_s = -(-max(held_s, whole[MIN]) // whole[INCREMENT]) * whole[INCREMENT]
    cost: float = usd[PRICE] * (billed_s / HOUR_S) + usd[UPFRONT]
    return cost


@compiled
def _hold(whole: Ints, at: int, free: Ints, gpus: Ints) -> None:
    """Takes its nodes; other sizes that are cut from the same GPUs then have fewer."""
    free[whole[at, OFFER]] -= whole[at, NODES]
    pool = whole[at, POOL]
    if pool >= 0:
        gpus[pool] -= whole[at, NODES] * whole[at, GPUS]
        for other in range(len(whole)):
            if whole[other, POOL] == pool:
                offer = whole[other, OFFER]
                free[offer] = min(free[offer], gpus[pool] // whole[other, GPUS])
