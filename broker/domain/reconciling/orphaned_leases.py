"""Orphaned leases: leases that belong to no open reservation. They are adopted, released and billed. Pure.

An orphaned lease becomes a reservation that is being released. Its release is therefore retried until the
provider shows it gone, and its cost appears in spend: under the team that its tag leads to, or under
UNATTRIBUTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import (
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.market.offer import Offer, Tier
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis

CLOCKS_DIFFER = timedelta(minutes=1)
LIVE = frozenset(LeaseState) - {LeaseState.ENDED, LeaseState.FAILED, LeaseState.ENDING}
UNATTRIBUTED = "unattributed"
"""The team of leases whose reservation is unknown."""


def adopted_orphan(
    lease: Lease,
    owner: Reservation | None,
    offer: Offer,
    reservation_id: str,
    began_at: datetime,
    now: datetime,
    *,
    keep: bool = False,
) -> Reservation:
    """An orphaned ``lease`` as a reservation that is being released.

    With ``keep`` it stays active until somebody releases it. ``owner`` is the reservation that its tag names.
    """
    why = (
        "no reservation is known for it"
        if owner is None
        else f"it was bought for {owner.reservation_id}, which no longer needs it"
    )
    unit = Unit(
        0,
        lease.tag or "",
        lease.nodes,
        UnitState.HELD,
        lease.reference,
        ordered_at=began_at,
        began_at=lease.began_at,
        leaving_at=None if keep else now,
    )
    return Reservation(
        reservation_id=reservation_id,
        team=UNATTRIBUTED if owner is None else owner.team,
        state=ReservationState.ACTIVE if keep else ReservationState.RELEASING,
        offer=offer,
        nodes=lease.nodes,
        start=began_at,
        end=None if owner is None or offer.window is None else owner.end,
        units=(unit,),
        created_at=now,
        workload=None if owner is None else owner.workload,
        active_at=began_at if keep else None,
        reason=f"{'kept' if keep else 'stray'}: {why}",
        requested_by="" if owner is None else owner.requested_by,
    )


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lease without a tag that was probably created by the lost order of ``unit`` of ``owner``."""

    lease: Lease
    owner: Reservation
    unit: Unit


def find_orphans(
    leases: Iterable[Lease],
    lost: Iterable[Reservation],
    known: Sequence[Reservation],
    first_seen: Mapping[tuple[str, str], datetime],
) -> tuple[Orphan, ...]:
    """Leases that lost orders have probably created; the newest lease is matched to the latest order.

    ``leases`` are as providers list them, oldest first. ``lost`` are failed reservations. ``known`` are all
    reservations with known leases, including orphans that were found before. ``first_seen`` is when each
    lease was first listed; a lease that is older than the order belongs to somebody else. While an order at a
    provider is in doubt, no lease of this provider is matched, since that order may have created it. The
    match is uncertain, so none of these leases is ended unless a person asks for it.
    """
    references = {unit.reference for row in known for unit in row.units if unit.reference is not None}
    settled = {unit.tag for row in known if row.team == UNATTRIBUTED for unit in row.units}
    in_doubt = {
        row.offer.provider
        for row in known
        for unit in row.units
        if row.is_open and (unit.state is UnitState.ORDERING or is_lost_order(unit))
    }
    orders = [
        (unit.ordered_at, row, unit)
        for row in lost
        for unit in row.units
        if is_lost_order(unit) and unit.ordered_at is not None and unit.tag not in settled
    ]
    found: list[Orphan] = []
    nameless = (one for one in leases if one.tag is None and one.state in LIVE)
    free = [one for one in nameless if one.reference not in references and one.provider not in in_doubt]
    for ordered_at, row, unit in sorted(orders, key=lambda order: order[0], reverse=True):
        mine = [
            one
            for one in free
            if one.provider == row.offer.provider
            and first_seen.get((one.provider, one.reference), ordered_at) >= ordered_at
            and (one.began_at is None or one.began_at >= ordered_at - CLOCKS_DIFFER)
            and one.sku in ("", row.offer.sku.name)
        ]
        if mine:
            found.append(Orphan(mine[-1], row, unit))
            free.remove(mine[-1])
    return tuple(found)


def is_lost_order(unit: Unit) -> bool:
    """Whether the unit was ordered and the result of the order stayed unknown."""
    return unit.state is UnitState.GONE and unit.reference is None and unit.gone_at is not None


def left_running(orphan: Orphan, reservation_id: str, now: datetime) -> Reservation:
    """``orphan`` as an active reservation of no team, at the price of its order, until it is released."""
    lease, owner, ordered_at = orphan.lease, orphan.owner, orphan.unit.ordered_at or now
    unit = replace(
        orphan.unit,
        ordinal=0,
        nodes=lease.nodes,
        state=UnitState.HELD,
        reference=lease.reference,
        began_at=lease.began_at,
        gone_at=None,
        paid_usd=None,
    )
    return Reservation(
        reservation_id=reservation_id,
        team=UNATTRIBUTED,
        state=ReservationState.ACTIVE,
        offer=owner.offer,
        nodes=lease.nodes,
        start=ordered_at,
        end=None,
        units=(unit,),
        created_at=now,
        active_at=ordered_at,
        reason=(
            f"orphaned lease: {lease.reference} was probably created by an order for "
            f"{owner.reservation_id} of team {owner.team} whose answer was lost; release it if nobody uses it"
        ),
    )


@dataclass(frozen=True, slots=True)
class OrphanedLeases:
    """Leases at one provider that belong to no team: accrued cost, and cost per hour from now on."""

    provider: str
    reservation_ids: tuple[str, ...]
    owed_usd: Decimal
    usd_per_hour: Decimal


def orphaned_leases(reservations: Iterable[Reservation], now: datetime) -> tuple[OrphanedLeases, ...]:
    """The open reservations that belong to no team, by provider."""
    rows: dict[str, list[Reservation]] = {}
    for row in reservations:
        if row.team == UNATTRIBUTED and row.is_open:
            rows.setdefault(row.offer.provider, []).append(row)
    return tuple(
        OrphanedLeases(
            provider,
            tuple(row.reservation_id for row in held),
            sum(
                (c.usd for c in reservation_charges(held, {}, now) if c.basis is ChargeBasis.ACTUAL),
                ZERO,
            ),
            sum((row.nodes * rate_usd_per_node_hour(row) for row in held), ZERO),
        )
        for provider, held in sorted(rows.items())
    )


def offer_like(lease: Lease, offers: Iterable[Offer]) -> Offer | None:
    """The offer from which ``lease`` was probably bought: same provider, SKU and region."""
    like = [
        offer
        for offer in offers
        if offer.provider == lease.provider
        and offer.sku.name == lease.sku
        and lease.region in (offer.region, "")
        and (offer.tier is Tier.WINDOW) == (lease.window is not None)
    ]
    return min(like, key=lambda offer: (offer.tier is not Tier.ON_DEMAND, offer.offer_id), default=None)
