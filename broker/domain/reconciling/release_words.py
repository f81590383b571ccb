"""Why a lease ends, and what its seller says to that. Pure.

A reservation's reason begins with why its end was asked for; what the seller answered comes behind it.
"""

from __future__ import annotations

from dataclasses import replace

from broker.domain.basics.errors import ProviderError, ReleaseRefused
from broker.domain.basics.money import price_words
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation, UnitState

REFUSES = "refuses to release"
TAKEN = "its seller took the order to end it"


def why_released(reservation: Reservation) -> str:
    """Why its end was asked for, without what its seller said to that."""
    why = reservation.reason
    for answer in (f"{reservation.offer.provider} {REFUSES}: ", TAKEN):
        why = why.partition(answer)[0]
    return why.removesuffix("; ")


def because(reservation: Reservation, answer: str) -> str:
    """Why its end was asked for, and the seller's latest ``answer``."""
    why = why_released(reservation)
    return f"{why}; {answer}" if why else answer


def release_refused(reservation: Reservation, error: ProviderError) -> Reservation:
    """``reservation``, whose latest try (counted already) met ``error``, with that in its reason.

    It says how often it was tried, when the next try is due, and what an hour of waiting costs.
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
        words += f"; it bills {price} an hour meanwhile"
    return replace(reservation, reason=because(reservation, words))
