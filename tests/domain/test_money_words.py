"""Money to the cent, prices to four significant digits and never coarser than the cent."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.money import price_words, read_usd, usd_words


@pytest.mark.parametrize(
    ("usd", "told"),
    [("0", "$0.00"), ("-7.31", "-$7.31"), ("1234.565", "$1,234.56"), ("-0.004", "$0.00")],
)
def test_money(usd: str, told: str) -> None:
    assert usd_words(Decimal(usd)) == told


@pytest.mark.parametrize(
    ("usd", "told"),
    [
        ("6.840416666666667", "$6.84"),
        ("6.840417", "$6.84"),
        ("2.9061", "$2.906"),
        ("0.13", "$0.13"),
        ("0.023456", "$0.02346"),
        ("14.2376", "$14.24"),
        ("1055.5", "$1,055.50"),
        ("0", "$0.00"),
    ],
)
def test_prices(usd: str, told: str) -> None:
    assert price_words(Decimal(usd)) == told


@given(st.decimals(min_value="0.0001", max_value="100000", places=6))
def test_a_price_is_told_to_four_digits_or_to_the_cent(price: Decimal) -> None:
    told = price_words(price)
    off = abs(Decimal(told[1:].replace(",", "")) - price)
    assert off <= max(Decimal("0.005"), price * Decimal("0.0005"))
    assert len(told.partition(".")[2]) >= 2


@pytest.mark.parametrize(
    ("text", "usd"),
    [
        ("50", "50"), ("$50", "50"), (" $ 5,000.00 ", "5000.00"), ("5,000", "5000"), ("5000 USD", "5000"),
        ("250000", "250000"), ("1,250.5", "1250.5"),
        ("5k", None), ("", None), ("-5", None), ("1,5", None), ("1.000,50", None), ("10.005", None),
        ("5 EUR", None), ("nan", None), ("1e9", None), ("50,00", None),
    ],
)  # fmt: skip
def test_an_amount_is_read_as_people_write_it(text: str, usd: str | None) -> None:
    assert read_usd(text) == (None if usd is None else Decimal(usd))
