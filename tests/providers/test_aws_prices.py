"""The bulk price list: traps, duplicates, and a memory bound."""

from __future__ import annotations

import contextlib
import csv
import io
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import Tier
from providers.aws.prices import COLUMNS, PriceListReader, parse_price_list
from tests.depth import examples

AT = datetime(2026, 11, 21, tzinfo=UTC)
FIXTURE = Path(__file__).parents[2] / "fixtures/providers/aws/index-us-east-1.csv"
HEADER = [*COLUMNS, "GPU", "EffectiveDate", "PriceDescription"]
GOOD = {
    "SKU": "AAAA1111",
    "TermType": "OnDemand",
    "Unit": "Hrs",
    "PricePerUnit": "55.0400000000",
    "Currency": "USD",
    "Instance Type": "p5.48xlarge",
    "Tenancy": "Shared",
    "Operating System": "Linux",
    "Pre Installed S/W": "NA",
    "CapacityStatus": "Used",
    "MarketOption": "OnDemand",
    "Region Code": "us-east-1",
    "GPU": "8",
    "EffectiveDate": "2026-07-01",
}


def line(row: dict[str, str]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerow([row.get(column, "") for column in HEADER])
    return out.getvalue()


def lines(*rows: dict[str, str]) -> list[str]:
    metadata = [f'"{name}","x"\n' for name in ("FormatVersion", "Disclaimer", "Publication Date", "Version")]
    return [
        *metadata,
        '"OfferCode","AmazonEC2"\n',
        ",".join(f'"{name}"' for name in HEADER),
        *map(line, rows),
    ]


def test_a_row_becomes_an_offer() -> None:
    (offer,) = parse_price_list(lines(GOOD), AT, "us-east-1").offers
    assert offer.price_usd_per_node_hour == Decimal("55.04")
    assert (offer.tier, offer.zone, offer.billing_increment_s) == (Tier.ON_DEMAND, None, 1)
    assert round(offer.min_hours * 3600) == 60


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"MarketOption": "CapacityBlock", "PricePerUnit": "0.0000000000"}, "market option 'CapacityBlock'"),
        ({"PricePerUnit": "0.0000000000"}, "price is zero"),
        ({"PricePerUnit": "-1"}, "not a usable amount"),
        ({"PricePerUnit": "NaN"}, "not a usable amount"),
        ({"PricePerUnit": "9e9"}, "not a usable amount"),
        ({"PricePerUnit": ""}, "is not a number"),
        ({"Currency": "CNY"}, "currency is CNY"),
        ({"Instance Type": "p99.48xlarge"}, "unknown GPU instance type 'p99.48xlarge'"),
        ({"Region Code": "us-east-1-atl-2"}, "region 'us-east-1-atl-2' in the list of us-east-1"),
    ],
)
def test_a_gpu_row_without_a_usable_price_is_named(change: dict[str, str], reason: str) -> None:
    batch = parse_price_list(lines({**GOOD, **change}), AT, "us-east-1")
    assert batch.offers == ()
    (row,) = batch.rejected
    assert reason in row.reason
    assert "AAAA1111" in row.row


@pytest.mark.parametrize(
    "change",
    [
        {"TermType": "Reserved"},
        {"Tenancy": "Dedicated"},
        {"Operating System": "Windows"},
        {"Pre Installed S/W": "SQL Std"},
        {"CapacityStatus": "UnusedCapacityReservation"},
        {"Unit": "Quantity"},
        {"Instance Type": "m5.large", "GPU": ""},
        {"Instance Type": "m5.large", "GPU": "NA"},
    ],
)
def test_rows_of_other_things_are_counted_once(change: dict[str, str]) -> None:
    other = {**GOOD, **change}
    batch = parse_price_list(lines(other, other, GOOD), AT, "us-east-1")
    assert len(batch.offers) == 1
    (row,) = batch.rejected
    assert row.row == "us-east-1: 2 rows"


def test_one_price_twice_is_one_offer() -> None:
    batch = parse_price_list(lines(GOOD, {**GOOD, "SKU": "B"}), AT)
    assert (len(batch.offers), batch.rejected) == (1, ())


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_prices_the_newest_stays(newest_first: bool) -> None:
    rows = [{**GOOD, "PricePerUnit": "44", "EffectiveDate": "2026-10-01"}, GOOD]
    batch = parse_price_list(lines(*(rows if newest_first else rows[::-1])), AT)
    assert [offer.price_usd_per_node_hour for offer in batch.offers] == [Decimal(44)]
    assert "second price" in batch.rejected[0].reason


@pytest.mark.parametrize("text", ["", "<html>\n</html>", "SKU,TermType\n", "x\n" * 30])
def test_another_file_is_unreadable(text: str) -> None:
    with pytest.raises(PayloadUnreadable):
        parse_price_list(text.splitlines(), AT)


def test_real_prices_of_the_fixture() -> None:
    batch = parse_price_list(FIXTURE.read_text().splitlines(), AT, "us-east-1")
    prices = {offer.sku.name: offer.price_usd_per_node_hour for offer in batch.offers}
    assert prices["p4d.24xlarge"] == Decimal("21.957642")
    assert prices["p6-b200.48xlarge"] == Decimal("113.9328")
    assert "p5e.48xlarge" not in prices


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(HEADER), st.text(max_size=12) | st.sampled_from(["1e400", "0", "-0", "1e-9"])
    )
)
def test_whatever_stands_in_a_row_it_is_an_offer_or_named(change: dict[str, str]) -> None:
    batch = parse_price_list(lines({**GOOD, **change}), AT)
    assert len(batch.offers) + len(batch.rejected) == 1
    assert all(offer.price_usd_per_node_hour > 0 for offer in batch.offers)


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=30))
def test_any_lines_are_read_or_refused(anything: list[str]) -> None:
    reader = PriceListReader("us-east-1")
    with contextlib.suppress(PayloadUnreadable):
        for text in anything:
            reader.feed(text)
        assert reader.batch(AT).offers == ()


def fifty_megabytes() -> Iterator[str]:
    yield from lines()
    wide = {**GOOD, "PriceDescription": "a row of the real list has about 80 columns " * 20}
    reserved = line({**wide, "TermType": "Reserved", "Instance Type": "m5.large", "GPU": ""})
    other = line({**wide, "Instance Type": "m5.large", "GPU": ""})
    bad = line({**wide, "PricePerUnit": "x"})
    size = 0
    for number in range(10**9):
        if size > 50 * 1024 * 1024:
            break
        text = bad if number % 100 == 0 else other if number % 10 == 0 else reserved
        size += len(text)
        yield text
    yield line(GOOD)


def test_a_large_list_does_not_fill_memory() -> None:
    reader = PriceListReader("us-east-1")
    tracemalloc.start()
    try:
        for text in fifty_megabytes():
            reader.feed(text)
        batch = reader.batch(AT)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(batch.offers) == 1
    assert len(batch.rejected) < 1000
    assert peak_bytes < 4 * 1024 * 1024
