"""The overlay file: read in full, or every wrong cell named."""

from __future__ import annotations

from decimal import Decimal

import pytest

from api.schemas.market.contract_prices import read_contract_prices
from broker.domain.basics.errors import InputError
from broker.domain.market.offer import Tier

HEADER = "contract,provider,sku,region,tier,from,to,discount_percent,price_usd_per_node_hour\n"


def test_a_file_is_read() -> None:
    first, second = read_contract_prices(
        HEADER
        + "MSA-1,aws,p5.*,us-*,on_demand,2026-01-01,2026-12-31,22.5,\n"
        + "Q-7,lambda,,,,2026-06-01,2027-05-31,,19.92\n",
        "c.csv",
    )
    assert (first.discount_share, first.tier, first.sku) == (Decimal("0.225"), Tier.ON_DEMAND, "p5.*")
    assert (second.usd_per_node_hour, second.tier, second.region) == (Decimal("19.92"), None, "*")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A,aws,,,sometimes,2026-01-01,2026-12-31,10,", "line 2.*sometimes"),
        ("A,aws,,,,2026-01-01,soon,10,", "soon"),
        ("A,aws,,,,2026-01-01,2026-12-31,,", "expected either discount_percent or price"),
        ("A,aws,,,,2026-01-01,2026-12-31,10,5", "either discount_percent or price"),
        ("A,aws,,,,2026-12-31,2026-01-01,10,", "on or after"),
        ("A,aws,,,,2026-01-01,2026-12-31,120,", "120"),
        ("A,aws,,,,2026-01-01,2026-12-31,abc,", "column 8.*expected an amount"),
        ("A,aws,,,,2026-01-01,2026-12-31,٣,", "٣"),
        (",aws,,,,2026-01-01,2026-12-31,10,", "contract"),
    ],
)
def test_a_wrong_cell_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_contract_prices(HEADER + line + "\n", "c.csv")


def test_a_file_of_something_else_is_named() -> None:
    with pytest.raises(InputError, match="a header with contract"):
        read_contract_prices("a,b\n1,2\n", "c.csv")


def test_an_unquoted_thousand_is_no_price_of_one() -> None:
    """``1,250.00`` without quotes is two cells: the price was read as 1 USD."""
    text = (
        "contract,provider,sku,region,tier,from,to,discount_percent,price_usd_per_node_hour\n"
        "k,lambda,gpu_8x_h100_sxm5,,on_demand,2026-11-01,2027-11-01,,1,250.00\n"
    )
    with pytest.raises(InputError, match=r"beyond the header.*250"):
        read_contract_prices(text, "contract.csv")
