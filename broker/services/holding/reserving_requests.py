"""What is asked of ``ReservationsService``, and the answer to a release of several reservations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.errors import BrokerError
from broker.domain.basics.machines import AccessWish
from broker.domain.holding.reservation import Reservation
from broker.domain.workloads.startup import Startup


@dataclass(frozen=True, slots=True)
class OfferOrder:
    """An order of ``nodes`` of one offer, as somebody asks for it; see ``reserve_offer``."""

    offer_id: str
    nodes: int
    start: datetime | None = None
    end: datetime | None = None
    workload: str | None = None
    outward: bool = False
    most_usd_per_node_hour: Decimal | None = None
    disk_gb: float | None = None
    memory_gb: float | None = None
    access: AccessWish = AccessWish.SSH
    startup: Startup | None = None


@dataclass(frozen=True, slots=True)
class PlanPart:
    """What a plan holds: all of it, or only what it holds for ``workload``, or only of ``offer_id``."""

    plan_id: str
    workload: str | None = None
    offer_id: str | None = None

    def covers(self, row: Reservation) -> bool:
        """Whether ``row`` belongs to it."""
        return (
            row.plan_id == self.plan_id
            and self.workload in (None, row.workload)
            and self.offer_id in (None, row.offer.offer_id)
        )


@dataclass(frozen=True, slots=True)
class PartRelease:
    """The releases of a part of a plan: those that were asked for, and those that failed, each with its
    error."""

    asked: tuple[Reservation, ...]
    failed: tuple[tuple[Reservation, BrokerError], ...]
