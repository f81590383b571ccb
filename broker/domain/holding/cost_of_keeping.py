"""The future cost of keeping held capacity, and of releasing it; sunk cost is excluded. Pure.

Both are differences of bills that follow ``billing`` and the provider's terms of cancellation (as in
``charging``), at the price of the order. A window that is paid, a minimum term that is owed and an upfront
fee therefore cost nothing to keep, and releasing them saves nothing.
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
IN_DOUBT = frozenset({ReservationState.RELEASING, ReservationState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """``nodes`` of ``offer`` over ``[start, end)``, reserved for ``workload``.

    ``offer`` has the price of the order. With ``is_bought`` False nothing is owed yet, and the capacity will
    be bought at the market price of that time. ``active_since`` is since when it is usable and needed (None:
    not usable yet). ``is_held_early``: it was bought before it is needed.
    ``is_expected`` is False for an order that was refused and is tried again.
    """

    workload: str
    offer: Offer
    nodes: int
    start: datetime
    end: datetime
    is_bought: bool = True
    active_since: datetime | None = None
    reservation_id: str | None = None
    is_expected: bool = True
    is_held_early: bool = False

    @property
    def ends_at(self) -> datetime:
        """The end of the holding."""
        return self.end

    @property
    def segment(self) -> Segment:
        """The whole holding as a segment, at least SHORTEST long."""
        return Segment(self.start, max(self.end, self.start + SHORTEST), self.nodes)

    def is_in_use(self, now: datetime) -> bool:
        """Whether the workload runs on it at ``now``, or may start any moment."""
        return self.is_bought and self.start <= now < self.end


def held_of(reservation: Reservation) -> HeldCapacity | None:
    """The capacity that ``reservation`` holds or will buy, without refused nodes beside bought ones.

    None if it is over, is being released, has no end or no workload, or has no units left.
    """
    leaving = not reservation.is_open or reservation.state is ReservationState.RELEASING
    end = reservation.ends_at
    units = without_refused(reservation).open_units
    if leaving or end is None or reservation.workload is None or not units:
        return None
    bought = [unit for unit in units if unit.state in (UnitState.HELD, UnitState.ORDERING)]
    ordered = [unit.ordered_at for unit in bought if unit.ordered_at is not None]
    start = reservation.start
    if reservation.offer.window is None and ordered:
        start = max(start, min(ordered))
    active_since = reservation.active_at
    if active_since is not None and reservation.is_held_early:
        active_since = max(active_since, reservation.wish.start)
    return HeldCapacity(
        workload=reservation.workload,
        offer=at_its_rate(reservation),
        nodes=sum(unit.nodes for unit in units),
        start=start,
        end=max(end, start + SHORTEST),
        is_bought=bool(bought),
        active_since=active_since,
        reservation_id=reservation.reservation_id,
        is_expected=bool(bought) or not waits_after_refusal(reservation),
        is_held_early=reservation.is_held_early,
    )


def waits_after_refusal(reservation: Reservation) -> bool:
    """Whether it still waits for units that the provider refused."""
    waits = any(unit.state is UnitState.PLANNED for unit in reservation.units)
    return waits and bool(reservation.tries) and reservation.is_open and reservation.state not in IN_DOUBT


def without_refused(reservation: Reservation) -> Reservation:
    """``reservation`` as what is bought of it, if some of its nodes were refused or are gone."""
    units = reservation.units
    if waits_after_refusal(reservation) and any(unit.state is UnitState.HELD for unit in units):
        units = tuple(
            replace(unit, state=UnitState.GONE) if unit.state is UnitState.PLANNED else unit for unit in units
        )
        reservation = replace(reservation, units=units, tries=0, tried_at=None)
    return replace(reservation, nodes=sum(unit.nodes for unit in reservation.open_units))


def kept_usd(held: HeldCapacity) -> Decimal:
    """Total bill in USD if ``held`` is kept to its end."""
    return holding_cost_usd(held.offer, (held.segment,))


def left_usd(held: HeldCapacity, at: datetime, resale_share: Decimal = ZERO) -> Decimal:
    """Total bill in USD if ``held`` is released ``at`` an instant: accrued cost, and cost that stays owed.

    ``resale_share`` is the expected resale price of a window as a share of its remaining value.
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
    """Cost in USD of keeping ``held`` from ``now`` on, beyond what a release would still cost.

    Capacity that is not bought yet costs the price of ``today``; None if its offer is no longer on sale.
    """
    if held.is_bought:
        return kept_usd(held) - left_usd(held, now)
    return None if today is None else holding_cost_usd(today, (held.segment,))


def overlap_usd(held: HeldCapacity, now: datetime, until: datetime, resale_share: Decimal = ZERO) -> Decimal:
    """Cost in USD of holding it ``until`` its replacement is usable, against a release ``now``.

    The result is negative if the expected resale is worth more.
    """
    return left_usd(held, max(now, until), resale_share) - left_usd(held, now)


def _until(held: HeldCapacity, at: datetime) -> Segment:
    return replace(held.segment, end=max(min(at, held.end), held.start + SHORTEST))


def _rest_share(held: HeldCapacity, at: datetime) -> Decimal:
    rest = held.end - max(at, held.start)
    return Decimal(rest // SHORTEST) / Decimal(max(1, (held.end - held.start) // SHORTEST))
