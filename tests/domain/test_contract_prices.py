"""Contract prices: which apply, what they make of a price, and that the list price is never lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from broker.domain.market.contract_prices import ContractPrice, with_contract_prices
from broker.domain.market.offer import Offer, Tier
from tests.domain.test_billing import T0, offer

LISTED = replace(offer(offer_id="a"), price_usd_per_node_hour=Decimal("30"))


def contract(**changes: object) -> ContractPrice:
    base = ContractPrice(
        "MSA-1",
        LISTED.provider,
        "*",
        "*",
        None,
        date(2000, 1, 1),
        date(2100, 1, 1),
        discount_share=Decimal("0.2"),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def priced(*contracts: ContractPrice, of: Offer = LISTED) -> Offer:
    return with_contract_prices((of,), contracts, T0)[0]


def test_a_discount_comes_off_and_the_list_price_is_kept() -> None:
    found = priced(contract())
    assert found.price_usd_per_node_hour == Decimal("24.0")
    assert found.contract is not None
    assert (found.contract.name, found.contract.list_usd_per_node_hour) == ("MSA-1", Decimal(30))
    assert found.at_list_price() == LISTED


def test_a_fixed_price_stands_in_its_place_and_scales_what_is_paid_at_once() -> None:
    whole = replace(LISTED, upfront_usd=Decimal(3000))
    found = priced(contract(discount_share=None, usd_per_node_hour=Decimal(15)), of=whole)
    assert (found.price_usd_per_node_hour, found.upfront_usd) == (Decimal(15), Decimal(1500))
    assert found.at_list_price() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "other"},
        {"sku": "other-*"},
        {"region": "mars-*"},
        {"tier": Tier.WINDOW},
        {"until": date(2001, 1, 1)},
        {"since": date(2099, 1, 1)},
    ],
)
def test_a_contract_covers_only_what_it_names(change: dict[str, object]) -> None:
    assert priced(contract(**change)) == LISTED


def test_the_cheapest_of_several_contracts_counts() -> None:
    better = contract(contract="MSA-2", discount_share=Decimal("0.5"))
    found = priced(contract(), better)
    assert found.contract is not None
    assert (found.contract.name, found.price_usd_per_node_hour) == ("MSA-2", Decimal("15.0"))


def test_a_contract_has_one_kind_of_price() -> None:
    with pytest.raises(ValueError, match="either discount_share or usd_per_node_hour, not both"):
        contract(usd_per_node_hour=Decimal(1))
