"""What an order of one offer or of a plan would buy and cost, before it is placed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd
from broker.domain.holding.holding_orders import Intent, at_limit, unplaced_order
from broker.domain.planning.plan import Plan
from broker.domain.spend.release_estimate import ReleaseEstimate, ResaleShares, estimate_order_release


@dataclass(frozen=True, slots=True)
class OrderQuote:
    """What ``intent`` buys, at the offer's present price.

    ``cost_usd`` is its cost until its end (None: it has no end), and ``most_usd`` the same at the highest
    price that it accepts. ``at_once_usd`` is paid at the purchase. ``usd_per_hour`` is the price of all its
    nodes together. ``on_release``: what a release gives back, right after the order and after its start.
    """

    intent: Intent
    cost_usd: Decimal | None
    most_usd: Decimal | None
    at_once_usd: Decimal
    usd_per_hour: Decimal
    on_release: ReleaseEstimate


@dataclass(frozen=True, slots=True)
class PlanQuote:
    """What the reservation of ``plan`` costs, and what a release right after it gives back."""

    plan: Plan
    on_release: ReleaseEstimate

    @property
    def at_once_usd(self) -> Decimal:
        """What is paid at the purchase."""
        return sum((one.capacity_usd for one in self.plan.placements if one.is_prepaid_window), ZERO)


def quote_of(intent: Intent, team: str, now: datetime, shares: ResaleShares) -> OrderQuote:
    """The quote of an order of ``team`` that is placed at ``now``."""
    offer, cost = intent.offer, _cost_usd(intent)
    return OrderQuote(
        intent=intent,
        cost_usd=cost,
        most_usd=_cost_usd(at_limit(intent)),
        at_once_usd=cost or ZERO if offer.window is not None and offer.window.is_prepaid else ZERO,
        usd_per_hour=offer.price_usd_per_node_hour * intent.nodes,
        on_release=estimate_order_release(unplaced_order(intent, team, now), now, shares),
    )


def _cost_usd(intent: Intent) -> Decimal | None:
    if intent.end is None:
        return None
    held = HeldCapacity(intent.workload or "", intent.offer, intent.nodes, intent.start, intent.end)
    return to_cents(kept_usd(held))
