"""What is promised of reserved capacity: the words of pages, terminal and API. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from broker.domain.holding.reservation import Reservation, ReservationState

_UNDECIDED = frozenset({ReservationState.PENDING, ReservationState.UNKNOWN, ReservationState.RELEASING})


class CapacityPromise(StrEnum):
    """What is promised of capacity.

    ``held``: its seller has given it, or it is paid. ``holding``: the same, before it is needed.
    ``at_start``: it is ordered at its start, and nobody has promised it.
    """

    HELD = "held"
    HOLDING = "holding"
    AT_START = "at_start"

    @property
    def words(self) -> str:
        """The state for readers."""
        return "ordered at its start" if self is CapacityPromise.AT_START else self.value


def promise_of(reservation: Reservation, now: datetime) -> CapacityPromise | None:
    """What is promised of ``reservation``; None while an order is not answered, at a release and after it."""
    if not reservation.is_open or reservation.state in _UNDECIDED:
        return None
    if reservation.state is ReservationState.SCHEDULED and not reservation.provider_references:
        return CapacityPromise.AT_START
    is_ahead = reservation.is_held_early and now < reservation.wish.start
    return CapacityPromise.HOLDING if is_ahead else CapacityPromise.HELD
