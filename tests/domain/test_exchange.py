"""Exchange rates: the newest that was known, and none invented."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from broker.catalogue import load_exchange_rates
from broker.domain.market.exchange import ExchangeRate, rate_on
from providers.payload import RowRejected, usd_of

RATES = (
    ExchangeRate("EUR", Decimal("1.10"), date(2026, 3, 1), "a"),
    ExchangeRate("EUR", Decimal("1.20"), date(2026, 1, 1), "b"),
    ExchangeRate("GBP", Decimal("1.30"), date(2026, 1, 1), "c"),
)


@pytest.mark.parametrize(
    ("day", "rate"),
    [(date(2026, 2, 28), "1.20"), (date(2026, 3, 1), "1.10"), (date(2025, 1, 1), "1.20")],
)
def test_the_newest_rate_known_on_the_day_counts(day: date, rate: str) -> None:
    found = rate_on(RATES, "EUR", day)
    assert found is not None
    assert found.usd_per_unit == Decimal(rate)


def test_a_currency_without_a_rate_has_none() -> None:
    assert rate_on(RATES, "CHF", date(2026, 2, 1)) is None


def test_amounts_convert_exactly_and_name_their_rate() -> None:
    euro = rate_on(load_exchange_rates(), "EUR", date(2026, 11, 21))
    assert euro is not None
    usd, words = usd_of(Decimal("2.73"), "eur", date(2026, 11, 21))
    assert usd == Decimal("2.73") * euro.usd_per_unit
    assert str(euro.on) in words
    assert usd_of(Decimal(2), "USD", date(2026, 11, 21)) == (Decimal(2), "")


def test_a_row_in_an_unknown_currency_is_rejected() -> None:
    with pytest.raises(RowRejected, match="no exchange rate for 'CHF'"):
        usd_of(Decimal(1), "CHF", date(2026, 11, 21))
