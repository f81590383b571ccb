"""Documents come back as they went in, and outlive versions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Stock, StockLevel, Tier
from broker.domain.planning.plan import Obstacle, Plan
from broker.store.documents import Reader, from_document, to_document
from tests import strategies
from tests.depth import examples
from tests.store.examples import offer


def through_json(value: object) -> Any:
    return json.loads(json.dumps(to_document(value), allow_nan=False))


@given(strategies.offers)
def test_an_offer_comes_back_exactly(offer: Offer) -> None:
    back = from_document(Offer, through_json(offer))

    assert back == offer
    assert str(back.price_usd_per_node_hour) == str(offer.price_usd_per_node_hour)


@settings(max_examples=examples(20))
@given(st.lists(st.lists(strategies.offers, max_size=6), max_size=3))
def test_many_offers_come_back_as_each_of_them_does(batches: list[list[Offer]]) -> None:
    reader = Reader(Offer)
    for offers in batches:
        documents = [through_json(offer) for offer in offers]
        found = reader.read(documents)
        assert list(map(repr, found)) == [repr(from_document(Offer, one)) for one in documents]


def test_equal_parts_of_many_documents_are_one_object_and_unequal_ones_are_not() -> None:
    first, second, other = (offer(stock=Stock(StockLevel.HIGH, nodes)) for nodes in (3, 3, 4))
    found = Reader(Offer).read([through_json(one) for one in (first, second, other)])
    assert found == [first, second, other]
    assert found[0].stock is found[1].stock
    assert found[0].sku is found[2].sku


def test_documents_of_an_older_and_a_newer_version_are_read_beside_others() -> None:
    whole = through_json(offer())
    older = {key: value for key, value in whole.items() if key not in {"place", "launch"}}
    assert Reader(Offer).read([whole, older, {**whole, "colour": "blue"}]) == [offer()] * 3


@dataclass(frozen=True)
class Counted:
    counts: tuple[tuple[Obstacle, int], ...]


@settings(max_examples=examples(10))
@given(strategies.plans)
def test_a_plan_comes_back_exactly(plan: Plan) -> None:
    assert from_document(Plan, through_json(plan)) == plan


def test_a_tuple_of_fixed_length_has_a_type_for_each_place() -> None:
    found = from_document(Counted, to_document(Counted(((Obstacle.STOCK, 3),))))
    assert found == Counted(((Obstacle.STOCK, 3),))
    with pytest.raises(ValueError, match="zip"):
        from_document(Counted, {"counts": [["stock"]]})


def test_keys_of_a_newer_version_are_skipped_and_missing_ones_take_their_default() -> None:
    assert from_document(Stock, {"nodes": 3, "colour": "blue"}) == Stock(nodes=3)


def test_a_missing_field_without_a_default_is_an_error() -> None:
    with pytest.raises(TypeError, match="offer_id"):
        from_document(Offer, {"provider": "aws"})


@dataclass(frozen=True)
class Reading:
    value: float
    usd: Decimal = Decimal("0.10")


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308, 5e-324, 0.1])
def test_floats_without_a_json_number_come_back(value: float) -> None:
    assert from_document(Reading, through_json(Reading(value))) == Reading(value)


def test_nan_comes_back() -> None:
    back = from_document(Reading, through_json(Reading(math.nan)))

    assert math.isnan(back.value)


def test_money_is_a_string() -> None:
    assert to_document(Reading(1.0)) == {"value": 1.0, "usd": "0.10"}


@dataclass(frozen=True)
class Pairs:
    counts: tuple[tuple[Tier, int], ...]


def test_pairs_of_different_kinds_come_back_and_short_ones_do_not() -> None:
    pairs = Pairs(((Tier.SPOT, 3), (Tier.WINDOW, 1)))

    assert from_document(Pairs, through_json(pairs)) == pairs
    with pytest.raises(ValueError, match="zip"):
        from_document(Pairs, {"counts": [["spot"]]})


@dataclass(frozen=True)
class Ambiguous:
    value: int | str


@pytest.mark.parametrize("kind", [Ambiguous, complex, list[int]])
def test_types_that_cannot_be_told_apart_are_refused(kind: type) -> None:
    with pytest.raises(TypeError, match=r"a document (cannot|does not say)"):
        from_document(kind, {"value": 1})


def test_values_that_documents_do_not_carry_are_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_document(1j)


def test_text_that_no_database_keeps_is_replaced() -> None:
    assert to_document({"a": "x\x00y", "b": "\ud800z", "c": "é"}) == {"a": "x\ufffdy", "b": "?z", "c": "é"}
