"""The capacity that already counts against a request's quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation
from broker.domain.planning.workload import HeldNodes, PlanRequest


def held_beside(request: PlanRequest, reservations: Iterable[Reservation]) -> tuple[HeldNodes, ...]:
    """The open ``reservations`` of all teams that count against a request's quotas within its horizon.

    Those of the request's own workloads do not count, because these workloads are planned again.
    """
    names = {workload.name for workload in request.workloads}
    return tuple(
        HeldNodes(
            provider=row.offer.provider,
            window=window,
            nodes=row.nodes,
            gpus=row.nodes * row.offer.sku.gpus_per_node,
            is_own=row.team == request.team,
        )
        for row in reservations
        if row.is_open and not (row.team == request.team and row.workload in names)
        if (window := _within(row, request.horizon)) is not None
    )


def _within(row: Reservation, horizon: Window) -> Window | None:
    end = row.ends_at or horizon.end
    return Window(row.start, end).intersection(horizon) if end > row.start else None
