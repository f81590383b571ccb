"""What takes the place of capacity that its provider took away: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.window import Wish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.reconciling.reconciling import OVER
from broker.domain.reconciling.strays import UNATTRIBUTED

AT_ONCE = timedelta(seconds=1)
"""A replacement starts this much after the loss was seen: like all that starts later it is bought on its own,
asked for again while there is none, and its refusal is no reason to give the rest of its plan back."""


def replacement_of(reservation: Reservation, ordinals: Sequence[int], now: datetime) -> Intent | None:
    """The nodes that were lost, wanted again for the rest of their time.

    None for what was never usable, for what is on its way out or over, for what is no team's, and where a
    minimum term of more than an hour outlasts the rest. None for windows too: the rest of a paid window is
    its seller's debt, and another one is another plan.
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
    """``reason`` of a loss that nothing takes the place of; of a window in use, with why and what to do."""
    in_use = reservation.state is ReservationState.ACTIVE and reason != OVER
    if reservation.offer.window is None or not in_use:
        return reason
    way = "its seller owes the rest of a paid window: claim it there, and plan again (POST /v1/plans)"
    return f"{reason}; not bought again: {way}"


def _least(reservation: Reservation) -> timedelta:
    """The shortest rest that is worth buying again."""
    hours = reservation.offer.min_hours
    return timedelta(hours=hours) if hours > 1 else AT_ONCE


def as_later(intent: Intent, now: datetime) -> Intent | None:
    """``intent`` bought on its own; None for a window, which is always bought with its plan."""
    if intent.offer.window is not None:
        return None
    return replace(intent, start=max(intent.start, now + AT_ONCE))
