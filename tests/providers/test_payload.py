"""From bytes to rows, and what is said of rows that are left out."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType

import pytest

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Tier
from broker.domain.market.sku import Sku
from broker.provider_facts import ProviderFacts
from providers.payload import (
    RowRejected,
    canonical_gpu,
    collect,
    decode_json,
    gb_of_gib,
    join_batches,
    require_price,
    slug,
)

FACTS = ProviderFacts(
    silicon=MappingProxyType(
        {"A100 40GB": "A100-SXM-40GB", "A100 80GB": "A100-SXM-80GB", "H100": "H100-SXM-80GB"}
    ),
    nodes=MappingProxyType({}),
    countries=MappingProxyType({}),
)


def offer(offer_id: str) -> Offer:
    return Offer(
        offer_id=offer_id,
        provider="somebody",
        sku=Sku("s", "H100-SXM-80GB", 1, 80),
        region="r",
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=Decimal(1),
        observed_at=datetime(2026, 11, 21, tzinfo=UTC),
        source="test",
        native=NativePrice(Decimal(1), "USD", "hour"),
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[NaN]",
        b"[Infinity]",
        b"[" * 100_000,
        b"[1e400]",
        b"[" + b"9" * 5000 + b"]",
    ],
)
def test_what_is_no_json_is_unreadable(raw: bytes) -> None:
    with pytest.raises(PayloadUnreadable):
        decode_json("somebody", raw)


def test_decimals_are_exact() -> None:
    assert decode_json("somebody", b"[0.1, 2.690]") == [Decimal("0.1"), Decimal("2.690")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null"),
        (Decimal(0), "zero"),
        (Decimal("0.0000001"), "zero"),
        (Decimal(-1), "not a usable"),
        (Decimal("NaN"), "not a usable"),
        (Decimal("1e9"), "not a usable"),
    ],
)
def test_a_price_must_be_payable(value: Decimal | None, reason: str) -> None:
    with pytest.raises(RowRejected, match=reason):
        require_price(value)


@pytest.mark.parametrize(
    ("word", "memory_gb", "gpu"),
    [
        ("A100", 40.0, "A100-SXM-40GB"),
        ("A100", 79.6, "A100-SXM-80GB"),
        ("H100", None, "H100-SXM-80GB"),
        ("H100", 80.0, "H100-SXM-80GB"),
    ],
)
def test_a_word_and_its_memory_name_a_card(word: str, memory_gb: float | None, gpu: str) -> None:
    assert canonical_gpu(FACTS, word, memory_gb) == gpu


@pytest.mark.parametrize(("word", "memory_gb"), [("H100", 96.0), ("A100", 60.0), ("H9000", 80.0), ("", None)])
def test_a_card_that_is_not_known_is_rejected_by_name(word: str, memory_gb: float | None) -> None:
    with pytest.raises(RowRejected, match="unknown GPU"):
        canonical_gpu(FACTS, word, memory_gb)


def test_one_bad_row_does_not_take_the_others() -> None:
    def build(row: str) -> list[Offer | RejectedRow]:
        if row == "bad":
            raise RowRejected("because")
        return [offer(row)]

    batch = collect([("1", "a"), ("2", "bad"), ("3", "a")], build)
    assert [found.offer_id for found in batch.offers] == ["a"]
    assert batch.rejected == (RejectedRow("2", "because"), RejectedRow("3", "second row of offer a"))


def test_joining_keeps_the_first_and_names_the_second() -> None:
    one = collect([("1", "a")], lambda row: [offer(row)])
    joined = join_batches([one, one])
    assert len(joined.offers) == 1
    assert joined.rejected == (RejectedRow("a", "second row of offer a"),)


def test_names_become_parts_of_ids() -> None:
    assert slug("NVIDIA H100 80GB/HBM3") == "NVIDIA-H100-80GB-HBM3"


def test_gibibytes_are_not_gigabytes() -> None:
    assert (gb_of_gib(1800), gb_of_gib(None)) == (1932.7, None)


def test_half_a_sign_is_replaced_and_a_whole_one_kept() -> None:
    raw = b'{"a\\udc00": ["\\ud83d\\ude00", "\\ud800", 1.10, {"x": "\xed\xa0\x80"}]}'
    assert decode_json("somebody", raw) == {"a?": ["😀", "?", Decimal("1.10"), {"x": "?"}]}


@pytest.mark.parametrize("name", ["somebody/a b", "somebody/a\x00", "somebody/a\n", "somebody/\u2028"])
def test_an_id_that_cannot_be_written_down_is_rejected(name: str) -> None:
    batch = collect([("row", None)], lambda _: (offer(name),))
    assert batch == OfferBatch((), (RejectedRow("row", "the name has spaces or control characters"),))
