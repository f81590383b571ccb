"""Capacity Blocks and spot prices: XML read safely, fees spread exactly, searches bounded."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.catalogue import load_gpus
from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import CancelRule, Offer, OfferBatch, Tier, WindowKind
from broker.provider_facts import load_provider_facts
from providers.aws import SPEC
from providers.aws.blocks import BlockSearch, menu, most_calls, parse_blocks
from providers.aws.nodes import known_types, region_of, sku_of
from providers.aws.query import Node, form_body, next_token, parse_xml
from providers.aws.spot import parse_spot, spot_query
from providers.payload import RowRejected
from tests.depth import examples

AT = datetime(2026, 11, 21, tzinfo=UTC)
FIXTURES = Path(__file__).parents[2] / "fixtures/providers/aws"


def item(**change: object) -> str:
    fields = {
        "capacityBlockOfferingId": "cb-1",
        "instanceType": "p5.48xlarge",
        "availabilityZone": "us-east-2a",
        "instanceCount": "2",
        "startDate": "2026-12-01T11:30:00.000Z",
        "endDate": "2026-12-03T11:30:00.000Z",
        "upfrontFee": "4584.672000",
        "currencyCode": "USD",
        "tenancy": "default",
        **change,
    }
    return "<item>" + "".join(f"<{key}>{value}</{key}>" for key, value in fields.items()) + "</item>"


def answer(*items: str) -> Node:
    return parse_xml(
        '<DescribeCapacityBlockOfferingsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<capacityBlockOfferingSet>{''.join(items)}</capacityBlockOfferingSet>"
        "</DescribeCapacityBlockOfferingsResponse>"
    )


def parsed(*items: str) -> OfferBatch:
    return parse_blocks([answer(*items)], AT)


@pytest.mark.parametrize(
    ("count", "sold"),
    [(1, (1,)), (16, (1, 2, 4, 8, 16)), (24, (1, 2, 4, 8, 16, 24)), (64, (1, 2, 4, 8, 16, 32, 64))],
)
def test_a_block_is_sold_by_the_counts_of_the_menu_and_by_its_own(count: int, sold: tuple[int, ...]) -> None:
    (offer,) = parsed(item(instanceCount=str(count))).offers
    assert offer.window is not None
    assert offer.window.node_counts == sold


def test_a_block_is_a_listed_window() -> None:
    (offer,) = parsed(item()).offers
    terms = offer.window
    assert terms is not None
    assert (offer.tier, terms.kind, terms.cancel) == (Tier.WINDOW, WindowKind.LISTED, CancelRule.NEVER)
    assert (terms.anchor_utc, terms.step_hours, terms.durations_hours) == (time(11, 30), 24.0, (48.0,))
    assert terms.teardown_s == 1800
    assert [(s.start.isoformat(), s.hours, s.nodes) for s in terms.segments] == [
        ("2026-12-01T11:30:00+00:00", 48.0, 2)
    ]
    assert (offer.upfront_usd, offer.stock.nodes) == (Decimal("4584.672000"), 2)
    assert offer.price_usd_per_node_hour == Decimal("47.757")
    assert offer.reference["offering_id"] == "cb-1"


def test_the_largest_count_of_one_window_is_offered() -> None:
    batch = parsed(
        item(),
        item(capacityBlockOfferingId="cb-2", instanceCount="16", upfrontFee="36677.376"),
        item(capacityBlockOfferingId="cb-3", instanceCount="4", upfrontFee="9169.344"),
    )
    (offer,) = batch.offers
    assert (offer.stock.nodes, offer.reference["offering_id"]) == (16, "cb-2")


def test_the_id_is_of_the_window_and_not_of_the_offering() -> None:
    (one,), (other,) = parsed(item()).offers, parsed(item(capacityBlockOfferingId="cb-9")).offers
    assert one.offer_id == other.offer_id == "aws/block/us-east-2a/p5.48xlarge/20261201T1130Z/20261203T1130Z"


def test_a_block_that_starts_at_once_keeps_its_id_while_its_start_moves() -> None:
    ids = {
        offer.offer_id
        for minute in ("55", "58")
        for offer in parsed(item(startDate=f"2026-12-01T04:{minute}:00.000Z")).offers
    }
    assert ids == {"aws/block/us-east-2a/p5.48xlarge/now/20261203T1130Z"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"instanceType": "trn2.48xlarge"}, "unknown GPU instance type"),
        ({"upfrontFee": "0"}, "is not a fee"),
        ({"upfrontFee": "free"}, "is not a number"),
        ({"upfrontFee": "1e-9"}, "is zero"),
        ({"currencyCode": "EUR"}, "currency is EUR"),
        ({"instanceCount": "0"}, "not between 1 and 64"),
        ({"instanceCount": "65"}, "not between 1 and 64"),
        ({"instanceCount": "two"}, "not between 1 and 64"),
        ({"endDate": "2026-12-01T11:45:00Z"}, "nothing usable"),
        ({"startDate": "2026-12-01T11:30:00"}, "not a time with a zone"),
        ({"startDate": ""}, "startDate is missing"),
        ({"availabilityZone": "the moon"}, "not an Availability Zone"),
        ({"tenancy": "dedicated"}, "tenancy is dedicated"),
        ({"capacityBlockOfferingSegmentSet": "<item/><item/>"}, "several segments"),
    ],
)
def test_an_offering_that_cannot_be_bought_is_named(change: dict[str, str], reason: str) -> None:
    batch = parsed(item(**change))
    assert batch.offers == ()
    assert reason in batch.rejected[0].reason


def test_no_window_is_an_answer() -> None:
    assert parsed() == OfferBatch((), ())


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    count=st.integers(1, 64),
    hours=st.integers(1, 4000),
    cents=st.integers(10_000, 10**8),
)
def test_the_whole_window_costs_its_fee(count: int, hours: int, cents: int) -> None:
    fee = Decimal(cents) / 100
    end = datetime(2026, 12, 1, 11, 30, tzinfo=UTC) + timedelta(hours=hours)
    batch = parsed(item(instanceCount=count, endDate=end.isoformat(), upfrontFee=f"{fee:f}"))
    for offer in batch.offers:
        terms = offer.window
        assert terms is not None
        assert holding_cost_usd(offer, terms.segments) == fee
        spread = offer.price_usd_per_node_hour * count * hours
        assert abs(spread - fee) <= Decimal("0.0000005") * count * hours
    assert len(batch.offers) + len(batch.rejected) == 1


def test_the_menu_fits_into_a_poll() -> None:
    search = load_provider_facts("aws").search
    searches = menu(search, SPEC.options["regions"].split(","))
    assert 0 < len(searches) <= most_calls(search) <= 80
    assert len(set(searches)) == len(searches)
    for one in searches:
        assert sku_of(one.instance_type).fabric is not None or one.count == 1
        assert one.duration_hours % 24 == 0
        assert one.duration_hours <= 14 * 24 or one.duration_hours % 168 == 0
    assert menu(search, ["mars-1"]) == ()


def test_a_search_looks_eight_weeks_ahead() -> None:
    body = form_body("X", BlockSearch("us-east-2", "p5.48xlarge", 4, 48).whole_query(AT)).decode()
    assert "StartDateRange=2026-11-21T00%3A00%3A00Z" in body
    assert "EndDateRange=2027-01-18T00%3A00%3A00Z" in body


def test_configured_types_are_of_known_gpus() -> None:
    for name in known_types():
        sku = sku_of(name)
        assert sku.gpu in load_gpus()
        assert sku.vcpus
        assert sku.memory_gb
        assert sku.fabric is None or sku.gpus_per_node == 8


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-2a", "us-east-2"), ("us-east-1-dfw-2a", "us-east-1"), ("ap-southeast-2c", "ap-southeast-2")],
)
def test_the_region_of_a_zone(zone: str, region: str) -> None:
    assert region_of(zone) == region


def test_a_region_is_no_zone() -> None:
    with pytest.raises(RowRejected):
        region_of("us-east-2")


def spot_offers() -> dict[str, Offer]:
    pages = [parse_xml((FIXTURES / f"spot-us-east-{n}.xml").read_bytes()) for n in (1, 2)]
    return {offer.offer_id: offer for offer in parse_spot(pages, AT).offers}


def test_spot_is_one_offer_a_zone_and_the_newest_price_counts() -> None:
    offers = spot_offers()
    prices = {
        zone: str(offers[f"aws/spot/{zone}/p5.48xlarge"].price_usd_per_node_hour)
        for zone in ("us-east-2a", "us-east-2b", "us-east-2c")
    }
    told = {"us-east-2a": "11.259300", "us-east-2b": "11.566600", "us-east-2c": "11.996200"}
    assert prices == told, "0.005 of each is its public address"
    assert all(offer.interruptions_per_hour is None for offer in offers.values())


def test_spot_asks_for_the_present_of_every_known_type() -> None:
    query = spot_query(known_types(), AT)
    assert query["StartTime"] == query["EndTime"] == "2026-11-21T00:00:00Z"
    assert query["ProductDescription.1"] == "Linux/UNIX"
    assert f"InstanceType.{len(known_types())}" in query


@pytest.mark.parametrize("text", ["<a/>", "<a><nextToken/></a>", "<a><nextToken> </nextToken></a>"])
def test_a_missing_and_an_empty_token_end_the_pages(text: str) -> None:
    assert next_token(parse_xml(text)) is None


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><a>&c;</a>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>'


@pytest.mark.parametrize(
    "text", [BOMB, OUTSIDE, "", "<a>", "not xml", '<?xml version="1.0" encoding="x"?><a/>']
)
def test_unsafe_or_broken_xml_is_unreadable(text: str) -> None:
    with pytest.raises(PayloadUnreadable):
        parse_xml(text.encode())


_TEXTS = st.text(max_size=10).map(lambda text: "".join(c for c in text if c.isalnum() or c in " .:-+"))


@settings(max_examples=examples(30), derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["instanceType", "availabilityZone", "instanceCount", "startDate", "endDate", "upfrontFee"]
        ),
        _TEXTS
        | st.sampled_from(["1e999", "9" * 40, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "NaN"]),
        min_size=1,
    )
)
def test_whatever_an_item_says_it_is_an_offer_or_named(change: dict[str, str]) -> None:
    batch = parsed(item(**change))
    assert len(batch.offers) + len(batch.rejected) == 1
