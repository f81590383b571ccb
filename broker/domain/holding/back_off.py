"""Exponential back-off of orders and releases that a provider refused. Pure.

The number of failed tries and the time of the last one are stored with the reservation, so they survive a
restart. There is no jitter, because the leader alone sends these calls, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.holding.holding_orders import bought_later
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState

GIVEN_UP_AFTER = timedelta(hours=24)
"""A refused reservation without an end is given up this long after its start."""
MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits between tries: ``first``, then twice the wait before, up to ``longest``."""

    first: timedelta
    longest: timedelta

    def after(self, tries: int) -> timedelta:
        """How long to wait after ``tries`` (at least 1) failures in a row."""
        return min(self.longest, self.first * (1 << min(tries - 1, MOST_DOUBLINGS)))


ORDERS = Waits(timedelta(seconds=30), timedelta(minutes=15))
RELEASES = Waits(timedelta(seconds=15), timedelta(minutes=5))
"""Releases are tried more often than orders, because an unwanted lease is billed until it ends."""


def tried(reservation: Reservation, now: datetime) -> Reservation:
    """``reservation`` with one more failed try, at ``now``."""
    return replace(reservation, tries=reservation.tries + 1, tried_at=now)


def after_refusal(reservation: Reservation, now: datetime) -> Reservation:
    """``reservation`` as it is tried again after a refusal at ``now``.

    What was to be held early and is not held at all is ordered at its start again, as if nobody had asked.
    """
    was_later = bought_later(reservation.offer, reservation.start, reservation.created_at)
    is_bought = any(unit.state is not UnitState.PLANNED for unit in reservation.units)
    if was_later and not is_bought and reservation.is_held_early and now < reservation.wish.start:
        return replace(untried(reservation), start=reservation.wish.start)
    return tried(reservation, now)


def untried(reservation: Reservation) -> Reservation:
    """``reservation`` with its count of failed tries reset."""
    return replace(reservation, tries=0, tried_at=None)


def next_try_at(reservation: Reservation) -> datetime | None:
    """When the provider may be asked again; None if it may be asked now."""
    if not reservation.is_open or not reservation.tries or reservation.tried_at is None:
        return None
    waits = RELEASES if reservation.state is ReservationState.RELEASING else ORDERS
    return reservation.tried_at + waits.after(reservation.tries)


def is_too_early(reservation: Reservation, now: datetime) -> bool:
    """Whether the back-off after the last failed try is still running."""
    at = next_try_at(reservation)
    return at is not None and now < at


def is_hopeless(reservation: Reservation, now: datetime) -> bool:
    """Whether a refused reservation without an end is to be given up, GIVEN_UP_AFTER its start.

    A reservation with an end is tried until that end.
    """
    begin = max(reservation.start, reservation.created_at)
    return bool(reservation.tries) and reservation.end is None and now - begin >= GIVEN_UP_AFTER
