"""What is billed in euros: the invoice's cents in FOCUS, and USD at the rate of each day."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusVersion, focus_columns
from broker.domain.focus.corrections import costs_of, open_rows
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.exchange import DayRate, Exchange
from broker.domain.market.offer import NativePrice, Offer
from broker.domain.spend.charging import Movement, owed_usd, reservation_charges
from tests.fakes.examples import an_offer
from tests.focus.examples import written

HOUR = timedelta(hours=1)
BEGIN, DECEMBER = datetime(2026, 11, 29, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
EUROS = Decimal("0.7875")
OLD = DayRate(BEGIN.date(), date(2026, 11, 27), Decimal("1.10"))
NEW = DayRate(DECEMBER.date(), date(2026, 11, 30), Decimal("1.20"))


def in_euros(*rates: DayRate, billed: bool = True, **changes: object) -> Offer:
    """EUR 0.7875 a node-hour, of eight GPUs, at the first of ``rates``."""
    offer = an_offer("eu", str(EUROS * rates[0].usd_per_unit), increment_s=3600)
    exchange = Exchange(rates, EUROS if billed else None)
    return replace(offer, native=NativePrice(EUROS, "EUR", "hour", exchange), **changes)  # type: ignore[arg-type]


def a_lease(offer: Offer) -> Reservation:
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=offer,
        nodes=1,
        start=BEGIN,
        end=None,
        units=(Unit(0, "tag", 1, UnitState.HELD, "i-1", BEGIN),),
        created_at=BEGIN,
    )


def usd_by_month(
    row: Reservation, now: datetime, until: datetime | None = None
) -> dict[tuple[str, int], Decimal]:
    found: dict[tuple[str, int], Decimal] = {}
    for charge in reservation_charges([row], {}, now, until=until):
        key = charge.basis.value, charge.window.start.month
        found[key] = found.get(key, Decimal(0)) + charge.usd
    return found


def test_each_day_counts_at_its_rate_and_what_is_to_come_at_the_newest() -> None:
    """48 h of November are EUR 37.80 = $41.58, 24 h of December EUR 18.90 = $22.68, as are those expected."""
    now = DECEMBER + 24 * HOUR
    moved, before = a_lease(in_euros(OLD, NEW)), a_lease(in_euros(OLD))
    november = {("actual", 11): Decimal("41.58")}
    assert usd_by_month(before, DECEMBER) == usd_by_month(moved, DECEMBER) == november
    told = usd_by_month(moved, now, until=now + 48 * HOUR)
    assert told == {**november, ("actual", 12): Decimal("22.68"), ("projected", 12): Decimal("45.36")}
    assert owed_usd([moved], now) == Decimal("64.26")
    gone = replace(moved.units[0], state=UnitState.GONE, gone_at=now)
    ended = replace(moved, state=ReservationState.RELEASED, released_at=now, units=(gone,))
    assert owed_usd([ended], now + 9 * HOUR) == Decimal("64.26")
    for at in (now + HOUR / 2, now + 7 * HOUR):
        parts = [*reservation_charges([moved], {}, now, Movement.STEADY, until=at + 50 * HOUR)]
        parts += reservation_charges([moved], {}, at, Movement.MOVING, until=at + 50 * HOUR)
        every = reservation_charges([moved], {}, at, until=at + 50 * HOUR)
        assert sum(charge.usd for charge in parts) == sum(charge.usd for charge in every)


def test_a_block_that_is_billed_at_once_keeps_the_rate_of_its_first_day() -> None:
    """A month of 730 h from 29 November on is EUR 574.875, at 1.10 $632.3625, whatever December's rate is."""
    row = a_lease(in_euros(OLD, NEW, billing_increment_s=730 * 3600))
    assert owed_usd([row], DECEMBER + 24 * HOUR) == Decimal("632.36")
    second = BEGIN + 731 * HOUR
    assert owed_usd([row], second) == Decimal("632.3625") + Decimal("689.85") - Decimal("0.0025")


@pytest.mark.parametrize("version", list(FocusVersion))
def test_focus_rows_have_the_currency_of_the_invoice(version: FocusVersion) -> None:
    now, row = DECEMBER + 24 * HOUR, a_lease(in_euros(OLD, NEW))
    rows = list(focus_rows([row], now, "install"))
    assert {(r["BillingCurrency"], r["PricingCurrency"]) for r in rows} == {("EUR", "EUR")}
    for month, euros, usd in ((11, "37.80", "41.58"), (12, "18.90", "22.68")):
        mine = [r for r in rows if r["BillingPeriodStart"].month == month]  # type: ignore[union-attr]
        for name, amount in (("BilledCost", euros), ("EffectiveCost", euros), ("x_BilledCostUsd", usd)):
            assert sum(r[name] for r in mine) == Decimal(amount), name  # type: ignore[misc]
        rate = OLD if month == 11 else NEW
        assert {r["x_ExchangeRate"] for r in mine} == {rate.usd_per_unit}
    unit_prices = {(r["ListUnitPrice"], r["PricingCurrencyListUnitPrice"]) for r in rows}
    assert unit_prices == {((EUROS / 8).quantize(Decimal("1e-12")),) * 2}
    assert sum(costs_of(r)[0] for r in rows) == owed_usd([row], now)
    columns = focus_columns(version)
    assert list(map(str, check_focus(columns, written(rows, columns), version))) == []


def test_what_is_priced_in_euros_and_invoiced_in_dollars_says_both() -> None:
    row = a_lease(in_euros(OLD, NEW, billed=False))
    rows = list(focus_rows([row], BEGIN + 2 * HOUR, "install"))
    assert owed_usd([row], DECEMBER + 24 * HOUR) == Decimal("62.37"), "72 h at the price in dollars"
    (first, _) = rows
    assert (first["BillingCurrency"], first["PricingCurrency"]) == ("USD", "EUR")
    assert first["BilledCost"] == first["x_BilledCostUsd"] == Decimal("0.86")
    assert first["PricingCurrencyListUnitPrice"] == (EUROS / 8).quantize(Decimal("1e-12"))
    assert first["PricingCurrencyEffectiveCost"] == (Decimal("0.86") / Decimal("1.10")).quantize(
        Decimal("1e-12")
    )
    columns = focus_columns(FocusVersion.V1_2)
    assert list(map(str, check_focus(columns, written(rows, columns)))) == []


def test_a_correction_is_in_the_currency_of_the_invoice_at_the_rate_of_its_day() -> None:
    """November was closed with $1.20 too little."""
    row, now = a_lease(in_euros(OLD, NEW)), DECEMBER + HOUR
    (correction, *_) = [
        r for r in open_rows([row], now, "install", DECEMBER, {"r-1": (4038, 4038)}) if r.get("ChargeClass")
    ]
    assert (correction["BillingCurrency"], correction["BilledCost"]) == ("EUR", Decimal("1.00"))
    assert costs_of(correction) == (Decimal("1.20"), Decimal("1.20"))
