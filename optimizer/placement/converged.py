"""The strategy of one pool for everything: one kind of node, always on, sized for the peak of all work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.offer import Tier
from broker.domain.workload import Serving, Training
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import price_cents
from optimizer.placement.fleet_cases import Replicas
from optimizer.placement.gates import open_gates
from optimizer.placement.problem import TIERS, Bools, Ints
from optimizer.placement.quotas import most_held, quota_rows
from optimizer.placement.run_sizes import build_sizes
from optimizer.placement.runs import Run, first_second, held_s
from optimizer.placement.shelves import NEVER, Limit, limit_of


@dataclass(frozen=True, slots=True)
class ConvergedPool:
    """The cheapest pool that can carry everything."""

    cost_cents: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class _Needs:
    """What all of ``placed`` needs of each kind of node [K] (NEVER where it cannot run), and of all kinds.

    ``joined``: most nodes that runs hold at once; ``at_once``: the largest training, and the largest unit
    of anything else, in nodes;
    ``allowed`` [O]: offers that every workload may use.
    """

    serving: Ints
    joined: Ints
    at_once: tuple[Ints, Ints]
    zones: int
    allowed: Bools


def converged_pool(
    candidates: Candidates, placed: Sequence[str], out_of_time: Callable[[], bool]
) -> ConvergedPool | None:
    """The cheapest kind of node that can run all of ``placed``, bought for the whole horizon.

    Raises TimeoutError when the time is over before every kind was tried.
    """
    table = candidates.problem.table
    needs = _needs(candidates, placed, out_of_time)
    steady = ~table.is_window & (table.tier_of != TIERS.index(Tier.SPOT)) & candidates.problem.allowed
    best: ConvergedPool | None = None
    for kind in np.flatnonzero((needs.serving < NEVER) & (needs.joined < NEVER)):
        offers = np.flatnonzero(steady & (table.sku_of == kind))
        for offers_of_provider in _by_provider(candidates, offers):
            if out_of_time():
                raise TimeoutError
            pool = _pool(candidates, needs, int(kind), offers_of_provider)
            if pool is not None and (best is None or pool.cost_cents < best.cost_cents):
                best = pool
    return best


def _needs(candidates: Candidates, placed: Sequence[str], out_of_time: Callable[[], bool]) -> _Needs:
    problem, kinds = candidates.problem, len(candidates.problem.table.skus)
    serving = np.zeros(kinds, dtype=np.int64)
    at_once = (np.zeros(kinds, dtype=np.int64), np.zeros(kinds, dtype=np.int64))
    allowed, zones = np.ones(len(problem.table), dtype=np.bool_), 1
    held: list[tuple[Ints, Ints, int]] = []
    for name in placed:
        if out_of_time():
            raise TimeoutError
        workload = problem.request.workload(name)
        allowed &= open_gates(problem, workload).passing
        if isinstance(workload, Serving):
            nodes, unit = _peak_nodes(candidates, workload)
            serving = np.minimum(serving + nodes, NEVER)
            zones = max(zones, workload.redundancy.zones)
        else:
            unit, seconds = _smallest_run(candidates, workload)
            held.append((unit, seconds, first_second(problem, workload)))
        largest = at_once[0 if isinstance(workload, Training) else 1]
        np.maximum(largest, unit, out=largest)
    return _Needs(serving, _most_at_once(held, kinds), at_once, zones, allowed)


def _peak_nodes(candidates: Candidates, service: Serving) -> tuple[Ints, Ints]:
    """Nodes [K] for a service's peak with its spares and zones, and of one unit of that configuration."""
    estimates, case = candidates.estimates, candidates.fleets[service.name]
    each = Replicas.of(candidates.problem, estimates, estimates.row_of[service.name])
    needed = float(case.demand.max(initial=0.0)) + case.spare * each.largest
    units = np.full(each.worth.shape, np.inf)
    np.divide(needed * (1 - 1e-9), each.rate, out=units, where=each.worth)
    nodes = np.where(each.worth, np.maximum(np.ceil(units), case.zones) * each.nodes, NEVER)
    best = nodes.argmin(axis=1)[:, None]
    fewest = np.take_along_axis(nodes, best, axis=1)[:, 0].astype(np.int64)
    return fewest, np.take_along_axis(each.nodes, best, axis=1)[:, 0]


def _smallest_run(candidates: Candidates, run: Run) -> tuple[Ints, Ints]:
    """The fewest nodes [K] with which a run meets its deadline, and for how many seconds it holds them."""
    problem, opened = candidates.problem, open_gates(candidates.problem, run)
    sizes = build_sizes(problem, candidates.estimates, run, opened, opened.log())
    able = sizes.plain.any(axis=1)
    first = sizes.plain.argmax(axis=1)
    seconds, _ = held_s(sizes.needed_s[np.arange(len(first)), first][able])
    held = np.zeros(len(first), dtype=np.int64)
    held[able] = seconds
    return np.where(able, sizes.counts[first], NEVER), held


def _most_at_once(held: Sequence[tuple[Ints, Ints, int]], kinds: int) -> Ints:
    """Most nodes [K] that runs hold at once, each begun at once."""
    most = np.zeros(kinds, dtype=np.int64)
    for kind in range(kinds):
        change: defaultdict[int, int] = defaultdict(int)
        for nodes, seconds, start in held:
            change[start] += int(nodes[kind])
            change[start + int(seconds[kind])] -= int(nodes[kind])
            if nodes[kind] >= NEVER:
                most[kind] = NEVER
                break
        level = 0
        for at in sorted(change):
            level += change[at]
            most[kind] = max(most[kind], level)
    return np.minimum(most, NEVER)


def _by_provider(candidates: Candidates, offers: Ints) -> list[Ints]:
    by_provider: defaultdict[str, list[int]] = defaultdict(list)
    for offer in offers:
        by_provider[candidates.problem.table.offers[offer].provider].append(int(offer))
    return [np.array(group, dtype=np.int64) for _, group in sorted(by_provider.items())]


def _pool(candidates: Candidates, needs: _Needs, kind: int, offers: Ints) -> ConvergedPool | None:
    problem = candidates.problem
    limits = (limit_of(problem.table, limit)[offers] for limit in (Limit.BOTH, Limit.STOCK))
    holds = all(least.min() >= unit[kind] for least, unit in zip(limits, needs.at_once, strict=True))
    if not holds or not needs.allowed[offers].all():
        return None
    nodes, joined = int(needs.serving[kind] + needs.joined[kind]), int(needs.joined[kind])
    for row in quota_rows(problem):
        held = most_held(row.held) + nodes * int(row.per_node[int(offers[0])])
        if row.workload is None and row.members[int(offers[0])] and held > row.limit:
            return None
    cost = _bought_cents(candidates, offers, nodes, joined, needs.zones)
    if cost is None:
        return None
    sku = problem.table.skus[kind]
    provider = problem.table.offers[int(offers[0])].provider
    why = f"{nodes} nodes of {sku.gpu} x{sku.gpus_per_node} at {provider}, always on for the peak of all work"
    return ConvergedPool(cost, why)


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
