"""What keeping costs and leaving saves: differences of bills, sunk money on neither side."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd, left_usd, overlap_usd, stay_usd
from broker.domain.market.offer import CancelRule, Offer
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)


def held(offer: Offer, hours: float = 48, start: datetime = NOON, *, is_bought: bool = True) -> HeldCapacity:
    return HeldCapacity("chat", offer, 1, start, start + hours * HOUR, is_bought)


def test_on_demand_costs_its_rest_and_saves_all_of_it() -> None:
    one, now = held(an_offer(price="10")), NOON + 4 * HOUR
    assert [kept_usd(one), left_usd(one, now), stay_usd(one, now, None)] == [480, 40, 440]
    assert overlap_usd(one, now, now + timedelta(minutes=10)) == 10, "an hour begun is owed whole"


def test_a_minimum_term_that_is_owed_costs_nothing_to_keep() -> None:
    one = held(an_offer(price="10", min_hours=48.0))
    assert stay_usd(one, NOON + 4 * HOUR, None) == 0
    longer = held(an_offer(price="10", min_hours=24.0))
    assert stay_usd(longer, NOON + 4 * HOUR, None) == 240


def test_an_upfront_fee_is_sunk() -> None:
    one = held(an_offer(price="10", upfront="500"))
    assert stay_usd(one, NOON + 8 * HOUR, None) == 400


@pytest.mark.parametrize(
    ("cancel", "before_start", "after_start"),
    [
        (CancelRule.NEVER, 0, 0),
        (CancelRule.RESELL, 0, 0),
        (CancelRule.UNTIL, 200, 0),
        (CancelRule.ANY_TIME, 200, 150),
    ],
)
def test_a_window_is_worth_leaving_by_its_sellers_terms(
    cancel: CancelRule, before_start: int, after_start: int
) -> None:
    start = NOON + 10 * HOUR
    one = held(an_offer(price="10", window=slot_terms(NOON, 96, cancel=cancel)), 20, start=start)
    assert stay_usd(one, NOON, None) == before_start
    assert stay_usd(one, start + 5 * HOUR, None) == after_start


def test_a_buyer_pays_for_a_share_of_the_rest() -> None:
    one = held(an_offer(price="10", window=listed_terms(NOON, 20, 1, CancelRule.RESELL)), 20)
    assert left_usd(one, NOON + 5 * HOUR, Decimal("0.5")) == 200 - 75


def test_what_is_not_bought_costs_todays_price_or_cannot_be_had() -> None:
    one = held(an_offer("a", "10"), is_bought=False)
    assert left_usd(one, NOON) == 0
    assert stay_usd(one, NOON, an_offer("a", "12")) == 576
    assert stay_usd(one, NOON, None) is None


@given(
    st.sampled_from(list(CancelRule)),
    st.booleans(),
    st.floats(0, 40),
    st.floats(0, 72),
    st.floats(0, 72),
)
def test_leaving_later_never_costs_less_and_never_more_than_keeping(
    cancel: CancelRule, in_a_window: bool, least: float, first: float, second: float
) -> None:
    window = slot_terms(NOON, 96, cancel=cancel) if in_a_window else None
    one = held(an_offer(price="7.3", window=window, min_hours=least), 40)
    early, late = sorted((first, second))
    assert left_usd(one, NOON + early * HOUR) <= left_usd(one, NOON + late * HOUR) <= kept_usd(one)
