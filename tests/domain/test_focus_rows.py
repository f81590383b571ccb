"""Reservations as FOCUS rows: purchases, hours, used and unused, sums to the cent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Wish
from broker.domain.focus.columns import Cell, FocusVersion, focus_columns
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, ContractTerms, Offer, Tier
from broker.domain.spend.charging import owed_usd, reservation_charges
from broker.domain.spend.spend import ChargeBasis, CostView
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, slot_terms

MONTH_END = NOON.replace(month=12, day=1, hour=0)


def held(
    offer: Offer, hours: float | None = None, *, nodes: int = 1, gone: float | None = None, name: str = "r-1"
) -> Reservation:
    """Bought at noon, over ``hours`` from noon on (None: until released), gone after ``gone`` hours."""
    gone_at = None if gone is None else NOON + timedelta(hours=gone)
    state = UnitState.HELD if gone_at is None else UnitState.GONE
    unit = Unit(0, f"tag-{name}", nodes, state, f"i-{name}", NOON, gone_at)
    return Reservation(
        reservation_id=name,
        team="research",
        state=ReservationState.ACTIVE if gone_at is None else ReservationState.RELEASED,
        offer=offer,
        nodes=nodes,
        start=NOON,
        end=None if hours is None else NOON + timedelta(hours=hours),
        units=(unit,),
        created_at=NOON,
        workload="train",
        released_at=gone_at,
    )


def rows_of(*reservations: Reservation, after: float) -> list[dict[str, Cell]]:
    return list(focus_rows(reservations, NOON + timedelta(hours=after), "install"))


def total(rows: Sequence[dict[str, Cell]], column: str, **where: str) -> Decimal:
    chosen = (r for r in rows if all(r.get(name) == value for name, value in where.items()))
    return sum((Decimal(str(r[column])) for r in chosen if r.get(column) is not None), ZERO)


def test_on_demand_is_usage_by_the_hour_at_its_price() -> None:
    rows = rows_of(held(an_offer(price="16"), nodes=2), after=2.5)
    assert [r["ChargePeriodStart"] for r in rows] == [NOON + timedelta(hours=h) for h in range(3)]
    assert {(r["ChargeCategory"], r["PricingCategory"]) for r in rows} == {("Usage", "Standard")}
    assert [r["ConsumedQuantity"] for r in rows] == [16, 16, 8]
    assert {r["ContractedUnitPrice"] for r in rows} == {2}
    assert total(rows, "PricingQuantity") == 48, "the third hour is begun, so it is priced whole"
    assert total(rows, "BilledCost") == total(rows, "EffectiveCost") == Decimal(96)


def test_spot_is_dynamic_and_a_contract_shows_the_list_price_beside_its_own() -> None:
    cheap = replace(
        an_offer(price="16", increment_s=1), tier=Tier.SPOT, contract=ContractTerms("frame", Decimal(20))
    )
    (row,) = rows_of(held(cheap), after=1)
    assert row["PricingCategory"] == "Dynamic"
    assert [row["ListUnitPrice"], row["ContractedUnitPrice"]] == [Decimal("2.5"), Decimal(2)]
    assert [row["ListCost"], row["BilledCost"]] == [20, 16]


def test_a_window_is_one_purchase_and_committed_hours_up_to_now() -> None:
    window = an_offer(price="10", window=slot_terms(NOON, 48, cancel=CancelRule.NEVER))
    rows = rows_of(held(window, 10), after=4)
    purchase, hours = rows[0], rows[1:]
    assert [purchase["BilledCost"], purchase["EffectiveCost"]] == [100, 0]
    assert (purchase["ChargeFrequency"], purchase["PricingCategory"]) == ("One-Time", "Standard")
    assert len(hours) == 4
    assert {r["PricingCategory"] for r in hours} == {"Committed"}
    assert total(hours, "BilledCost") == 0
    assert total(hours, "EffectiveCost") == 40
    assert (
        {r["CommitmentDiscountId"] for r in rows} == {r["CapacityReservationId"] for r in rows} == {"i-r-1"}
    )


def test_hours_after_an_early_release_or_outside_the_wish_are_unused() -> None:
    window = an_offer(price="10", window=slot_terms(NOON, 48, cancel=CancelRule.NEVER))
    wanted = Wish(NOON + timedelta(hours=1.5), NOON + timedelta(hours=10))
    rows = rows_of(replace(held(window, 10, gone=6), requested=wanted), after=20)
    used = [r for r in rows if r.get("CommitmentDiscountStatus") == "Used"]
    unused = [r for r in rows if r.get("CommitmentDiscountStatus") == "Unused"]
    assert total(used, "CommitmentDiscountQuantity") == Decimal("36"), "4.5 h of 8 GPUs"
    assert total(unused, "CommitmentDiscountQuantity") == Decimal("44")
    assert {r["ConsumedQuantity"] for r in unused} == {None}
    assert {r["ResourceId"] for r in unused} == {"r-1"}
    assert total(rows, "EffectiveCost") == total(rows, "BilledCost") == 100


@pytest.mark.parametrize("tier", [Tier.ON_DEMAND, Tier.COMMITTED])
def test_a_minimum_term_is_one_purchase_that_is_billed_at_once(tier: Tier) -> None:
    offer = replace(an_offer(price="10", min_hours=240), tier=tier)
    begin = (MONTH_END - NOON) / timedelta(hours=1)
    for after, effective_usd in ((0.5, 5), (begin, 10 * begin), (240, 2400)):
        rows = rows_of(held(offer, 240), after=after)
        (bought,) = (r for r in rows if r["ChargeCategory"] == "Purchase")
        assert bought["BilledCost"] == 2400
        assert bought["ChargeFrequency"] == "One-Time"
        assert bought["ChargePeriodStart"] == bought["x_TermStart"] == NOON
        assert bought["ChargePeriodEnd"] == bought["x_TermEnd"] == NOON + timedelta(hours=240)
        assert bought["BillingPeriodStart"] == MONTH_END.replace(month=11)
        assert total(rows, "BilledCost") == 2400
        assert total(rows, "EffectiveCost") == Decimal(effective_usd)


def test_what_is_held_beyond_a_minimum_term_is_usage() -> None:
    offer = an_offer(price="10", min_hours=240)
    rows = rows_of(held(offer), after=242.5)
    usage = [r for r in rows if r["PricingCategory"] == "Standard" and r["ChargeCategory"] == "Usage"]
    assert [r["BilledCost"] for r in usage] == [10, 10, 10], "the third hour is begun"
    assert total(rows, "BilledCost") == total(rows, "EffectiveCost") == 2430


def test_a_month_after_the_other_is_a_purchase_each() -> None:
    offer = replace(an_offer(price="1", min_hours=730, increment_s=730 * 3600), tier=Tier.COMMITTED)
    rows = rows_of(held(offer), after=800)
    bought = [r for r in rows if r["ChargeCategory"] == "Purchase"]
    assert [r["BilledCost"] for r in bought] == [730, 730]
    assert [r["ChargePeriodStart"] for r in bought] == [NOON, NOON + timedelta(hours=730)]
    assert [r["ChargePeriodEnd"] for r in bought] == [NOON + timedelta(hours=h) for h in (730, 1460)]
    assert {r["ChargeFrequency"] for r in bought} == {"Recurring"}
    assert total(rows, "EffectiveCost") == 800


def test_a_minimum_term_left_early_is_owed_and_unused() -> None:
    offer = replace(an_offer(price="10", min_hours=240), tier=Tier.COMMITTED)
    rows = rows_of(held(offer, 300, gone=12), after=24)
    assert total(rows, "BilledCost") == Decimal(2400)
    assert total(rows, "EffectiveCost") == Decimal(240)
    assert total(rows, "CommitmentDiscountQuantity", CommitmentDiscountStatus="Unused") == 96
    assert total(rows_of(held(offer, 300, gone=12), after=500), "EffectiveCost") == Decimal(2400)


def test_a_seller_and_its_host_stand_apart() -> None:
    (row,) = rows_of(held(replace(an_offer(provider="shadeform"), seller="lambdalabs")), after=1)
    assert (row["ServiceProviderName"], row["HostProviderName"]) == ("shadeform", "lambdalabs")
    assert (row["ProviderName"], row["PublisherName"]) == ("shadeform", "lambdalabs")
    assert row["InvoiceIssuerName"] == "shadeform"


def test_no_row_crosses_an_hour_or_leaves_its_billing_period() -> None:
    offer = an_offer(price="10", increment_s=1)
    begin = (MONTH_END - NOON) / timedelta(hours=1)
    rows = rows_of(held(offer), after=begin + 1.25)
    for row in rows:
        assert row["ChargePeriodEnd"] - row["ChargePeriodStart"] <= timedelta(hours=1)  # type: ignore[operator]
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"]  # type: ignore[operator]
        assert row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]  # type: ignore[operator]
    assert {r["BillingPeriodStart"] for r in rows} == {MONTH_END.replace(month=11), MONTH_END}


def test_every_column_that_is_written_is_known() -> None:
    window = an_offer(price="10", window=slot_terms(NOON, 48))
    written = {name for row in rows_of(held(window, 10), after=4) for name in row}
    known = {name for version in FocusVersion for name in focus_columns(version)}
    assert written <= known


tiers = st.sampled_from([Tier.ON_DEMAND, Tier.SPOT, Tier.COMMITTED])


@given(
    price=st.decimals("0.01", "99", places=6),
    tier=tiers,
    windowed=st.booleans(),
    hours=st.floats(0.1, 900),
    gone=st.none() | st.floats(0.1, 900),
    after=st.floats(0, 1500),
    increment_s=st.sampled_from([1, 60, 3600]),
    min_hours=st.sampled_from([0.0, 1.0, 720.0]),
    rule=st.sampled_from(CancelRule),
    credit_usd=st.sampled_from([None, Decimal("12.345"), Decimal("-3.10")]),
)
def test_rows_sum_to_the_ledger(
    price: Decimal,
    tier: Tier,
    windowed: bool,
    hours: float,
    gone: float | None,
    after: float,
    increment_s: int,
    min_hours: float,
    rule: CancelRule,
    credit_usd: Decimal | None,
) -> None:
    terms = slot_terms(NOON, 1000, cancel=rule) if windowed else None
    offer = an_offer(price=str(price), window=terms, increment_s=increment_s, min_hours=min_hours)
    offer = offer if windowed else replace(offer, tier=tier)
    left = None if gone is None else min(gone, after) or None
    row = held(offer, hours, gone=left, nodes=3)
    if windowed and left is not None:
        row = replace(row, units=(replace(row.units[0], credit_usd=credit_usd),))
    now = NOON + timedelta(hours=after)
    rows = rows_of(row, after=after)
    assert total(rows, "BilledCost") == owed_usd([row], now)
    bought = [r for r in rows if r["ChargeCategory"] not in ("Credit", "Adjustment")]
    assert total(bought, "EffectiveCost") <= total(bought, "BilledCost")
    owed = [c for c in reservation_charges([row], {}, now) if c.basis is ChargeBasis.ACTUAL]
    by_day = [defaultdict[date, Decimal](Decimal) for _ in range(4)]
    for found in rows:
        day = found["ChargePeriodStart"].date()  # type: ignore[union-attr]
        by_day[0][day] += Decimal(str(found["BilledCost"]))
        by_day[1][day] += Decimal(str(found["EffectiveCost"]))
    for charge in owed:
        by_day[2][charge.at(CostView.CASH).date()] += charge.usd
        by_day[3][charge.at(CostView.AMORTIZED).date()] += charge.usd
    billed, effective, cash, amortized = ({k: v for k, v in one.items() if v} for one in by_day)
    assert billed == cash, "what is billed on a day"
    today = now.date()
    over = [{day: usd for day, usd in one.items() if day < today} for one in (effective, amortized)]
    assert over[0] == over[1], "what each day that is over has cost, amortized"
