"""When what is gone ended: the provider's own word, else the last that is known of it. Pure.

Nobody watches a lease all the time, least of all a broker that was dead; but what is billed by the second
is billed until it ended, not until somebody noticed.
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
    """When each of the units that are gone ended; one of which nothing is known has no entry.

    ``missed``: when each was first not shown any more. In this order: what its seller says; when its end was
    asked for, or when it was last shown running, whichever is later; when it was first missed. What its
    seller alone can end was not ended by our asking, so it counts until it was missed.
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
    """Reservation id and ordinal of each held unit that the provider's list shows, and not as ending."""
    over = {LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED}
    shown = {lease.reference for lease in leases if lease.state not in over}
    held = (unit for unit in reservation.units if unit.state is UnitState.HELD)
    return tuple((reservation.reservation_id, unit.ordinal) for unit in held if unit.reference in shown)


def never_came_up(reservation: Reservation, unit: Unit, leases: Iterable[Lease]) -> bool:
    """Whether the provider took an order and then had no capacity for it: it bills nothing.

    It says so (of a window before it granted one), or the lease is gone before it was ever seen usable, with
    nobody asking for its end. What was usable and failed later was billed until then.
    """
    if reservation.active_at is not None or reservation.granted is not None:
        return False
    shown = next((lease for lease in leases if lease.reference == unit.reference), None)
    if shown is not None and (shown.state is LeaseState.FAILED or shown.ended_at is not None):
        return shown.state is LeaseState.FAILED
    return unit.leaving_at is None and reservation.offer.window is None
