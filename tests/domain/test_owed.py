"""What is owed at an instant is what a seller's tariff bills by then, and only of what it confirmed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.domain.basics.window import Wish
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, ContractTerms, Offer, Tier
from broker.domain.spend.charging import Movement, owed_usd, reservation_charges
from broker.domain.spend.release_estimate import ResaleShares, estimate_release
from broker.domain.spend.spend import ChargeBasis, Commitment, CostView
from providers.sandbox.ledger import Tariff
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms, waiting_terms

CENT = Decimal("0.01")
HOUR = timedelta(hours=1)


def a_lease(offer: Offer, hours: float | None, nodes: int = 1) -> Reservation:
    """Bought at noon, for ``hours`` (None: until released)."""
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=offer,
        nodes=nodes,
        start=NOON,
        end=None if hours is None else NOON + hours * HOUR,
        units=(Unit(0, "tag-1", nodes, UnitState.HELD, "i-1", NOON),),
        created_at=NOON,
        workload="train",
    )


def unbought(row: Reservation, state: UnitState = UnitState.PLANNED) -> Reservation:
    """The same before any seller has confirmed it."""
    unit = replace(row.units[0], state=state, reference=None, ordered_at=None)
    return replace(row, state=ReservationState.SCHEDULED, units=(unit,))


@example(Decimal("27.12"), Decimal(0), 60, 720.0, 30.0, 0.0, 1)
@example(Decimal("6.5"), Decimal(0), 3600, 0.0, 30.0, 1.0001, 1)
@given(
    price=st.decimals("0.05", "90", places=6),
    fee=st.decimals("0", "90", places=2),
    increment_s=st.sampled_from([1, 60, 600, 3600, 86_400, 730 * 3600]),
    min_hours=st.sampled_from([0.0, 0.25, 1.0, 24.0, 720.0]),
    until=st.none() | st.floats(0.1, 2000),
    looked=st.floats(0.001, 2000).map(lambda hours: round(hours, 4)),
    nodes=st.integers(1, 3),
)
def test_what_is_owed_is_what_the_tariff_bills(
    price: Decimal,
    fee: Decimal,
    increment_s: int,
    min_hours: float,
    until: float | None,
    looked: float,
    nodes: int,
) -> None:
    offer = an_offer(price=str(price), increment_s=increment_s, min_hours=min_hours, upfront=str(fee))
    tariff = Tariff(price, increment_s, round(min_hours * 3600), fee)
    now = NOON + looked * HOUR
    billed_usd = nodes * tariff.billed_usd(now - NOON)
    row = a_lease(offer, until, nodes)
    assert abs(owed_usd([row], now) - billed_usd) < CENT
    by_day: defaultdict[date, Decimal] = defaultdict(Decimal)
    for charge in reservation_charges([row], {}, now):
        if charge.basis is ChargeBasis.ACTUAL:
            by_day[charge.at(CostView.CASH).date()] += charge.usd
    billed_by_midnight = nodes * tariff.billed_usd(_midnight(NOON) + timedelta(days=1) - NOON)
    if looked > 12:
        assert abs(by_day[NOON.date()] - billed_by_midnight) < CENT, "each block on the day that it begins"


def _midnight(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("state", [UnitState.PLANNED, UnitState.ORDERING])
@pytest.mark.parametrize("tier", [Tier.ON_DEMAND, Tier.WINDOW])
def test_what_no_seller_confirmed_is_never_actual(state: UnitState, tier: Tier) -> None:
    offer = replace(an_offer(price="10"), tier=tier)
    if tier is Tier.WINDOW:
        offer = replace(offer, window=slot_terms(NOON, 100))
    row = unbought(a_lease(offer, 20), state)
    for hours, left_usd in ((-5, 200), (0, 200), (8, 120), (20, 0), (30, 0)):
        now = NOON + hours * HOUR
        charges = reservation_charges([row], {}, now)
        assert owed_usd([row], now) == 0
        assert sum(c.usd for c in charges) == left_usd, "what could not be bought costs nothing"
        assert all(c.window.start >= now for c in charges)
        assert list(focus_rows([row], now, "install")) == []


def test_a_lease_without_an_end_is_projected_to_the_end_of_the_period() -> None:
    row = a_lease(an_offer(price="2.906"), None, nodes=4)
    now, until = NOON + 5 * HOUR, _midnight(NOON) + timedelta(days=10)
    charges = reservation_charges([row], {}, now, until=until)
    coming = [c for c in charges if c.basis is ChargeBasis.PROJECTED]
    hours = Decimal((until - now) / HOUR)
    assert abs(sum(c.usd for c in coming) - 4 * hours * Decimal("2.906")) < CENT
    assert max(c.window.end for c in coming) == until
    assert {c.commitment for c in coming} == {Commitment.UNTIL_RELEASED}
    owed = [c for c in charges if c.basis is ChargeBasis.ACTUAL]
    assert {c.commitment for c in owed} == {Commitment.COMMITTED}
    assert sum(c.usd for c in owed) == owed_usd([row], now) == Decimal("58.12")


def test_a_lease_that_is_being_released_is_not_projected() -> None:
    row = a_lease(an_offer(price="2.906"), None)
    now = NOON + 5 * HOUR
    asked = replace(row.units[0], leaving_at=now)
    for leaving in (replace(row, units=(asked,)), replace(row, state=ReservationState.RELEASING)):
        charges = reservation_charges([leaving], {}, now, until=now + 100 * HOUR)
        assert {c.basis for c in charges} == {ChargeBasis.ACTUAL}


MONTH_USD, MONTH_H = Decimal("1230.00"), 730
DAY = timedelta(days=1)


def _cost(row: Reservation, now: datetime, until: datetime | None = None) -> dict[str, Decimal]:
    """What is spent and what is expected beyond that, the same in cash and amortized."""
    found: defaultdict[str, Decimal] = defaultdict(Decimal)
    for charge in reservation_charges([row], {}, now, until=until):
        found[charge.basis] += charge.usd
    return dict(found)


@pytest.mark.parametrize("days", [51, None])
def test_a_monthly_lease_that_was_released_costs_its_first_month_alone(days: int | None) -> None:
    """730 hours for $1,230.00, bought for 51 days or until released, and released after a day."""
    offer = an_offer(price=str(MONTH_USD / MONTH_H), increment_s=MONTH_H * 3600)
    row = a_lease(offer, None if days is None else days * 24)
    now = NOON + DAY
    if days is not None:
        assert sum(_cost(row, now).values()) == 2 * MONTH_USD
    asked = replace(
        row, state=ReservationState.RELEASING, units=(replace(row.units[0], leaving_at=now, seen_at=now),)
    )
    stays_usd = estimate_release([row], now, ResaleShares({}, Decimal(0))).stays_usd
    assert stays_usd == MONTH_USD
    # The last look is a month late: no seller's word has come since the release was asked.
    for looked in (now, now + 20 * DAY, now + 30 * DAY, NOON + MONTH_H * HOUR + 14 * HOUR):
        assert _cost(asked, looked, NOON + 90 * DAY) == {"actual": stays_usd}
    still_there = replace(asked.units[0], seen_at=NOON + 31 * DAY)
    runs_on = replace(asked, units=(still_there,))
    assert _cost(runs_on, NOON + 31 * DAY) == {"actual": 2 * MONTH_USD}, "the seller says that it runs on"
    refused = replace(asked, tries=2)
    assert _cost(refused, NOON + 31 * DAY) == {"actual": 2 * MONTH_USD}, "the release was refused"


def test_an_hourly_lease_with_an_end_is_not_expected_after_its_release_was_asked() -> None:
    row, now = a_lease(an_offer(price="10", increment_s=3600), 100), NOON + 4.5 * HOUR
    asked = replace(row, state=ReservationState.RELEASING, units=(replace(row.units[0], leaving_at=now),))
    assert _cost(row, now) == {"actual": 50, "projected": 950}
    assert _cost(asked, now) == {"actual": 50}
    assert _cost(asked, now + 2 * HOUR) == {"actual": 70}, "until the seller says that it is gone"
    lost = replace(unbought(row, UnitState.ORDERING), state=ReservationState.RELEASING)
    assert _cost(lost, now) == {}, "what no seller confirmed is not expected any more"


@pytest.mark.parametrize(
    ("cancel", "left_h", "stays"),
    [
        (CancelRule.UNTIL, -2, 0),
        (CancelRule.UNTIL, 2, 100),
        (CancelRule.ANY_TIME, -2, 0),
        (CancelRule.ANY_TIME, 2, 20),
        (CancelRule.RESELL, -2, 100),
        (CancelRule.NEVER, 2, 100),
    ],
)
def test_a_window_whose_release_was_asked_costs_what_its_terms_say(
    cancel: CancelRule, left_h: int, stays: int
) -> None:
    begin = NOON + 4 * HOUR
    offer = an_offer(price="10", window=slot_terms(begin, 10, cancel=cancel))
    row = replace(a_lease(offer, 14), start=begin)
    asked = replace(
        row,
        state=ReservationState.RELEASING,
        units=(replace(row.units[0], leaving_at=begin + left_h * HOUR),),
    )
    assert sum(_cost(asked, begin + 3 * HOUR).values()) == stays
    assert sum(_cost(replace(asked, tries=1), begin + 3 * HOUR).values()) == 100, "the release was refused"


def test_a_minimum_term_is_amortized_over_its_hours_and_billed_at_once() -> None:
    offer = an_offer(price="27.12", min_hours=720, increment_s=60)
    released = replace(
        a_lease(offer, 30),
        state=ReservationState.RELEASED,
        released_at=NOON + 30 * HOUR,
        units=(Unit(0, "tag-1", 1, UnitState.GONE, "i-1", NOON, NOON + 30 * HOUR),),
    )
    for row, after in ((a_lease(offer, 30), 0), (a_lease(offer, 30), 7), (released, 100)):
        charges = reservation_charges([row], {}, NOON + after * HOUR)
        assert sum(c.usd for c in charges) == owed_usd([row], NOON + after * HOUR) == Decimal("19526.40")
        assert {c.at(CostView.CASH) for c in charges} == {NOON}
        by_day = {c.at(CostView.AMORTIZED).date(): c.usd for c in charges}
        assert len(by_day) == 31
        assert by_day[NOON.date() + timedelta(days=20)] == 24 * Decimal("27.12")


@settings(max_examples=examples(200))
@example(Decimal(1), 730 * 3600, 0.0, "none", None, UnitState.HELD, 729.0, 0.9, 60)  # a month begins today
@given(
    price=st.decimals("0.05", "90", places=6),
    increment_s=st.sampled_from([1, 3600, 86_400, 730 * 3600]),
    min_hours=st.sampled_from([0.0, 50.0, 720.0]),
    terms=st.sampled_from(["none", "slot", "listed", "waits"]),
    until=st.none() | st.floats(0.1, 900),
    state=st.sampled_from([UnitState.PLANNED, UnitState.HELD]),
    looked=st.floats(0.001, 900).map(lambda hours: round(hours, 4)),
    share=st.floats(0, 1),
    horizon=st.integers(1, 60),
)
def test_what_is_steady_holds_until_midnight(
    price: Decimal,
    increment_s: int,
    min_hours: float,
    terms: str,
    until: float | None,
    state: UnitState,
    looked: float,
    share: float,
    horizon: int,
) -> None:
    offer = an_offer(price=str(price), increment_s=increment_s, min_hours=min_hours)
    kinds = {"slot": slot_terms(NOON, 1000), "listed": listed_terms(NOON, 900), "waits": waiting_terms()}
    if terms != "none":
        offer, until = replace(offer, tier=Tier.WINDOW, window=kinds[terms]), until or 48.0
    row = a_lease(offer, until, 3)
    row = row if state is UnitState.HELD else unbought(row)
    now = NOON + looked * HOUR
    then = now + share * (_midnight(now) + timedelta(days=1) - timedelta(microseconds=1) - now)
    end = _midnight(NOON) + timedelta(days=horizon)
    steady = reservation_charges([row], {}, now, Movement.STEADY, end)
    moving = reservation_charges([row], {}, then, Movement.MOVING, end)
    key = lambda c: (c.window.start, c.basis)  # noqa: E731
    whole = reservation_charges([row], {}, then, until=end)
    assert sorted((*steady, *moving), key=key) == sorted(whole, key=key)


def test_a_window_shows_the_price_that_was_paid() -> None:
    offer = an_offer(price="14.2376", window=slot_terms(NOON, 100))
    paid = replace(a_lease(offer, 10).units[0], paid_usd=Decimal("141.762"))
    wish = Wish(NOON, NOON + 5 * HOUR)
    row = replace(a_lease(offer, 10), units=(paid,), requested=wish)
    assert rate_usd_per_node_hour(row) == Decimal("14.1762")
    assert row.use is not None
    assert row.use.unwanted_usd == Decimal("70.88")
    assert sum(c.usd for c in reservation_charges([row], {}, NOON)) == Decimal("141.76")
    unknown = replace(row, units=(replace(paid, paid_usd=None),))
    assert rate_usd_per_node_hour(unknown) == Decimal("14.2376")
    frame = replace(row, offer=replace(offer, contract=ContractTerms("frame", Decimal(20))))
    assert rate_usd_per_node_hour(frame) == Decimal("14.2376"), "the bill is the seller's list"
