"""What buys, over any store and any reservers, as the wiring joins it."""

from __future__ import annotations

from collections.abc import Mapping

from broker.ports.holding import Reserver
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.holding.buyer import Buyer
from broker.services.holding.fallback_offer import FallbackOffers
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.order_gate import OrderGate
from broker.services.holding.reservation_creator import ReservationCreator
from broker.services.planning.quota_gate import QuotaGate


def a_buyer(
    units: UnitOfWorkFactory,
    reservers: Mapping[str, Reserver],
    clock: Clock,
    fallback_offers: FallbackOffers | None = None,
    quotas: QuotaGate | None = None,
    orders: OrderGate | None = None,
) -> Buyer:
    gate = orders or OrderGate()
    lease_service = LeaseService(units, reservers, clock, orders=gate.rules)
    creator = ReservationCreator(lease_service, clock, quotas=quotas, orders=gate)
    return Buyer(units, lease_service, creator, clock, fallback_offers)
