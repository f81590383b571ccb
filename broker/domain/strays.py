"""Leases that carry our tag and that nobody asked for: taken in, so that they are ended and paid for. Pure.

One becomes a reservation on its way out. So its end is asked for until the provider shows it gone, as for any
other, and what it cost stands in spend: under the team that its tag leads to, or under nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from broker.domain.offer import Offer, Tier
from broker.domain.reservation import Lease, Reservation, ReservationState, Unit, UnitState

UNATTRIBUTED = "unattributed"
"""The team of what carries the tag of a reservation that is not known (any more)."""


def taken_in(
    lease: Lease,
    owner: Reservation | None,
    offer: Offer,
    reservation_id: str,
    began_at: datetime,
    now: datetime,
) -> Reservation:
    """``lease`` as a reservation that is being released. ``owner``: whose tag it carries."""
    why = (
        "nobody asked for it"
        if owner is None
        else f"bought for {owner.reservation_id}, which does without it"
    )
    unit = Unit(
        0,
        lease.tag or "",
        lease.nodes,
        UnitState.HELD,
        lease.reference,
        ordered_at=began_at,
        began_at=lease.began_at,
        leaving_at=now,
    )
    return Reservation(
        reservation_id=reservation_id,
        team=UNATTRIBUTED if owner is None else owner.team,
        state=ReservationState.RELEASING,
        offer=offer,
        nodes=lease.nodes,
        start=began_at,
        end=None if owner is None or offer.window is None else owner.end,
        units=(unit,),
        created_at=now,
        workload=None if owner is None else owner.workload,
        reason=f"stray: {why}",
        requested_by="" if owner is None else owner.requested_by,
    )


def offer_like(lease: Lease, offers: Iterable[Offer]) -> Offer | None:
    """The offer that ``lease`` was probably bought at: its provider's price for the same machine there."""
    like = [
        offer
        for offer in offers
        if offer.provider == lease.provider
        and offer.sku.name == lease.sku
        and lease.region in (offer.region, "")
        and (offer.tier is Tier.WINDOW) == (lease.window is not None)
    ]
    return min(like, key=lambda offer: (offer.tier is not Tier.ON_DEMAND, offer.offer_id), default=None)
