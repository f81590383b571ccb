"""The reason text of a reservation that is being released. Pure.

It begins with why the release was requested, followed by the provider's latest answer.
"""

from __future__ import annotations

from dataclasses import replace

from broker.domain.basics.errors import ProviderError, ReleaseRefused
from broker.domain.basics.money import price_words
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation, UnitState

REFUSES = "refuses to release"
TAKEN = "the provider accepted the release"


def why_released(reservation: Reservation) -> str:
    """Why the release was requested, without the provider's answer."""
    why = reservation.reason
    for answer in (f"{reservation.offer.provider} {REFUSES}: ", TAKEN):
        why = why.partition(answer)[0]
    return why.removesuffix("; ")


def because(reservation: Reservation, answer: str) -> str:
    """Why the release was requested, followed by the provider's latest ``answer``."""
    why = why_released(reservation)
    return f"{why}; {answer}" if why else answer


def release_refused(reservation: Reservation, error: ProviderError) -> Reservation:
    """``reservation`` with the refusal ``error`` of its latest try (already counted) in its reason.

    The reason says how often the release was tried, when the next try is due, and what an hour costs.
    """
    if isinstance(error, ReleaseRefused) and error.forever:
        return replace(reservation, reason=str(error))
    said = str(error).removeprefix(f"{error.provider}: ")
    times = "once" if reservation.tries == 1 else f"{reservation.tries} times"
    words = f"{error.provider} {REFUSES}: {said}; tried {times}"
    at = next_try_at(reservation)
    if at is not None:
        words += f", next at {at:%H:%M} UTC"
    nodes = sum(unit.nodes for unit in reservation.units if unit.state is UnitState.HELD)
    if reservation.offer.window is None and nodes:
        price = price_words(nodes * rate_usd_per_node_hour(reservation))
        words += f"; until then it bills {price} per hour"
    return replace(reservation, reason=because(reservation, words))
