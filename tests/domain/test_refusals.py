"""What a refused order says of the next plan, by the offers that are left of a market."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.holding.refusals import HOLDS, after_refusals, refusal_note, without_capacity
from broker.domain.market.offer import ContractTerms, Offer
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)


def refused(
    offer: Offer, outcome: LaunchOutcome, *, asks: str | None = None, hours: tuple[int, int] | None = None
) -> LaunchAttempt:
    """An order of ``offer`` that was refused at noon; ``hours``: the window that was wanted, from noon on."""
    due_at, ends_at = (NOON + HOUR * hours[0], NOON + HOUR * hours[1]) if hours else (NOON, None)
    return LaunchAttempt(
        "rsv-1",
        offer.offer_id,
        offer.provider,
        offer.sku.name,
        offer.region,
        NOON,
        due_at,
        outcome,
        ends_at=ends_at,
        asks_usd_per_node_hour=None if asks is None else Decimal(asks),
    )


def left(offer: Offer, attempt: LaunchAttempt, at: datetime = NOON) -> Offer | None:
    return next(iter(after_refusals([offer], [attempt], at)), None)


def test_what_asked_more_costs_that_for_an_hour_and_then_what_its_list_says() -> None:
    offer = an_offer(price="10")
    attempt = refused(offer, LaunchOutcome.TOO_DEAR, asks="30")
    prices = [
        found.price_usd_per_node_hour
        for at in (NOON, NOON + HOLDS - timedelta(seconds=1), NOON + HOLDS)
        if (found := left(offer, attempt, at)) is not None
    ]
    assert prices == [30, 30, 10]


def test_a_list_that_asks_more_still_counts() -> None:
    offer = an_offer(price="40")
    assert left(offer, refused(offer, LaunchOutcome.TOO_DEAR, asks="30")) == offer


def test_other_offers_stay_as_they_are() -> None:
    other = an_offer("other")
    assert left(other, refused(an_offer("o-1"), LaunchOutcome.TOO_DEAR, asks="30")) == other


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 23))
def test_a_window_that_was_sold_out_is_not_offered_again(start: int, hours: int, at: int) -> None:
    offer = an_offer(window=slot_terms(NOON, 24))
    attempt = refused(offer, LaunchOutcome.NO_CAPACITY, hours=(start, start + hours))
    found = left(offer, attempt)
    free = [] if found is None or found.window is None else found.window.segments
    is_free = any(segment.window.contains(NOON + at * HOUR) for segment in free)
    assert is_free == (not start <= at < start + hours)


@pytest.mark.parametrize("outcome", [LaunchOutcome.NO_CAPACITY, LaunchOutcome.TOO_DEAR])
def test_a_listing_that_was_refused_is_left_out(outcome: LaunchOutcome) -> None:
    offer = an_offer(window=listed_terms(NOON + HOUR, 24), upfront="100")
    assert left(offer, refused(offer, outcome, asks="30", hours=(1, 25))) is None


def test_machines_by_the_hour_that_were_sold_out_stay() -> None:
    offer = an_offer()
    assert left(offer, refused(offer, LaunchOutcome.NO_CAPACITY)) == offer


def test_what_asked_more_without_a_price_is_left_out() -> None:
    offer = an_offer()
    assert left(offer, refused(offer, LaunchOutcome.TOO_DEAR)) is None


def test_a_contracts_price_is_no_matter_of_the_list() -> None:
    offer = replace(an_offer(price="8"), contract=ContractTerms("ours", Decimal(10)))
    assert left(offer, refused(offer, LaunchOutcome.TOO_DEAR, asks="30")) == offer


def test_a_note_names_three_offers_and_counts_the_rest() -> None:
    attempts = [refused(an_offer(f"o-{n}"), LaunchOutcome.NO_CAPACITY) for n in range(5)]
    assert refusal_note(attempts) == (
        "left out because the seller refused an order for lack of capacity: o-0 until 12:10, "
        "o-1 until 12:10, o-2 until 12:10 UTC and 2 more; each returns sooner if its price or stock changes"
    )
    assert refusal_note(()) == ""


def test_only_a_lack_of_capacity_that_still_counts_is_told() -> None:
    hourly = refused(an_offer(), LaunchOutcome.NO_CAPACITY)
    block = refused(an_offer("block"), LaunchOutcome.NO_CAPACITY, hours=(1, 25))
    other = refused(an_offer("other"), LaunchOutcome.REFUSED)
    every = (hourly, block, other)
    assert without_capacity(every, NOON + timedelta(minutes=9)) == (hourly, block)
    assert without_capacity(every, NOON + timedelta(minutes=10)) == (block,)
    assert without_capacity(every, NOON + HOLDS) == ()
