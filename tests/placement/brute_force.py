"""The optimum by enumeration, without anything of the planner: tiny problems on whole hours only.

Runs of one node start on any whole hour or are left out; a service holds any number of ready nodes of
each offer in each hour, each started its cold start earlier. Stock holds at every instant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal

from broker.domain.basics.money import to_cents
from broker.domain.basics.window import Segment
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import GpuPool, Offer
from broker.domain.planning.workload import PlanRequest, Serving, Training
from tests.placement.fake_estimator import GPUS
from tests.placement.market import at

Spans = tuple[tuple[float, float, int], ...]
Way = tuple[Decimal, dict[int, Spans]]


def best_total(asked: PlanRequest, offers: Sequence[Offer]) -> Decimal | None:
    """Least cost + penalty; None when something that must be placed cannot be."""
    ways = [sorted(ways_of(asked, offers, w), key=lambda way: way[0]) for w in asked.workloads]
    best: Decimal | None = None
    if not all(ways):
        return None
    least_after = [sum((w[0][0] for w in ways[i:]), Decimal(0)) for i in range(len(ways) + 1)]

    def descend(index: int, spent: Decimal, held: list[dict[int, Spans]]) -> None:
        nonlocal best
        if index == len(ways):
            best = spent
            return
        for cost, spans in ways[index]:
            if best is not None and spent + cost + least_after[index + 1] >= best:
                return
            if _fits(offers, [*held, spans]):
                descend(index + 1, spent + cost, [*held, spans])

    descend(0, Decimal(0), [])
    return best


def fleet_ways(asked: PlanRequest, offers: Sequence[Offer]) -> Iterator[Way]:
    """Every fleet of the only service of a request: its cost, and what it holds."""
    (service,) = (w for w in asked.workloads if isinstance(w, Serving))
    yield from _fleets(asked, offers, service)


def ways_of(asked: PlanRequest, offers: Sequence[Offer], workload: object) -> Iterator[Way]:
    """Every way of one workload: cost and what is held of each offer, in hours."""
    if isinstance(workload, Training):
        yield from _runs(offers, workload)
    elif isinstance(workload, Serving):
        yield from _fleets(asked, offers, workload)
    unplaced = getattr(workload, "unplaced_usd", None)
    if unplaced is not None:
        yield unplaced, {}


def _cost(offers: Sequence[Offer], held: dict[int, Spans]) -> Decimal:
    return sum(
        (
            to_cents(holding_cost_usd(offers[o], [Segment(at(a), at(b), n) for a, b, n in spans]))
            for o, spans in held.items()
            if spans
        ),
        Decimal(0),
    )


def _runs(offers: Sequence[Offer], run: Training) -> Iterator[Way]:
    last = (run.deadline - at(0)).total_seconds() / 3600
    first = (run.earliest_start - at(0)).total_seconds() / 3600
    for o, offer in enumerate(offers):
        hours = run.tokens / (GPUS[offer.sku.gpu].tokens_per_s * offer.sku.gpus_per_node) / 3600
        for start in range(int(first), int(last)):
            if start + hours <= last:
                held: dict[int, Spans] = {o: ((start, start + hours, 1),)}
                yield _cost(offers, held), held


Pair = tuple[int, int]


def _fleets(asked: PlanRequest, offers: Sequence[Offer], service: Serving) -> Iterator[Way]:
    hours = int(asked.horizon.hours)
    pairs = [(o, size) for o, offer in enumerate(offers) for size in _replica_sizes(offer)]
    most = [min(2, stock) if (stock := offers[o].stock.nodes) is not None else 2 for o, _ in pairs]
    by_hour = []
    for hour in range(hours):
        demand = service.traffic.requests_per_s_at(at(hour), at(0))
        counts = itertools.product(*(range(m + 1) for m in most))
        by_hour.append([c for c in counts if _meets(offers, pairs, service, c, demand)])
    for schedule in itertools.product(*by_hour):
        each = [_held(offers[o], [counts[i] for counts in schedule]) for i, (o, _) in enumerate(pairs)]
        cost = sum((_cost(offers, {o: spans}) for (o, _), spans in zip(pairs, each, strict=True)), Decimal(0))
        held: dict[int, Spans] = {}
        for (o, _), spans in zip(pairs, each, strict=True):
            held[o] = (*held.get(o, ()), *spans)
        if _fits(offers, [held]):
            yield cost, held


def _replica_sizes(offer: Offer) -> tuple[int, ...]:
    return tuple(size for size in (1, 2) if offer.sku.gpus_per_node % size == 0)


def _meets(
    offers: Sequence[Offer], pairs: Sequence[Pair], service: Serving, counts: Sequence[int], demand: float
) -> bool:
    if demand <= 0:
        return True
    rates = [
        GPUS[offers[o].sku.gpu].requests_per_s * size
        for (o, size), n in zip(pairs, counts, strict=True)
        for _ in range(n * (offers[o].sku.gpus_per_node // size))
    ]
    used = (offers[o] for (o, _), n in zip(pairs, counts, strict=True) if n)
    zones = {offer.place for offer in used}
    spare = service.redundancy.spare_replicas * max(rates, default=0.0)
    return len(zones) >= service.redundancy.zones and sum(rates) - spare >= demand


def _held(offer: Offer, ready: Sequence[int]) -> Spans:
    """Nodes held so that ``ready`` of them are ready in each hour, as a step function."""
    cold = GPUS[offer.sku.gpu].cold_start_s / 3600
    edges: dict[float, int] = {}
    for node in range(max(ready)):
        hour = 0
        while hour < len(ready):
            if ready[hour] <= node:
                hour += 1
                continue
            first = hour
            while hour < len(ready) and ready[hour] > node:
                hour += 1
            start = max(0.0, first - cold)
            edges[start] = edges.get(start, 0) + 1
            edges[float(hour)] = edges.get(float(hour), 0) - 1
    spans, level, since = [], 0, 0.0
    for when in sorted(edges):
        if level:
            spans.append((since, when, level))
        level, since = level + edges[when], when
    return tuple(spans)


def _fits(offers: Sequence[Offer], held: Sequence[dict[int, Spans]]) -> bool:
    for o, offer in enumerate(offers):
        until = offer.available_until
        if until is not None and any(at(end) > until for way in held for _, end, _ in way.get(o, ())):
            return False
        if offer.stock.nodes is None:
            continue
        spans = [span for way in held for span in way.get(o, ())]
        for when in {a for a, _, _ in spans}:
            if sum(n for a, b, n in spans if a <= when < b) > offer.stock.nodes:
                return False
    return all(_pool_fits(offers, held, pool) for pool in {o.stock.pool for o in offers} if pool is not None)


def _pool_fits(offers: Sequence[Offer], held: Sequence[dict[int, Spans]], pool: GpuPool) -> bool:
    spans = [
        (a, b, n * offer.sku.gpus_per_node)
        for o, offer in enumerate(offers)
        if offer.stock.pool == pool
        for way in held
        for a, b, n in way.get(o, ())
    ]
    most = math.inf if pool.gpus is None else pool.gpus
    return all(sum(n for a, b, n in spans if a <= when < b) <= most for when, _, _ in spans)
