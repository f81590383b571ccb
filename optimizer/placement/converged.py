"""The habit of one pool for everything: one kind of node, always on, sized for the peak of all work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.offer import Tier
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import price_cents
from optimizer.placement.problem import TIERS, Ints
from optimizer.placement.units import FleetCase


@dataclass(frozen=True, slots=True)
class ConvergedPool:
    """The cheapest pool that can carry everything."""

    cost_cents: int
    why: str


def converged_pool(
    candidates: Candidates, placed: Sequence[str], out_of_time: Callable[[], bool]
) -> ConvergedPool | None:
    """The cheapest kind of node that can run all of ``placed``, bought for the whole horizon.

    Raises TimeoutError when the time is over before every kind was tried.
    """
    table = candidates.problem.table
    best: ConvergedPool | None = None
    for kind in range(len(table.skus)):
        steady = (table.sku_of == kind) & ~table.is_window & (table.tier_of != TIERS.index(Tier.SPOT))
        offers = np.flatnonzero(steady & candidates.problem.allowed)
        for offers_of_provider in _by_provider(candidates, offers):
            if out_of_time():
                raise TimeoutError
            pool = _pool(candidates, placed, kind, offers_of_provider)
            if pool is not None and (best is None or pool.cost_cents < best.cost_cents):
                best = pool
    return best


def _by_provider(candidates: Candidates, offers: Ints) -> list[Ints]:
    by_provider: defaultdict[str, list[int]] = defaultdict(list)
    for offer in offers:
        by_provider[candidates.problem.table.offers[offer].provider].append(int(offer))
    return [np.array(group, dtype=np.int64) for _, group in sorted(by_provider.items())]


def _pool(candidates: Candidates, placed: Sequence[str], kind: int, offers: Ints) -> ConvergedPool | None:
    problem = candidates.problem
    serving, zones = _serving_nodes(candidates, placed, offers)
    training = _training_peak(candidates, placed, offers)
    if serving is None or training is None:
        return None
    cost = _bought_cents(candidates, offers, serving + training, training, zones)
    if cost is None:
        return None
    sku = problem.table.skus[kind]
    provider = problem.table.offers[int(offers[0])].provider
    nodes = serving + training
    why = f"{nodes} nodes of {sku.gpu} x{sku.gpus_per_node} at {provider}, always on for the peak of all work"
    return ConvergedPool(cost, why)


def _serving_nodes(candidates: Candidates, placed: Sequence[str], offers: Ints) -> tuple[int | None, int]:
    """Nodes for the peaks of all services together, and the zones that they ask for."""
    total, zones = 0, 1
    for name in placed:
        if name in candidates.fleets:
            nodes = _peak_nodes(candidates.fleets[name], offers)
            if nodes is None:
                return None, zones
            total += nodes
            zones = max(zones, candidates.fleets[name].zones)
    return total, zones


def _peak_nodes(case: FleetCase, offers: Ints) -> int | None:
    units = case.units
    inside = np.flatnonzero(np.isin(units.offer, offers))
    if len(np.unique(units.offer[inside])) < len(offers):
        return None
    need = float(case.demand.max()) + case.spare * units.largest[inside]
    count = np.maximum(np.ceil(need / units.requests_per_s[inside] * (1 - 1e-9)), case.zones)
    return int((count * units.nodes[inside]).min())


def _training_peak(candidates: Candidates, placed: Sequence[str], offers: Ints) -> int | None:
    """Most nodes that runs hold at once, each as small as its deadline allows and begun at once."""
    change: defaultdict[float, int] = defaultdict(int)
    for name in placed:
        if name in candidates.runs:
            found = candidates.runs[name]
            inside = np.flatnonzero(np.isin(found.offer, offers))
            if len(np.unique(found.offer[inside])) < len(offers):
                return None
            index = inside[int(np.lexsort((found.end_s[inside], found.nodes[inside]))[0])]
            change[float(found.start_s[index])] += int(found.nodes[index])
            change[float(found.until_s[index])] -= int(found.nodes[index])
    level = most = 0
    for at in sorted(change):
        level += change[at]
        most = max(most, level)
    return most


def _bought_cents(candidates: Candidates, offers: Ints, nodes: int, joined: int, zones: int) -> int | None:
    """The cheapest way to hold the pool for the whole horizon, in as many zones as services ask for.

    Runs need their nodes joined in one offer; the rest may lie anywhere at this provider.
    """
    problem, table = candidates.problem, candidates.problem.table
    order = offers[np.lexsort((offers, table.price_usd[offers]))]
    homes = [int(o) for o in order if table.stock_nodes[o] >= joined]
    if not nodes or not homes or len({int(z) for z in table.zone_of[offers]}) < zones:
        return None
    bought: dict[int, int] = {homes[0]: joined}
    seen = {int(table.zone_of[homes[0]])}
    left = nodes - joined
    for zoned in (True, False):
        for offer in (int(o) for o in order):
            shares = any(bought.get(other) for other in table.pools.reach(offer) if other != offer)
            free = 0 if shares else int(table.stock_nodes[offer]) - bought.get(offer, 0)
            wanted = zoned and len(seen) < zones and int(table.zone_of[offer]) not in seen
            take = min(free, left, 1) if wanted else 0 if zoned else min(free, left)
            bought[offer] = bought.get(offer, 0) + take
            left -= take
            seen |= {int(table.zone_of[offer])} if take else set()
    if left > 0:
        return None
    span = (problem.t0_s, problem.end_s)
    return sum(price_cents(problem, o, ((*span, n),)) for o, n in sorted(bought.items()) if n)
