"""Documents come back as they went in, and outlive versions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from broker.domain.market.offer import Offer, Stock, Tier
from broker.domain.planning.plan import Obstacle, Plan
from broker.store.documents import from_document, to_document, to_json
from tests import strategies
from tests.depth import examples


def through_json(value: object) -> Any:
    return json.loads(to_json(to_document(value)))


@given(strategies.offers)
def test_an_offer_comes_back_exactly(offer: Offer) -> None:
    back = from_document(Offer, through_json(offer))

    assert back == offer
    assert str(back.price_usd_per_node_hour) == str(offer.price_usd_per_node_hour)


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
    with pytest.raises(ValueError, match="length 2"):
        from_document(Counted, {"counts": [["stock"]]})


def test_keys_of_a_newer_version_are_skipped_and_missing_ones_take_their_default() -> None:
    assert from_document(Stock, {"nodes": 3, "colour": "blue"}) == Stock(nodes=3)


def test_a_missing_field_without_a_default_is_an_error() -> None:
    with pytest.raises(ValueError, match="offer_id"):
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
    with pytest.raises(ValueError, match="length 2"):
        from_document(Pairs, {"counts": [["spot"]]})


@dataclass(frozen=True)
class Times:
    at: datetime
    local: time
    day: date


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30)), None])
def test_times_come_back_with_their_zones_also_in_the_form_of_earlier_versions(zone: tzinfo | None) -> None:
    at = datetime(2026, 11, 28, 20, 5, 6, 7, zone)
    times = Times(at, at.time(), at.date())
    for document in (
        through_json(times),
        {"at": at.isoformat(), "local": "20:05:06.000007", "day": "2026-11-28"},
    ):
        back = from_document(Times, document)
        assert (back, back.at.utcoffset()) == (times, at.utcoffset())


@dataclass(frozen=True)
class Shares:
    share_of: Mapping[str, float]
    names: frozenset[str] = frozenset()


def test_read_only_mappings_numbers_of_numpy_and_sets_come_back_as_plain_ones() -> None:
    shares = Shares(MappingProxyType({"a": np.float64(0.5), "b": math.inf}), frozenset({"x", "y"}))
    assert from_document(Shares, through_json(shares)) == Shares({"a": 0.5, "b": math.inf}, shares.names)


def test_types_that_a_document_does_not_tell_apart_are_refused() -> None:
    with pytest.raises(TypeError, match="more than one dataclass"):
        from_document(Stock | Reading, {"value": 1})  # type: ignore[arg-type]


def test_values_that_documents_do_not_carry_are_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_document(1j)


def test_text_that_no_database_keeps_is_replaced() -> None:
    text = to_json({"a": "x\x00y", "b": ["\ud800z"], "c": "é\U0001f600", "\x00": 1})
    assert json.loads(text) == {"a": "x\ufffdy", "b": ["?z"], "c": "é\U0001f600", "\ufffd": 1}
