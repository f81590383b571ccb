"""Storing orphaned leases as reservations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.identity import ENTROPY_BYTES, made_at, make_id, reservation_of, stands_for, stem_of
from broker.domain.holding.reservation import Lease, Reservation
from broker.domain.reconciling.orphaned_leases import (
    UNATTRIBUTED,
    Orphan,
    adopted_orphan,
    find_orphans,
    left_running,
    offer_like,
)
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory

PAGE = 200
REMEMBERED = timedelta(days=1)
"""For how long after an order with a lost answer an untagged lease may be attributed to it."""
ORDERED = frozenset({"reservation.order", "reservation.unknown"})
"""Actions of audit entries whose detail ends with an order's tag: it was sent, or its answer was lost."""


class OrphanedLeases:
    """Stores orphaned leases as reservations."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._uow_factory = uow_factory
        self._clock = clock
        self._random_bytes = random_bytes

    async def adopt_orphan(
        self, lease: Lease, seen_at: datetime, actor: str, *, keep: bool = False
    ) -> Reservation | None:
        """Stores ``lease`` as a reservation that is to be released; None if its price is unknown.

        ``keep``: it stays in use until somebody releases it. It begins at the first known of these times: the
        start that the provider reports, its order in the audit trail, the creation of the reservation that
        its tag names, and ``seen_at``, when it was first seen.
        """
        now = self._clock.now()
        reservation_id = make_id("rsv", now, self._random_bytes(ENTROPY_BYTES))
        async with self._uow_factory(EVERY_TEAM) as uow:
            tag = lease.tag or ""
            wanted = reservation_of(tag, await uow.accounts.install_id())
            owner = await _owner(uow, tag, wanted)
            offer = (
                offer_like(lease, await uow.offers.find_current(provider=lease.provider))
                if owner is None
                else owner.offer
            )
            row = None
            if offer is not None:
                began_at = lease.began_at or await _ordered_at(uow, owner, tag) or made_at(wanted) or seen_at
                row = adopted_orphan(lease, owner, offer, reservation_id, began_at, now, keep=keep)
                await uow.reservations.add(row)
            elif keep:
                return None
            await uow.accounts.add_audit(_entry(lease, row, now, actor, keep=keep))
            crash_points.here("lease.release_stray.before")
            await uow.commit()
            crash_points.here("lease.release_stray.after")
        return row

    async def find_orphans(
        self, leases: Sequence[Lease], first_seen: Mapping[tuple[str, str], datetime]
    ) -> tuple[Orphan, ...]:
        """Untagged leases that probably come from orders whose answer was lost."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            known = await uow.reservations.find_open()
            lost = await uow.reservations.find_lost(self._clock.now() - REMEMBERED)
        async with self._uow_factory(EVERY_TEAM.narrowed_to(UNATTRIBUTED)) as uow:
            before = await uow.reservations.find_page(PAGE, None)
        return find_orphans(leases, lost, (*known, *before.items), first_seen)

    async def book_orphan(self, orphan: Orphan, actor: str) -> Reservation:
        """Stores ``orphan`` as a reservation without a team, until somebody releases it."""
        now = self._clock.now()
        row = left_running(orphan, make_id("rsv", now, self._random_bytes(ENTROPY_BYTES)), now)
        entry = AuditEntry(
            now, actor, "lease.orphaned", "reservation", row.reservation_id, UNATTRIBUTED, row.reason
        )
        async with self._uow_factory(EVERY_TEAM) as uow:
            await uow.reservations.add(row)
            await uow.accounts.add_audit(entry)
            crash_points.here("lease.orphaned.before")
            await uow.commit()
            crash_points.here("lease.orphaned.after")
        return row


def _entry(lease: Lease, row: Reservation | None, now: datetime, actor: str, *, keep: bool) -> AuditEntry:
    booked = (
        "its price is not known, so spend does not include it"
        if row is None
        else f"booked as {row.reservation_id}"
    )
    return AuditEntry(
        at=now,
        actor=actor,
        action="lease.keep_stray" if keep else "lease.release_stray",
        object_kind="lease",
        object_id=f"{lease.provider}/{lease.reference}",
        team=UNATTRIBUTED if row is None else row.team,
        detail=f"tag {lease.tag} belongs to no open reservation; {booked}",
    )


async def _owner(uow: UnitOfWork, tag: str, name: str) -> Reservation | None:
    """The reservation to which ``tag`` belongs; ``name`` is its short name in the tag."""
    rows = await uow.reservations.find_of_tags(stem_of(tag))
    return next((row for row in rows if stands_for(name, row.reservation_id)), None)


async def _ordered_at(uow: UnitOfWork, owner: Reservation | None, tag: str) -> datetime | None:
    """When the order with ``tag`` was sent, according to its reservation or the audit trail."""
    if owner is None:
        return None
    for unit in owner.units:
        if unit.tag == tag and unit.ordered_at is not None:
            return unit.ordered_at
    trail = await uow.accounts.find_audit(PAGE, None, owner.reservation_id)
    sent = [
        entry.at for entry in trail.items if entry.action in ORDERED and entry.detail.endswith(f"tag {tag}")
    ]
    return min(sent, default=None)
