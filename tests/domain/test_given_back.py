"""The books of capacity that was given back: by day, amortized and as it is billed, and as FOCUS rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusVersion, focus_columns
from broker.domain.focus.corrections import start_of
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, Offer, Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.charging import Movement, owed_usd, reservation_charges
from broker.domain.spend.spend import Charge, ChargeBasis, CostView
from broker.domain.spend.spend_cells import cells_of
from broker.domain.spend.unit_costs import day_work_of, unit_costs
from broker.domain.spend.variance import attribute, quantities_of
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, slot_terms
from tests.focus.examples import written

HOUR = timedelta(hours=1)
LONG_AFTER = NOON + 3000 * HOUR


def given_back(
    offer: Offer, *, begins: float, lasts: float, left: float, credit_usd: Decimal | None, nodes: int = 1
) -> Reservation:
    """Begin and release in hours after noon; a window is ordered at noon, a lease when it begins."""
    start = NOON + begins * HOUR
    gone_at = max(NOON + left * HOUR, NOON if offer.window else start + HOUR / 60)
    ordered_at = NOON if offer.window else start
    unit = Unit(0, "tag", nodes, UnitState.GONE, "i-1", ordered_at, gone_at, credit_usd=credit_usd)
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.RELEASED,
        offer=offer,
        nodes=nodes,
        start=start,
        end=start + lasts * HOUR,
        units=(unit,),
        created_at=NOON,
        workload="train",
        released_at=gone_at,
    )


def by_day(charges: Iterable[Charge], view: CostView) -> dict[date, Decimal]:
    sums: defaultdict[date, Decimal] = defaultdict(lambda: ZERO)
    for charge in charges:
        sums[charge.at(view).date()] += charge.usd
    return {day: usd for day, usd in sums.items() if usd}


def sold_back(hours: float) -> Reservation:
    """A window of seven days from 3 December on, at 16,569.22 USD, sold back for four fifths of that."""
    begins = (datetime(2026, 12, 3, tzinfo=UTC) - NOON) / HOUR
    offer = an_offer(price="98.6263", window=slot_terms(NOON, 2000, cancel=CancelRule.RESELL))
    return given_back(offer, begins=begins, lasts=168, left=hours, credit_usd=Decimal("13255.37"))


def test_a_window_sold_before_it_begins_costs_what_is_lost_on_the_day_of_the_sale() -> None:
    charges = reservation_charges([sold_back(48)], {}, LONG_AFTER)
    bought, sold = NOON.date(), (NOON + 48 * HOUR).date()
    assert by_day(charges, CostView.AMORTIZED) == {sold: Decimal("3313.85")}
    assert by_day(charges, CostView.CASH) == {bought: Decimal("16569.22"), sold: Decimal("-13255.37")}


def test_what_the_seller_does_not_credit_stays_a_cost_of_the_days_that_were_bought() -> None:
    row = sold_back(48)
    kept = replace(row, units=(replace(row.units[0], credit_usd=None),))
    days = by_day(reservation_charges([kept], {}, LONG_AFTER), CostView.AMORTIZED)
    assert (len(days), sum(days.values())) == (7, Decimal("16569.22"))


def test_the_time_that_is_lost_is_told_as_idle_at_the_price_of_the_purchase() -> None:
    charges = reservation_charges([sold_back(48)], {}, LONG_AFTER)
    billed, idle = sum(c.gpu_seconds for c in charges), sum(c.idle_gpu_seconds for c in charges)
    assert billed == idle == pytest.approx(168 * 3600 * 8 * 0.2, abs=10)
    assert sum((c.idle_usd for c in charges), ZERO) == Decimal("3313.85")


def test_a_refund_of_used_days_reduces_the_latest_of_them() -> None:
    """240 USD a day from midnight on, left after three days, and all but 300 USD comes back."""
    offer = an_offer(price="10", window=slot_terms(NOON, 2000, cancel=CancelRule.NEVER))
    row = given_back(offer, begins=12, lasts=240, left=84, credit_usd=Decimal(2100))
    days = by_day(reservation_charges([row], {}, LONG_AFTER), CostView.AMORTIZED)
    first = NOON.date() + timedelta(days=1)
    assert days == {first: Decimal(240), first + timedelta(days=1): Decimal(60)}


def with_credit(row: Reservation, share: float) -> tuple[Decimal, Reservation]:
    """What it costs without a credit, and the same with a credit of that share."""
    plain = replace(row, units=(replace(row.units[0], credit_usd=None),))
    whole_usd = owed_usd([plain], LONG_AFTER)
    credit_usd = (whole_usd * Decimal(share)).quantize(Decimal("0.0001"))
    return whole_usd, replace(row, units=(replace(row.units[0], credit_usd=credit_usd),))


leases = st.builds(
    given_back,
    st.builds(
        lambda price, tier, upfront, increment_s, min_hours, rule: replace(
            an_offer(
                price=str(price),
                upfront=None if rule is not None else upfront,
                increment_s=increment_s,
                min_hours=min_hours,
                window=None if rule is None else slot_terms(NOON, 2000, cancel=rule),
            ),
            **({"tier": tier} if rule is None else {}),
        ),
        st.decimals("0.01", "99", places=6),
        st.sampled_from([Tier.ON_DEMAND, Tier.SPOT, Tier.COMMITTED]),
        st.sampled_from([None, "12.34"]),
        st.sampled_from([1, 60, 3600, 86_400]),
        st.sampled_from([0.0, 1.0, 50.0, 720.0]),
        st.none() | st.sampled_from(CancelRule),
    ),
    begins=st.sampled_from([0.0, 0.25, 36.0, 130.5]),
    lasts=st.floats(0.1, 500).map(lambda hours: round(hours, 3)),
    left=st.floats(0, 600).map(lambda hours: round(hours, 3)),
    credit_usd=st.none(),
    nodes=st.integers(1, 3),
)


@example(sold_back(48), 1.0)
@example(sold_back(200), 0.8)
@given(leases, st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=examples(60), deadline=None)
def test_no_day_is_negative_and_both_views_sum_to_what_is_owed(row: Reservation, share: float) -> None:
    whole_usd, row = with_credit(row, share)
    credit_usd = to_cents(row.units[0].credit_usd or ZERO)
    owed = whole_usd - credit_usd
    charges = reservation_charges([row], {}, LONG_AFTER)
    assert {charge.basis for charge in charges} <= {ChargeBasis.ACTUAL}
    amortized, cash = (by_day(charges, view) for view in (CostView.AMORTIZED, CostView.CASH))
    assert sum(amortized.values(), ZERO) == sum(cash.values(), ZERO) == owed
    assert all(usd > 0 for usd in amortized.values()), amortized
    assert row.released_at is not None
    released_on = row.released_at.date()
    if credit_usd:
        late = {day: usd for day, usd in amortized.items() if day > released_on}
        assert not late, "a day that was given back costs nothing"
    cells = cells_of(charges)
    assert all(one.cents >= 0 and one.gpu_seconds >= one.idle_gpu_seconds >= 0 for one in cells.values())
    assert all(one.idle_cents <= one.cents for one in cells.values())
    for now in (row.released_at, row.released_at + 25 * HOUR):
        parts = [*reservation_charges([row], {}, now, Movement.STEADY)]
        parts += reservation_charges([row], {}, now, Movement.MOVING)
        assert sorted(map(repr, parts)) == sorted(map(repr, reservation_charges([row], {}, now)))


@example(sold_back(48), 0.8)
@given(leases, st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=examples(40), deadline=None)
def test_focus_rows_have_the_same_days_and_keep_the_rules(row: Reservation, share: float) -> None:
    _, row = with_credit(row, share)
    charges = reservation_charges([row], {}, LONG_AFTER)
    rows = list(focus_rows([row], LONG_AFTER, "install"))
    for column, view in (("BilledCost", CostView.CASH), ("EffectiveCost", CostView.AMORTIZED)):
        sums: defaultdict[date, Decimal] = defaultdict(lambda: ZERO)
        for found in rows:
            sums[start_of(found).date()] += Decimal(str(found[column]))
        assert {day: usd for day, usd in sums.items() if usd} == by_day(charges, view), column
    columns = focus_columns(FocusVersion.V1_2)
    assert list(map(str, check_focus(columns, written(rows, columns)))) == []


def test_a_release_is_no_matter_of_price() -> None:
    """In the month of the sale it is bought and not used time; in the cash view less is bought."""
    charges = reservation_charges([sold_back(48)], {}, LONG_AFTER)
    (line,) = attribute((), quantities_of(charges)).lines
    assert (line.price_usd, line.volume_usd + line.mix_usd) == (ZERO, Decimal("3313.85"))
    assert line.unused_usd == Decimal("3313.85")
    bought, sold = ([c for c in charges if (c.paid_at is None) == back] for back in (False, True))
    for part, usd in ((bought, "16569.22"), (sold, "-13255.37")):
        (line,) = attribute((), quantities_of(part)).lines
        assert (line.price_usd, line.volume_usd) == (ZERO, Decimal(usd))
    (line,) = attribute(quantities_of(bought), quantities_of(sold)).lines
    assert abs(line.price_usd) <= Decimal("0.02"), "the refund is at the price of the purchase"


def test_a_run_that_was_given_back_before_it_began_is_no_run() -> None:
    kinds = {"train": WorkloadKind.TRAINING}
    never, used = sold_back(48), sold_back((datetime(2026, 12, 5, tzinfo=UTC) - NOON) / HOUR)
    charges = reservation_charges([never], kinds, LONG_AFTER)
    found = unit_costs(charges, day_work_of(charges, {}))
    assert (found.runs, found.usd_per_run, found.used_gpu_hours) == (0, None, Decimal(0))
    assert (found.total_usd, found.idle_usd) == (Decimal("3313.85"), Decimal("3313.85"))
    charges = reservation_charges([used], kinds, LONG_AFTER)
    assert unit_costs(charges, day_work_of(charges, {})).runs == 1
