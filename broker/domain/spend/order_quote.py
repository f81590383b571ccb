"""What an order of one offer would buy and cost, before it is placed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd
from broker.domain.holding.holding_orders import Intent, opening_state
from broker.domain.holding.reservation import Reservation, Unit, UnitState
from broker.domain.spend.release_estimate import ReleaseEstimate, ResaleShares, estimate_order_release


@dataclass(frozen=True, slots=True)
class OrderQuote:
    """What ``intent`` buys, at the offer's present price.

    ``cost_usd`` is its cost until its end (None: it has no end). ``at_once_usd`` is paid at the purchase.
    ``usd_per_hour`` is the price of all its nodes together. ``on_release``: what a release right after the
    purchase gives back.
    """

    intent: Intent
    cost_usd: Decimal | None
    at_once_usd: Decimal
    usd_per_hour: Decimal
    on_release: ReleaseEstimate


def quote_of(intent: Intent, now: datetime, shares: ResaleShares) -> OrderQuote:
    """The quote of an order that is placed at ``now``."""
    offer, start = intent.offer, intent.start
    held = HeldCapacity(intent.workload or "", offer, intent.nodes, start, intent.end or start)
    cost = None if intent.end is None else to_cents(kept_usd(held))
    return OrderQuote(
        intent=intent,
        cost_usd=cost,
        at_once_usd=ZERO if offer.window is None else cost or ZERO,
        usd_per_hour=offer.price_usd_per_node_hour * intent.nodes,
        on_release=estimate_order_release(held, now, shares),
    )


def unplaced_order(intent: Intent, team: str, now: datetime) -> Reservation:
    """The reservation that an order would become, for what it adds to spend; it is stored nowhere."""
    return Reservation(
        reservation_id="order",
        team=team,
        state=opening_state(intent, now),
        offer=intent.offer,
        nodes=intent.nodes,
        start=intent.start,
        end=intent.end,
        units=(Unit(0, "order", intent.nodes, UnitState.PLANNED),),
        created_at=now,
        workload=intent.workload,
    )
