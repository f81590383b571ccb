"""Replacement of capacity that a provider took away, or whose order it refused. Pure.

The rest of the fleet does not change. The gap of a refused order is described as a service of its own: the
requests per second that the refused nodes should have served, over their hours, with the same policy and
latency objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.basics.window import Window, Wish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer
from broker.domain.planning.batch_hours import REQUEST_RATE
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import FleetLimits, PlanRequest, Redundancy, Serving
from broker.domain.reconciling.orphaned_leases import UNATTRIBUTED
from broker.domain.reconciling.reconciling import OVER
from broker.domain.workloads.traffic import Traffic, TrafficShape

AT_ONCE = timedelta(seconds=1)
"""A replacement starts this long after the loss was seen.

Because it starts later than now, it is bought on its own and tried again while it is refused, and a refusal
does not release the rest of its plan.
"""
HOUR = timedelta(hours=1)
SURELY_LESS = 1 - 1e-9
"""Margin for rounding errors, so that the same number of nodes of the same kind always fills the gap."""


def replacement_of(reservation: Reservation, ordinals: Sequence[int], now: datetime) -> Intent | None:
    """The intent to buy the lost nodes again for the rest of their time.

    None if the reservation is not active, belongs to no team, or if its minimum term (of more than an hour)
    is longer than the rest. None for windows too: the provider owes the rest of a paid window, and another
    window needs another plan.
    """
    begin, end = now + AT_ONCE, reservation.ends_at
    if reservation.team == UNATTRIBUTED:
        return None
    wanted = reservation.state is ReservationState.ACTIVE and reservation.offer.window is None
    if not wanted or (end is not None and end - begin < _least(reservation)):
        return None
    nodes = sum(unit.nodes for unit in reservation.units if unit.ordinal in ordinals)
    limit = reservation.limit_usd_per_node_hour
    wish = Wish(max(begin, reservation.wish.start), end)
    return Intent(reservation.offer, nodes, begin, end, reservation.workload, wish, limit)


def unreplaced(reservation: Reservation, reason: str) -> str:
    """``reason`` of a loss without a replacement; for a window in use it also says what to do."""
    in_use = reservation.state is ReservationState.ACTIVE and reason != OVER
    if reservation.offer.window is None or not in_use:
        return reason
    way = "the provider owes the rest of a paid window; claim it there, and plan again (POST /v1/plans)"
    return f"{reason}; it is not bought again, because {way}"


def _least(reservation: Reservation) -> timedelta:
    """The shortest remaining time for which nodes are bought again."""
    hours = reservation.offer.min_hours
    return timedelta(hours=hours) if hours > 1 else AT_ONCE


def as_later(intent: Intent, now: datetime) -> Intent | None:
    """``intent`` as a purchase apart from its plan; None for a window, which is bought with its plan."""
    if intent.offer.window is not None:
        return None
    return replace(intent, start=max(intent.start, now + AT_ONCE))


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in a service, with limits on the offers that may fill it.

    ``request`` is the planning request. Offers must be of these ``pools`` and ``gpus`` (None: any).
    ``taken_places`` are excluded, so that the loss of one place does not take more capacity than before.
    """

    request: PlanRequest
    pools: frozenset[str] | None
    gpus: frozenset[str] | None
    taken_places: frozenset[str]

    def allows(self, offer: Offer) -> bool:
        """Whether ``offer`` may fill the gap. The policy is not checked here."""
        return (
            (self.pools is None or pool_of(offer) in self.pools)
            and (self.gpus is None or offer.sku.gpu in self.gpus)
            and offer.place not in self.taken_places
        )


def pool_of(offer: Offer) -> str:
    """The id of the offer's pool, or the offer's own id if it shares no pool."""
    return offer.offer_id if offer.stock.pool is None else offer.stock.pool.pool_id


