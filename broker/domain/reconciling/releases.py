"""The bill of released reservations, and the reason text of those that are being released. Pure.

The bill is for the caller who wanted the reservations, and for the audit trail. A reason begins with why the
release was requested, followed by the provider's latest answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.errors import ProviderError, ReleaseRefused
from broker.domain.basics.money import ZERO, format_usd, price_words, to_cents
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation, UnitState
from broker.domain.spend.charging import owed_usd

REFUSES = "refuses to release"
TAKEN = "the provider accepted the release"


@dataclass(frozen=True, slots=True)
class ReleaseBill:
    """The accrued cost of each released reservation, in USD and whole cents.

    ``still_ending`` are reservations whose release is not confirmed yet, so they may cost more.
    ``was_bought`` is False if no provider accepted an order of any of them.
    """

    lines: tuple[tuple[str, Decimal], ...]
    still_ending: tuple[str, ...]
    was_bought: bool = True

    @property
    def total_usd(self) -> Decimal:
        """Sum of all lines in USD."""
        return sum((usd for _, usd in self.lines), ZERO)

    def __str__(self) -> str:
        kept = "Everything was given back" if self.was_bought else "Nothing was bought"
        words = f"{kept}; cost ${self.total_usd:,.2f}"
        owed = [f"{key} ${usd:,.2f}" for key, usd in self.lines if usd]
        if owed:
            words += f" ({', '.join(owed)})"
        if self.still_ending:
            words += f"; still being released: {', '.join(self.still_ending)}"
        return words

    def facts(self) -> dict[str, object]:
        """The bill as members of a problem document."""
        return {
            "cost_usd": format_usd(self.total_usd),
            "given_back": [{"reservation_id": key, "cost_usd": format_usd(usd)} for key, usd in self.lines],
            "still_ending": list(self.still_ending),
        }


def release_bill(left: Iterable[Reservation], now: datetime) -> ReleaseBill:
    """The bill at ``now`` of the released reservations ``left``."""
    rows = tuple(left)
    lines = tuple((row.reservation_id, to_cents(owed_usd((row,), now))) for row in rows)
    still_ending = tuple(row.reservation_id for row in rows if row.is_open)
    return ReleaseBill(lines, still_ending, any(row.provider_references for row in rows))


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
