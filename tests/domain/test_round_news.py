"""What a round tells that was not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Stock, StockLevel
from broker.domain.market.price_gate import Doubt, Quarantined, quarantine_news
from broker.domain.market.round_news import OfferMark, fingerprint, round_news
from broker.store.documents import from_document, to_document
from tests import strategies
from tests.store.examples import HOUR, NOON, offer


@given(strategies.offers, st.integers(0, 10**6))
def test_being_seen_again_says_nothing_new_and_a_store_keeps_the_fingerprint(
    one: Offer, later_s: int
) -> None:
    seen_again_at = NOON + timedelta(seconds=later_s)
    now, later = replace(one, observed_at=NOON), replace(one, observed_at=seen_again_at)
    assert fingerprint(now, NOON) == fingerprint(later, seen_again_at)
    assert fingerprint(from_document(Offer, to_document(now)), NOON) == fingerprint(now, NOON)


@given(strategies.offers, strategies.offers)
def test_only_equal_offers_have_one_fingerprint(one: Offer, other: Offer) -> None:
    assert (fingerprint(one, NOON) == fingerprint(other, NOON)) == (_written(one) == _written(other))


def _written(offer: Offer) -> object:
    return msgspec.to_builtins(offer, order="deterministic")


def test_a_word_of_the_sellers_own_on_the_time_is_news() -> None:
    assert fingerprint(offer(observed_at=NOON), NOON + HOUR) != fingerprint(offer(), NOON)


def test_news_are_the_new_the_changed_and_the_gone() -> None:
    before = [offer("a"), offer("b"), offer("c")]
    marks = {one.offer_id: OfferMark(fingerprint(one, NOON), Decimal(24)) for one in before}
    scarce = replace(offer("b"), stock=Stock(StockLevel.LOW, 1))
    news = round_news(marks, [offer("a"), scarce, offer("d"), offer("d", "9")], NOON)
    assert news.offers == (scarce, offer("d", "9"))
    assert news.gone == ("c",)
    assert news.touched == ("b", "d", "c")


def test_quarantine_is_written_where_it_says_something_else() -> None:
    entry = Quarantined(offer("a"), Doubt.JUMP, "0.1 times", NOON)
    seen_again = replace(entry, offer=offer("a", observed_at=NOON + HOUR))
    cheaper = replace(entry, offer=offer("a", "1"))
    assert quarantine_news({"a": entry}, [seen_again]) == ((), ())
    assert quarantine_news({"a": entry}, [cheaper]) == ((cheaper,), ())
    assert quarantine_news({"a": entry}, []) == ((), ("a",))