def find_gap(
    request: PlanRequest, plan: Plan, refused: Reservation, others: Iterable[Reservation], now: datetime
) -> Gap | None:
    """The gap that ``refused`` leaves in its service.

    None if the workload is not a service, its time is over, or the plan has no estimate for this kind of
    node. ``others`` are the open reservations of the same workload.
    """
    service = next((w for w in request.workloads if w.name == refused.workload), None)
    start = max(refused.start, now + AT_ONCE)
    if not isinstance(service, Serving) or refused.end is None or refused.end <= start:
        return None
    capacity = _requests_per_s(plan, refused)
    if capacity is None:
        return None
    window, beside = Window(start, refused.end), tuple(others)
    rate = capacity
    if not service.min_replicas:
        rate = min(capacity, _most_requests_per_s(service, window, request.horizon.start))
    rules = rules_of(request.policy, service)
    pools = frozenset(pool_of(row.offer) for row in beside)
    gpus = frozenset(row.offer.sku.gpu for row in beside)
    pools_left, gpus_left = rules.max_pools - len(pools), rules.max_gpu_kinds - len(gpus)
    limits = FleetLimits(
        max_pools=pools_left if pools_left > 0 else max(1, len(pools)),
        max_gpu_kinds=gpus_left if gpus_left > 0 else max(1, len(gpus)),
    )
    flat = Traffic(
        service.traffic.input_tokens,
        service.traffic.output_tokens,
        TrafficShape.FLAT,
        rate * SURELY_LESS,
        mix=service.traffic.mix,
    )
    alone = replace(
        service,
        traffic=flat,
        redundancy=Redundancy(),
        min_replicas=0,
        starts=replace(service.starts, after=None, at=None),
        fleet=limits,
    )
    spread = service.redundancy.zones > 1 or service.redundancy.survives_zone_loss
    places = {row.offer.place for row in beside if _overlaps(row, window)} - {refused.offer.place}
    return Gap(
        replace(request, horizon=window, workloads=(alone,), budget_usd=None),
        pools=None if pools_left > 0 else pools,
        gpus=None if gpus_left > 0 else gpus,
        taken_places=frozenset(places) if spread else frozenset(),
    )


def _requests_per_s(plan: Plan, refused: Reservation) -> float | None:
    """Capacity of the refused nodes by the plan's estimate of nodes of this kind; None without one.

    It is the rate that holds with the service's confidence, because the replacement is planned with it too.
    """
    sku, placed = refused.offer.sku, plan.placements_of(refused.workload or "")
    alike = [p for p in placed if (p.gpu, p.gpus) == (sku.gpu, p.nodes * sku.gpus_per_node)]
    exact = [p for p in alike if p.offer_id == refused.offer.offer_id]
    for one in (*exact, *alike):
        rate = one.estimate.sure_requests_per_s if REQUEST_RATE in one.estimate.value else 0.0
        replicas = _replicas(one, refused.nodes * sku.gpus_per_node)
        if rate > 0 and replicas > 0:
            return rate * replicas
    return None


def _replicas(placement: Placement, gpus: int) -> int:
    return min(placement.replicas, gpus // max(1, placement.gpus_per_replica))


def _most_requests_per_s(service: Serving, window: Window, horizon_start: datetime) -> float:
    hours = int(-(-window.duration // HOUR)) + 1
    return max(service.requests_per_s_at(window.start + n * HOUR, horizon_start) for n in range(hours))


def _overlaps(row: Reservation, window: Window) -> bool:
    return row.start < window.end and (row.end is None or window.start < row.end)


def known_empty(rows: Sequence[Reservation], refused: Reservation) -> frozenset[str]:
    """Ids of offers that were refused for times that overlap those of ``refused``, including its own."""
    end = refused.end
    return frozenset(
        row.offer.offer_id
        for row in (*rows, refused)
        if row.tries and (end is None or row.start < end) and (row.end is None or refused.start < row.end)
    ) | {refused.offer.offer_id}
