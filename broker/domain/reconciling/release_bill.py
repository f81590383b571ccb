"""The bill of released reservations, for the caller who wanted them and for the audit trail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO, format_usd, to_cents
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.charging import owed_usd


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
