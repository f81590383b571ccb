"""Dated exchange rates from a table; none is fetched while a bill is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of ``currency`` (ISO 4217) was worth ``usd_per_unit`` on the day ``on``."""

    currency: str
    usd_per_unit: Decimal
    on: date
    source: str

    def __str__(self) -> str:
        return f"1 {self.currency} = {self.usd_per_unit} USD of {self.on}"


def rate_on(rates: Iterable[ExchangeRate], currency: str, day: date) -> ExchangeRate | None:
    """The latest rate of ``currency`` dated ``day`` or earlier; if all are later, the earliest rate.

    None if there is no rate of ``currency``.
    """
    of_currency = sorted((rate for rate in rates if rate.currency == currency), key=lambda rate: rate.on)
    known = [rate for rate in of_currency if rate.on <= day]
    return known[-1] if known else next(iter(of_currency), None)
