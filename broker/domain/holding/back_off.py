"""When a seller that refused is asked again: later each time, up to a limit. Pure.

The count and the last time are stored with the reservation, so that a restart goes on where it was. There is
no jitter: the one leader asks in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.holding.reservation import Reservation, ReservationState

GIVEN_UP_AFTER = timedelta(hours=24)
"""What has no end of its own is asked for no longer than this after its start."""
MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Waits:
    """``first`` before the second try, twice as long before each later one, at most ``longest``."""

    first: timedelta
    longest: timedelta

    def after(self, tries: int) -> timedelta:
        """How long to wait after ``tries`` (at least 1) in a row came to nothing."""
        return min(self.longest, self.first * (1 << min(tries - 1, MOST_DOUBLINGS)))


ORDERS = Waits(timedelta(seconds=30), timedelta(minutes=15))
RELEASES = Waits(timedelta(seconds=15), timedelta(minutes=5))
"""A lease that is not wanted any more goes on billing, so its end is asked for more often."""


def tried(reservation: Reservation, now: datetime) -> Reservation:
    """``reservation`` after one more try that came to nothing."""
    return replace(reservation, tries=reservation.tries + 1, tried_at=now)


def untried(reservation: Reservation) -> Reservation:
    """``reservation`` with its count begun anew: it went well, or something else is asked for."""
    return replace(reservation, tries=0, tried_at=None)


def next_try_at(reservation: Reservation) -> datetime | None:
    """When its seller may be asked again; None where nothing stands against asking now."""
    if not reservation.is_open or not reservation.tries or reservation.tried_at is None:
        return None
    waits = RELEASES if reservation.state is ReservationState.RELEASING else ORDERS
    return reservation.tried_at + waits.after(reservation.tries)


def is_too_early(reservation: Reservation, now: datetime) -> bool:
    """Whether its seller refused so lately that it is not asked yet."""
    at = next_try_at(reservation)
    return at is not None and now < at


def is_hopeless(reservation: Reservation, now: datetime) -> bool:
    """Whether it was refused for so long that it is given up; what has an end is asked for until then."""
    begin = max(reservation.start, reservation.created_at)
    return bool(reservation.tries) and reservation.end is None and now - begin >= GIVEN_UP_AFTER
