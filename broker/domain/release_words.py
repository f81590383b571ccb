"""What a seller that does not end a lease is told as. Pure."""

from __future__ import annotations

from dataclasses import replace

from broker.domain.back_off import next_try_at
from broker.domain.errors import ProviderError, ReleaseRefused
from broker.domain.money import price_words
from broker.domain.reservation import Reservation, UnitState


def release_refused(reservation: Reservation, error: ProviderError) -> Reservation:
    """``reservation``, whose latest try (counted already) met ``error``, with that as its reason.

    It says how often it was tried, when the next try is due, and what an hour of waiting costs.
    """
    if isinstance(error, ReleaseRefused) and error.forever:
        return replace(reservation, reason=str(error))
    said = str(error).removeprefix(f"{error.provider}: ")
    times = "once" if reservation.tries == 1 else f"{reservation.tries} times"
    words = f"{error.provider} refuses to release: {said}; tried {times}"
    at = next_try_at(reservation)
    if at is not None:
        words += f", next at {at:%H:%M} UTC"
    nodes = sum(unit.nodes for unit in reservation.units if unit.state is UnitState.HELD)
    if reservation.offer.window is None and nodes:
        price = price_words(nodes * reservation.offer.price_usd_per_node_hour)
        words += f"; it bills {price} an hour meanwhile"
    return replace(reservation, reason=words)
