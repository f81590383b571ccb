"""Exchange rates: the newest that was known, and none invented."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from broker.catalogue import load_exchange_rates, use_exchange_rates
from broker.domain.basics.errors import InputError
from broker.domain.market.conversions import conversions
from broker.domain.market.exchange import DayRate, Exchange, ExchangeRate, age_words, rate_on
from broker.domain.market.offer import NativePrice
from providers.payload import RowRejected, source_with_rate, usd_of
from tests.fakes.examples import an_offer

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
    usd, exchange = usd_of(Decimal("2.73"), "eur", date(2026, 11, 21))
    assert usd == Decimal("2.73") * euro.usd_per_unit
    assert exchange == Exchange((DayRate(date(2026, 11, 21), euro.on, euro.usd_per_unit),))
    assert (
        source_with_rate("a list", "eur", exchange) == f"a list; 1 EUR = {euro.usd_per_unit} USD of {euro.on}"
    )
    billed = usd_of(Decimal("2.73"), "EUR", date(2026, 11, 21), is_billed=True)[1]
    assert billed is not None
    assert billed.billed_per_node_hour == Decimal("2.73")
    assert usd_of(Decimal(2), "USD", date(2026, 11, 21)) == (Decimal(2), None)


def test_a_row_in_an_unknown_currency_is_rejected() -> None:
    with pytest.raises(RowRejected, match="no exchange rate for 'CHF'"):
        usd_of(Decimal(1), "CHF", date(2026, 11, 21))


NOVEMBER_29, DECEMBER_1 = date(2026, 11, 29), date(2026, 12, 1)
EURO = Exchange((DayRate(NOVEMBER_29, date(2026, 11, 27), Decimal("1.10")),), Decimal("0.7875"))


def test_a_lease_takes_newer_rates_from_the_day_on_which_they_are_known() -> None:
    newer = ExchangeRate("EUR", Decimal("1.20"), date(2026, 11, 30), "a")
    found = EURO.with_rate(newer, DECEMBER_1)
    days = (date(2026, 1, 1), date(2026, 11, 30), DECEMBER_1)
    assert [str(found.rate_on(day).usd_per_unit) for day in days] == ["1.10", "1.10", "1.20"]
    assert found.with_rate(newer, DECEMBER_1 + timedelta(days=1)) == found
    older = ExchangeRate("EUR", Decimal("1.30"), date(2026, 11, 1), "a")
    assert found.with_rate(older, DECEMBER_1) == found, "an older rate replaces none"
    same_day = found.with_rate(ExchangeRate("EUR", Decimal("1.25"), DECEMBER_1, "a"), DECEMBER_1)
    assert [rate.usd_per_unit for rate in same_day.rates] == [Decimal("1.10"), Decimal("1.25")]


def test_the_age_of_a_rate_is_told_and_a_stale_one_warned_of() -> None:
    rate = EURO.rates[0]
    assert age_words("EUR", rate, DECEMBER_1) == "1 EUR = 1.10 USD of 2026-11-27"
    assert age_words("EUR", rate, date(2026, 12, 5)).endswith(
        "of 2026-11-27, 8 days old: set BROKER_EXCHANGE_RATES to a file with newer rates"
    )


def test_the_rates_of_converted_prices_are_told_by_currency() -> None:
    plain = an_offer("usd", "2")
    euros = replace(
        an_offer("eu", provider="ovh"), native=NativePrice(Decimal("0.7875"), "EUR", "hour", EURO)
    )
    others = [euros, replace(euros, offer_id="eu-2", provider="scaleway"), plain]
    assert conversions(others, DECEMBER_1) == (
        "prices of ovh, scaleway are converted at 1 EUR = 1.10 USD of 2026-11-27",
    )
    assert conversions([plain], DECEMBER_1) == ()


def test_a_file_of_rates_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    header = "currency,usd_per_unit,on,source\n"
    try:
        with pytest.raises(InputError, match=r"BROKER_EXCHANGE_RATES.*readable CSV file"):
            use_exchange_rates(file)
        file.write_text(header + "EUR,1.1,2026-11-27,ECB\n")
        use_exchange_rates(file)
        assert usd_of(Decimal(10), "EUR", DECEMBER_1)[0] == 11
        file.write_text(header + "EUR,1.1,2026-11-27,ECB\nEUR,1.25,2026-11-30,ECB\n")
        assert usd_of(Decimal(10), "EUR", DECEMBER_1)[0] == Decimal("12.5")
        file.write_text(header + "EUR,one,2026-11-27,ECB\n# a third line\n")
        assert usd_of(Decimal(10), "EUR", DECEMBER_1)[0] == Decimal("12.5"), "those of before are kept"
        with pytest.raises(InputError, match=r"line 2: found .*expected the columns currency \(EUR\)"):
            use_exchange_rates(file)
    finally:
        use_exchange_rates(None)
