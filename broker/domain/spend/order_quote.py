"""What an order of one offer or of a plan would buy and cost, before it is placed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment
from broker.domain.holding.capacity_promise import CapacityPromise
from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd
from broker.domain.holding.early_holding import held_early
from broker.domain.holding.holding_orders import Intent, at_limit, bought_later, unplaced_order
from broker.domain.holding.lease_money import at_its_rate, rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation
from broker.domain.market.billing import holding_cost_usd, holdings
from broker.domain.market.offer import Offer, StockLevel, Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.spend.charging import reservation_charges
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
class PlacementQuote:
    """How a placement is ordered if its plan is reserved now.

    ``promise`` is held if all of its ``orders`` are placed now, else ``later`` of them are ordered at their
    start, the first at ``first_later``. ``hold_usd`` is what holding it now adds (None: it cannot be held
    early, or needs not). ``stock`` is that of its offer, and ``launch_chance`` the share of our own launches
    that succeeded there, in [0, 1] (None: not on sale, or not known).
    """

    workload: str
    offer_id: str
    promise: CapacityPromise
    orders: int
    later: int
    first_later: datetime | None = None
    hold_usd: Decimal | None = None
    stock: StockLevel | None = None
    launch_chance: float | None = None


@dataclass(frozen=True, slots=True)
class PlanQuote:
    """What the reservation of ``plan`` costs, and what a release right after it gives back."""

    plan: Plan
    on_release: ReleaseEstimate
    placements: tuple[PlacementQuote, ...]

    @property
    def hold_usd(self) -> Decimal | None:
        """What holding everything now adds that can be held early; None if nothing can, or needs to."""
        added = [one.hold_usd for one in self.placements if one.hold_usd is not None]
        return sum(added, ZERO) if added else None

    @property
    def first_later(self) -> datetime | None:
        """When the first order is placed that waits for its start; None if none waits."""
        return min((one.first_later for one in self.placements if one.first_later is not None), default=None)

    @property
    def at_once_usd(self) -> Decimal:
        """What is paid at the purchase."""
        return sum((one.capacity_usd for one in self.plan.placements if one.is_prepaid_window), ZERO)


@dataclass(frozen=True, slots=True)
class HoldQuote:
    """What it adds to hold ``reservation`` from now until its start: ``usd`` in all, in whole cents."""

    reservation: Reservation
    usd: Decimal

    @property
    def usd_per_hour(self) -> Decimal:
        """The price of all its nodes together."""
        return rate_usd_per_node_hour(self.reservation) * self.reservation.nodes


@dataclass(frozen=True, slots=True)
class ExtensionQuote(HoldQuote):
    """What it adds to hold ``reservation`` until ``end`` and not its present one."""

    end: datetime


def quote_of_plan(
    plan: Plan, offers: Mapping[str, Offer], on_release: ReleaseEstimate, now: datetime
) -> PlanQuote:
    """The quote of a plan that is reserved at ``now``; ``offers`` are those of it that are on sale."""
    placed = tuple(_placement_quote(one, offers.get(one.offer_id), now) for one in plan.placements)
    return PlanQuote(plan, on_release, placed)


def _placement_quote(placement: Placement, offer: Offer | None, now: datetime) -> PlacementQuote:
    starts = _starts(placement, now)
    if offer is None:
        later = [start for start in starts if placement.tier is not Tier.WINDOW and start > now]
    else:
        later = [start for start in starts if bought_later(offer, start, now)]
    early = placement if offer is None else held_early(placement, offer, now)
    return PlacementQuote(
        workload=placement.workload,
        offer_id=placement.offer_id,
        promise=CapacityPromise.AT_START if later else CapacityPromise.HELD,
        orders=len(starts),
        later=len(later),
        first_later=min(later, default=None),
        hold_usd=None if early is placement else early.cost_usd - placement.cost_usd,
        stock=None if offer is None else offer.stock.level,
        launch_chance=None if offer is None or offer.learned is None else offer.learned.success_share,
    )


def _starts(placement: Placement, now: datetime) -> list[datetime]:
    """The start of each order of a placement that is not over at ``now``."""
    is_window = placement.tier is Tier.WINDOW
    held = placement.segments if is_window else holdings(placement.segments)
    return [one.window.start for one in held if one.window.end > now]


def planned_promise(placement: Placement, at: datetime) -> CapacityPromise:
    """What is promised of ``placement`` once its plan is reserved ``at`` that time, whatever is on sale."""
    is_later = placement.tier is not Tier.WINDOW and any(start > at for start in _starts(placement, at))
    return CapacityPromise.AT_START if is_later else CapacityPromise.HELD


def quote_of_hold(reservation: Reservation, now: datetime) -> HoldQuote:
    """The quote of holding ``reservation`` from ``now`` on, and not from its start.

    One without an end is taken to last for its minimum term, which is owed in any case.
    """
    offer, start = at_its_rate(reservation), reservation.start
    end = reservation.end or start + max(1.0, offer.min_hours) * timedelta(hours=1)
    whole, rest = (
        to_cents(holding_cost_usd(offer, (Segment(begin, end, reservation.nodes),)))
        for begin in (min(now, start), start)
    )
    return HoldQuote(reservation, whole - rest)


def quote_of_extension(
    row: Reservation, bill: Sequence[Reservation], end: datetime, now: datetime
) -> ExtensionQuote:
    """The quote of holding ``row`` until ``end``. ``bill``: all reservations that are charged, and rounded,
    together with it.
    """
    longer = [replace(one, end=end) if one.reservation_id == row.reservation_id else one for one in bill]
    before, after = (
        sum((charge.usd for charge in reservation_charges(rows, {}, now)), ZERO) for rows in (bill, longer)
    )
    return ExtensionQuote(row, after - before, end)


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
