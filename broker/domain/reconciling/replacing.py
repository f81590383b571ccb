"""Replacement of capacity that its provider took away. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.window import Wish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.reconciling.orphaned_leases import UNATTRIBUTED
from broker.domain.reconciling.reconciling import OVER

AT_ONCE = timedelta(seconds=1)
"""A replacement starts this long after the loss was seen.

Because it starts later than now, it is bought on its own and tried again while it is refused, and a refusal
does not release the rest of its plan.
"""


def replacement_of(reservation: Reservation, ordinals: Sequence[int], now: datetime) -> Intent | None:
    """The intent to buy the lost nodes again for the rest of their time.

    None if the reservation is not active, belongs to no team, or if its minimum term (of more than an hour)
    is longer than the rest. None for windows too: the provider owes the rest of a paid window, and another
    window needs another plan.
    """
    begin, end = now + AT_ONCE, reservation.ends_at
    if reservation.team == UNATTRIBUTED:
        return None
    wanted = reservation.state is ReservationState.ACTIVE and reservation.offer.window is None
    if not wanted or (end is not None and end - begin < _least(reservation)):
        return None
    nodes = sum(unit.nodes for unit in reservation.units if unit.ordinal in ordinals)
    limit = reservation.limit_usd_per_node_hour
    return Intent(reservation.offer, nodes, begin, end, reservation.workload, Wish(begin, end), limit)


def unreplaced(reservation: Reservation, reason: str) -> str:
    """``reason`` of a loss without a replacement; for a window in use it also says what to do."""
    in_use = reservation.state is ReservationState.ACTIVE and reason != OVER
    if reservation.offer.window is None or not in_use:
        return reason
    way = "the provider owes the rest of a paid window; claim it there, and plan again (POST /v1/plans)"
    return f"{reason}; it is not bought again, because {way}"


def _least(reservation: Reservation) -> timedelta:
    """The shortest remaining time for which nodes are bought again."""
    hours = reservation.offer.min_hours
    return timedelta(hours=hours) if hours > 1 else AT_ONCE


def as_later(intent: Intent, now: datetime) -> Intent | None:
    """``intent`` as a purchase apart from its plan; None for a window, which is bought with its plan."""
    if intent.offer.window is not None:
        return None
    return replace(intent, start=max(intent.start, now + AT_ONCE))
