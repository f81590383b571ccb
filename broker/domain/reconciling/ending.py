"""When a lease that is gone ended: the provider's own time, else the best estimate. Pure.

The broker may notice the end of a lease late, for example after a restart. The lease is billed until it
ended, not until that was noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from broker.domain.holding.holding_orders import ends_by_itself
from broker.domain.holding.reservation import Lease, LeaseState, Reservation, Unit, UnitState


def end_times(
    reservation: Reservation,
    ordinals: Iterable[int],
    leases: Sequence[Lease],
    missed: Mapping[int, datetime],
) -> Mapping[int, datetime]:
    """When each of the gone units ended, by ordinal. A unit has no entry if nothing is known.

    The first of these that is known applies: the time that the provider states; the later one of the release
    request and the last time it was seen running; and the time when it was first missing (``missed``). For a
    window that cannot be ended early only the first and the last of these apply.
    """
    shown = {lease.reference: lease.ended_at for lease in leases}
    found = {}
    for unit in reservation.units:
        if unit.ordinal in ordinals:
            at = shown.get(unit.reference or "") or _last_known(reservation, unit) or missed.get(unit.ordinal)
            if at is not None:
                found[unit.ordinal] = at
    return found


def _last_known(reservation: Reservation, unit: Unit) -> datetime | None:
    if ends_by_itself(reservation.offer):
        return None
    return max((at for at in (unit.leaving_at, unit.seen_at) if at is not None), default=None)


def running_units(reservation: Reservation, leases: Iterable[Lease]) -> tuple[tuple[str, int], ...]:
    """Reservation id and ordinal of each held unit that the provider lists as neither ending nor ended."""
    over = {LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED}
    shown = {lease.reference for lease in leases if lease.state not in over}
    held = (unit for unit in reservation.units if unit.state is UnitState.HELD)
    return tuple((reservation.reservation_id, unit.ordinal) for unit in held if unit.reference in shown)


def never_came_up(reservation: Reservation, unit: Unit, leases: Iterable[Lease]) -> bool:
    """Whether the provider accepted the order but never delivered capacity, so that it bills nothing.

    Either the provider shows the lease as failed, or the lease disappeared before it was usable and without a
    request to release it. A lease that was usable and failed later is billed until it failed.
    """
    if reservation.active_at is not None or reservation.granted is not None:
        return False
    shown = next((lease for lease in leases if lease.reference == unit.reference), None)
    if shown is not None and (shown.state is LeaseState.FAILED or shown.ended_at is not None):
        return shown.state is LeaseState.FAILED
    return unit.leaving_at is None and reservation.offer.window is None
