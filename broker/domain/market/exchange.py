"""Dated exchange rates from a table; none is fetched while a bill is made.

What is billed in another currency is booked in USD at the rate of the day: each increment at that of the UTC
day on which it begins, a prepaid block at that of its first day, and what is still to come at the newest. A
lease keeps the rates of its days, so a rate that becomes known later does not change a day that is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from broker.domain.basics.money import MICRO

STALE_AFTER_DAYS = 7
"""Age of a rate from which on it is warned of: central banks publish on every working day."""


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of ``currency`` (ISO 4217) was worth ``usd_per_unit`` on the day ``on``."""

    currency: str
    usd_per_unit: Decimal
    on: date
    source: str

    def __str__(self) -> str:
        return f"1 {self.currency} = {self.usd_per_unit} USD of {self.on}"


@dataclass(frozen=True, slots=True)
class DayRate:
    """The rate that is used from the UTC day ``since`` on, which is of the day ``on``."""

    since: date
    on: date
    usd_per_unit: Decimal


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a price in another currency counts in USD.

    ``rates`` are oldest first; the first is that of the price in USD. ``billed_per_node_hour`` is the price
    of a node-hour in the currency of the provider's invoice (None: its invoice is in USD, and the price stays
    as it was converted).
    """

    rates: tuple[DayRate, ...]
    billed_per_node_hour: Decimal | None = None

    def rate_on(self, day: date) -> DayRate:
        """The rate that is used on ``day``."""
        return next((rate for rate in reversed(self.rates) if rate.since <= day), self.rates[0])

    def with_rate(self, rate: ExchangeRate, day: date) -> Exchange:
        """With ``rate`` from ``day`` on; unchanged if it is no newer one."""
        last = self.rates[-1]
        if rate.on <= last.on or rate.usd_per_unit == last.usd_per_unit or day < last.since:
            return self
        kept = tuple(one for one in self.rates if one.since < day or one is self.rates[0])
        return replace(self, rates=(*kept, DayRate(day, rate.on, rate.usd_per_unit)))

    def dearer(self, usd: Decimal) -> Exchange:
        """For a price of ``usd`` more per node-hour."""
        billed = self.billed_per_node_hour
        if billed is None:
            return self
        more = (usd / self.rates[0].usd_per_unit).quantize(MICRO)
        return replace(self, billed_per_node_hour=billed + more)

    @property
    def moved(self) -> tuple[DayRate, ...]:
        """The rates after the first, for what is billed in another currency; none otherwise."""
        return () if self.billed_per_node_hour is None else self.rates[1:]


def rate_on(rates: Iterable[ExchangeRate], currency: str, day: date) -> ExchangeRate | None:
    """The latest rate of ``currency`` dated ``day`` or earlier; if all are later, the earliest rate.

    None if there is no rate of ``currency``.
    """
    of_currency = sorted((rate for rate in rates if rate.currency == currency), key=lambda rate: rate.on)
    known = [rate for rate in of_currency if rate.on <= day]
    return known[-1] if known else next(iter(of_currency), None)


def age_words(currency: str, rate: DayRate, day: date) -> str:
    """The rate with its age on ``day`` as text, and a warning if it is stale."""
    days = (day - rate.on).days
    words = f"1 {currency} = {rate.usd_per_unit} USD of {rate.on}"
    if days <= STALE_AFTER_DAYS:
        return words
    return f"{words}, {days} days old: set BROKER_EXCHANGE_RATES to a file with newer rates"
