"""A fleet meets its traffic in every hour, with its spares and zones, once it had time to start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.billing import holdings
from broker.domain.offer import Offer
from broker.domain.plan import Placement
from broker.domain.workload import Serving
from optimizer.placement.rules.case import Case

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ReadyFleet:
    """One placement's replicas over time."""

    placement: Placement
    offer: Offer
    ready: tuple[tuple[datetime, datetime, int], ...]

    @property
    def zone(self) -> tuple[str, str | None]:
        """What counts as one zone."""
        return (self.offer.provider, self.offer.zone)

    @property
    def requests_per_s(self) -> float:
        """Rate of one replica under the objective."""
        return self.placement.estimate["requests_per_s_per_replica"]

    def replicas_at(self, instant: datetime) -> int:
        """Replicas that are ready at ``instant``."""
        nodes = sum(n for start, end, n in self.ready if start <= instant < end)
        return replicas_on(nodes, self.placement, self.offer)


def replicas_on(nodes: int, placement: Placement, offer: Offer) -> int:
    """Replicas on ``nodes``; a replica spans nodes only when larger than one."""
    per_node, size = offer.sku.gpus_per_node, placement.gpus_per_replica
    fit = nodes * (per_node // size) if size <= per_node else nodes // math.ceil(size / per_node)
    return min(placement.replicas, fit)


def violations(case: Case) -> Iterator[str]:
    """Demand, zones and spares of each service."""
    for service in case.request.workloads:
        if isinstance(service, Serving):
            fleets = tuple(_fleets(case, service))
            if fleets:
                yield from _service(case, service, fleets)


def _fleets(case: Case, service: Serving) -> Iterator[ReadyFleet]:
    for _, placement, workload, offer in case.known():
        if workload.name != service.name:
            continue
        cold = timedelta(seconds=placement.estimate["cold_start_s"])
        ready = tuple(
            (holding.window.start + cold, holding.window.end, holding.nodes)
            for holding in holdings(placement.segments)
            if holding.window.start + cold < holding.window.end
        )
        yield ReadyFleet(placement, offer, ready)


def _service(case: Case, service: Serving, fleets: Sequence[ReadyFleet]) -> Iterator[str]:
    for fleet in fleets:
        joined = fleet.offer.sku.gpus_per_node * fleet.offer.max_nodes_in_one_run
        size = fleet.placement.gpus_per_replica
        if size > joined:
            yield f"{service.name}: a replica of {size} GPUs spans more nodes than are joined ({joined} GPUs)"
    begin = case.service_start(service)
    if begin is None:
        yield f"{service.name}: is placed, but the run {service.starts_after!r} that it follows is not"
        return
    due = _first_due(case, service, fleets, begin)
    for instant in _instants(case, fleets, due):
        found = _short_at(case, service, fleets, instant)
        if found:
            yield f"{service.name}: at {instant.isoformat()} {found}"
            return


def _first_due(case: Case, service: Serving, fleets: Sequence[ReadyFleet], begin: datetime) -> datetime:
    """Traffic is due from ``begin``, but nothing can be ready before a first cold start has passed."""
    cold = timedelta(seconds=max(f.placement.estimate["cold_start_s"] for f in fleets))
    if service.starts_after is not None:
        return begin + cold
    return max(begin, case.earliest + cold)


def _instants(case: Case, fleets: Sequence[ReadyFleet], due: datetime) -> list[datetime]:
    end = case.request.horizon.end
    grid = case.request.horizon.start + ((due - case.request.horizon.start) // HOUR) * HOUR
    instants = {due}
    while grid < end:
        instants.add(grid)
        grid += HOUR
    for fleet in fleets:
        for start, stop, _ in fleet.ready:
            instants.update((start, stop))
    return sorted(t for t in instants if due <= t < end)


def _short_at(case: Case, service: Serving, fleets: Sequence[ReadyFleet], instant: datetime) -> str | None:
    origin = case.request.horizon.start
    hour = origin + ((instant - origin) // HOUR) * HOUR
    demand = service.traffic.requests_per_s_at(hour, origin)
    counts = [(fleet, fleet.replicas_at(instant)) for fleet in fleets]
    zones = {fleet.zone for fleet, replicas in counts if replicas}
    if len(zones) < service.redundancy.zones:
        return f"replicas stand in {len(zones)} zones, {service.redundancy.zones} are asked"
    capacity = sum(replicas * fleet.requests_per_s for fleet, replicas in counts)
    largest = max((fleet.requests_per_s for fleet, replicas in counts if replicas), default=0.0)
    left = capacity - service.redundancy.spare_replicas * largest
    if left < demand * (1 - 1e-9):
        return f"{left:.4f} requests/s are left after spares, {demand:.4f} are asked"
    return None
