"""Cents of months: each month is rounded as its invoice is, later months go on from there, sums are exact."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.domain.basics.money import CENT, ZERO
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis
from providers.sandbox.ledger import Tariff
from tests.depth import examples
from tests.fakes.examples import an_offer

HOUR = timedelta(hours=1)
HALF_A_CENT = Decimal("0.00500001")
"""A half of a cent, and what two ways of dividing by 60 differ by."""
DECEMBER, JANUARY = datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def a_lease(price: str, start: datetime, increment_s: int = 3600, nodes: int = 1) -> Reservation:
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=an_offer(price=price, increment_s=increment_s),
        nodes=nodes,
        start=start,
        end=None,
        units=(Unit(0, "tag", nodes, UnitState.HELD, "i-1", start),),
        created_at=start,
    )


def left(row: Reservation, at: datetime) -> Reservation:
    gone = replace(row.units[0], state=UnitState.GONE, gone_at=at)
    return replace(row, state=ReservationState.RELEASED, units=(gone,), released_at=at)


def by_month(row: Reservation, now: datetime) -> dict[int, Decimal]:
    found: defaultdict[int, Decimal] = defaultdict(Decimal)
    for charge in reservation_charges([row], {}, now):
        if charge.basis is ChargeBasis.ACTUAL:
            found[charge.window.start.month] += charge.usd
    return dict(found)


def test_a_month_says_what_its_invoice_says() -> None:
    """Scaleway's November of 360 hours at $0.916886: $330.07896, which an invoice has as $330.08."""
    row = a_lease("0.916886", DECEMBER - 360 * HOUR)
    assert by_month(row, DECEMBER) == {11: Decimal("330.08")}
    for hours in (0, 1, 5, 100):
        assert by_month(row, DECEMBER + hours * HOUR)[11] == Decimal("330.08")
    # 504 hours in all are $462.110544: December is what is left of $462.11.
    ended = left(row, DECEMBER + 144 * HOUR)
    assert by_month(ended, JANUARY) == {11: Decimal("330.08"), 12: Decimal("132.03")}
    rows = list(focus_rows([ended], JANUARY, "install"))
    for month, usd in by_month(ended, JANUARY).items():
        billed = [r["BilledCost"] for r in rows if r["BillingPeriodStart"].month == month]  # type: ignore[union-attr]
        assert sum(billed, ZERO) == usd  # type: ignore[type-var]


@example(Decimal("0.916886"), 360.0, 144.0, 3600, 1)
@settings(max_examples=examples(60), deadline=None)
@given(
    price=st.decimals("0.05", "90", places=6),
    before=st.floats(0.1, 700).map(lambda hours: round(hours, 3)),
    after=st.floats(0.1, 700).map(lambda hours: round(hours, 3)),
    increment_s=st.sampled_from([1, 60, 3600]),
    nodes=st.integers(1, 3),
)
def test_months_are_rounded_and_sum_to_the_bill(
    price: Decimal, before: float, after: float, increment_s: int, nodes: int
) -> None:
    row = a_lease(str(price), DECEMBER - before * HOUR, increment_s, nodes)
    end = DECEMBER + after * HOUR
    tariff = Tariff(price, increment_s, 0, ZERO)
    november = nodes * tariff.billed_usd(DECEMBER - row.start)
    total = nodes * tariff.billed_usd(end - row.start)
    for now, seen in ((DECEMBER, row), (end, row), (end + 50 * HOUR, left(row, end))):
        months = by_month(seen, now)
        assert abs(months.get(11, ZERO) + months.get(10, ZERO) - november) <= HALF_A_CENT
        assert min(months.values()) >= 0
    assert abs(sum(months.values()) - total) <= HALF_A_CENT
    assert all(usd == usd.quantize(CENT) for usd in months.values())
