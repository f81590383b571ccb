"""What keeping capacity costs from now on, and what leaving it would; sunk money is on neither side. Pure.

Both are differences of bills by the one billing rule (``billing``) and by the seller's terms of leaving (as
in ``charging``), at the price of the order, as our spend counts it. So a paid window, a minimum term that is
owed and an upfront fee cost nothing to keep, and save nothing when they are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Segment
from broker.domain.holding.lease_money import at_its_rate
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import CancelRule, Offer

SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """``nodes`` of ``offer`` over ``[start, end)``, held for ``workload`` or waiting for their time.

    ``offer`` is what was ordered, at its price. ``is_bought`` False: nothing is owed for it yet, and it is to
    be bought at the price of its day. ``active_since``: usable from then on (None: not yet).
    """

    workload: str
    offer: Offer
    nodes: int
    start: datetime
    end: datetime
    is_bought: bool = True
    active_since: datetime | None = None
    reservation_id: str | None = None

    @property
    def segment(self) -> Segment:
        """Its whole time."""
        return Segment(self.start, max(self.end, self.start + SHORTEST), self.nodes)

    def is_in_use(self, now: datetime) -> bool:
        """Whether work runs on it, or may begin to at any moment."""
        return self.is_bought and self.start <= now < self.end


def held_of(reservation: Reservation) -> HeldCapacity | None:
    """What ``reservation`` holds or waits for; None for what is over, on its way out or without an end."""
    leaving = not reservation.is_open or reservation.state is ReservationState.RELEASING
    end = reservation.ends_at
    units = [unit for unit in reservation.units if unit.state is not UnitState.GONE]
    if leaving or end is None or reservation.workload is None or not units:
        return None
    bought = [unit for unit in units if unit.state in (UnitState.HELD, UnitState.ORDERING)]
    ordered = [unit.ordered_at for unit in bought if unit.ordered_at is not None]
    start = reservation.start
    if reservation.offer.window is None and ordered:
        start = max(start, min(ordered))
    return HeldCapacity(
        workload=reservation.workload,
        offer=at_its_rate(reservation),
        nodes=sum(unit.nodes for unit in units),
        start=start,
        end=max(end, start + SHORTEST),
        is_bought=bool(bought),
        active_since=reservation.active_at,
        reservation_id=reservation.reservation_id,
    )


def kept_usd(held: HeldCapacity) -> Decimal:
    """The whole bill when it is kept to its end."""
    return holding_cost_usd(held.offer, (held.segment,))


def left_usd(held: HeldCapacity, at: datetime, resale_share: Decimal = ZERO) -> Decimal:
    """The whole bill when it is left ``at`` an instant: what has run, and what leaving does not undo.

    ``resale_share``: of the price of what is left of a window that only a buyer takes back, what one is
    expected to pay.
    """
    if not held.is_bought:
        return ZERO
    whole = kept_usd(held)
    if at >= held.end:
        return whole
    terms = held.offer.window
    if terms is None or terms.cancel is CancelRule.ANY_TIME:
        if at <= held.start and terms is not None:
            return ZERO
        return min(whole, holding_cost_usd(held.offer, (_until(held, at),)))
    if terms.cancel is CancelRule.UNTIL:
        return ZERO if at < held.start else whole
    if terms.cancel is CancelRule.RESELL:
        return whole - whole * resale_share * _rest_share(held, at)
    return whole


def stay_usd(held: HeldCapacity, now: datetime, today: Offer | None) -> Decimal | None:
    """What keeping it costs from ``now`` on; of what is not bought yet, at the price of ``today``.

    None where nobody sells any more what is still to be bought.
    """
    if held.is_bought:
        return kept_usd(held) - left_usd(held, now)
    return None if today is None else holding_cost_usd(today, (held.segment,))


def overlap_usd(held: HeldCapacity, now: datetime, until: datetime, resale_share: Decimal = ZERO) -> Decimal:
    """What it costs to hold it ``until`` something else is usable; below zero where a buyer takes it."""
    return left_usd(held, max(now, until), resale_share) - left_usd(held, now)


def _until(held: HeldCapacity, at: datetime) -> Segment:
    return replace(held.segment, end=max(min(at, held.end), held.start + SHORTEST))


def _rest_share(held: HeldCapacity, at: datetime) -> Decimal:
    rest = held.end - max(at, held.start)
    return Decimal(rest // SHORTEST) / Decimal(max(1, (held.end - held.start) // SHORTEST))
