"""Segments become money by the contract's rules, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.money import CENT, from_micro_usd, split_cents, to_cents, to_micro_usd
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import (
    Block,
    Holding,
    Meter,
    billed_ahead,
    billed_seconds,
    held_by_day,
    holding_cost_usd,
    holdings,
    node_hours,
    spread_by_day,
)
from broker.domain.market.offer import NativePrice, Offer, Stock, Tier, WindowKind, WindowTerms
from broker.domain.market.sku import Sku

T0 = datetime(2026, 11, 23, tzinfo=UTC)


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def offer(**changes: object) -> Offer:
    base = Offer(
        offer_id="p/r/h100x8/on_demand",
        provider="p",
        sku=Sku("h100x8", "H100-SXM-80GB", 8, 80),
        region="r",
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=Decimal("24"),
        observed_at=T0,
        source="test",
        native=NativePrice(Decimal("24"), "USD", "node_hour"),
        stock=Stock(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_node_k_is_held_while_at_least_k_nodes_are() -> None:
    found = holdings([Segment(at(0), at(2), 1), Segment(at(2), at(4), 3), Segment(at(4), at(6), 2)])
    assert found == (
        Holding(Window(at(0), at(6)), 1),
        Holding(Window(at(2), at(4)), 1),
        Holding(Window(at(2), at(6)), 1),
    )


def test_a_gap_ends_every_holding() -> None:
    found = holdings([Segment(at(0), at(1), 2), Segment(at(2), at(3), 2)])
    assert found == (Holding(Window(at(0), at(1)), 2), Holding(Window(at(2), at(3)), 2))


def test_overlapping_segments_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        holdings([Segment(at(0), at(2), 1), Segment(at(1), at(3), 1)])


def test_increment_applies_to_each_holding() -> None:
    # Node 1: 90 min -> 2 h; node 2: 30 min -> 1 h; three billed hours at 24 USD.
    segments = [Segment(at(0), at(0.5), 2), Segment(at(0.5), at(1.5), 1)]
    assert holding_cost_usd(offer(), segments) == Decimal("72")


def test_minimum_term_is_owed_in_full_by_each_node() -> None:
    committed = offer(tier=Tier.COMMITTED, min_hours=168.0)
    assert holding_cost_usd(committed, [Segment(at(0), at(10), 2)]) == Decimal(2 * 168 * 24)


def test_a_fee_is_paid_for_each_node_each_time_that_it_is_taken() -> None:
    fee = offer(upfront_usd=Decimal("100"))
    assert holding_cost_usd(fee, [Segment(at(0), at(1), 2)]) == 2 * (24 + 100)
    assert holding_cost_usd(fee, [Segment(at(0), at(1), 1), Segment(at(2), at(3), 1)]) == 2 * (24 + 100)


def test_billed_seconds_round_up_to_the_increment() -> None:
    per_minute = offer(billing_increment_s=60)
    assert billed_seconds(per_minute, Window(at(0), at(0) + timedelta(seconds=61))) == 120


def listed() -> Offer:
    segments = (Segment(at(0), at(24), 4), Segment(at(48), at(60), 2))
    # 4x24 + 2x12 = 120 node-hours for 3,600 USD: 30 USD each.
    return offer(
        tier=Tier.WINDOW,
        upfront_usd=Decimal("3600"),
        window=WindowTerms(WindowKind.LISTED, segments),
        min_hours=500.0,
    )


def test_listed_window_costs_its_share_of_the_whole_price() -> None:
    assert holding_cost_usd(listed(), [Segment(at(0), at(24), 3)]) == Decimal(3 * 24 * 30)
    assert holding_cost_usd(listed(), list(listed().window.segments)) == Decimal("3600")  # type: ignore[union-attr]


def test_spend_is_spread_by_day_and_sums_exactly() -> None:
    segments = [Segment(at(12), at(36), 1)]
    rows = spread_by_day(Decimal("100.01"), segments)
    assert [w.start for w, _ in rows] == [at(12), at(24)]
    assert [usd for _, usd in rows] == [Decimal("50.01"), Decimal("50.00")]


@given(st.integers(0, 10**9), st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_split_cents_is_exact_and_fair(cents: int, weights: list[int]) -> None:
    total = Decimal(cents) * CENT
    shares = split_cents(total, [Decimal(w) for w in weights])
    assert sum(shares) == total
    whole = sum(weights)
    if whole:
        for share, weight in zip(shares, weights, strict=True):
            assert abs(share - total * weight / whole) < CENT


@st.composite
def step_functions(draw: st.DrawFn) -> list[Segment]:
    cuts = sorted(draw(st.sets(st.integers(0, 400), min_size=2, max_size=12)))
    nodes = draw(st.lists(st.integers(0, 6), min_size=len(cuts) - 1, max_size=len(cuts) - 1))
    return [Segment(at(a / 4), at(b / 4), n) for a, b, n in zip(cuts, cuts[1:], nodes, strict=False) if n > 0]


@given(step_functions())
def test_holdings_keep_every_node_hour(segments: list[Segment]) -> None:
    held = sum(h.nodes * h.window.hours for h in holdings(segments))
    assert held == pytest.approx(node_hours(segments))


@given(step_functions(), st.sampled_from([1, 60, 900, 3600]))
def test_cost_is_never_below_the_plain_node_hours(segments: list[Segment], increment_s: int) -> None:
    priced = offer(billing_increment_s=increment_s)
    plain = Decimal(24) * Decimal(round(node_hours(segments) * 3600)) / 3600
    assert holding_cost_usd(priced, segments) >= plain


@given(step_functions(), st.integers(0, 10**7))
def test_spread_by_day_sums_to_the_cost(segments: list[Segment], cents: int) -> None:
    if segments:
        total = Decimal(cents) * CENT
        assert sum(usd for _, usd in spread_by_day(total, segments)) == total


@given(st.integers(-(10**15), 10**15))
def test_micro_usd_round_trips(micro: int) -> None:
    assert to_micro_usd(from_micro_usd(micro)) == micro


def test_cents_round_half_even() -> None:
    assert (to_cents(Decimal("0.125")), to_cents(Decimal("0.135"))) == (Decimal("0.12"), Decimal("0.14"))


H = 3600 * 1_000_000
"""Microseconds of an hour."""


@pytest.mark.parametrize(
    ("held_us", "billed_us", "amortized_us", "paid_us"),
    [
        (0, 2 * H, 0, 0),
        (H, 2 * H, H, 2 * H),
        (2 * H - 1, 2 * H, 2 * H - 1, 2 * H),
        (2 * H, 2 * H, 2 * H, 2 * H),
        (2 * H + 1, 2 * H + H // 2, 2 * H + H // 2, 2 * H + 1),
        (2 * H + 2, 2 * H + H // 2, 2 * H + H // 2, 2 * H + 2),
        (3 * H, 3 * H, 3 * H, 3 * H),
    ],
)
def test_a_first_term_of_two_hours_is_spread_and_half_hours_count_as_they_begin(
    held_us: int, billed_us: int, amortized_us: int, paid_us: int
) -> None:
    meter = Meter(2 * H, H // 2)
    assert meter.billed_us(held_us) == billed_us
    assert meter.amortized_us(held_us) == amortized_us
    if held_us:
        assert meter.paid_us(held_us) == paid_us


@pytest.mark.parametrize(
    ("held_us", "paid_us"),
    [(0, 0), (1, 24 * H), (24 * H, 24 * H), (24 * H + 1, 48 * H), (48 * H, 48 * H), (48 * H + 2, 72 * H)],
)
def test_a_day_that_is_begun_is_paid_to_its_end(held_us: int, paid_us: int) -> None:
    meter = Meter(0, 24 * H)
    assert meter.paid_us(held_us) == paid_us
    assert meter.amortized_us(held_us) == held_us


def test_days_that_are_held_whole_are_as_many_blocks() -> None:
    """Of two nodes by the day at $24 an hour; nothing begins at the instant of the end."""
    by_day = offer(billing_increment_s=86_400)
    blocks = billed_ahead(by_day, [Segment(at(0), at(48), 2)], Decimal(2304))
    assert blocks == (Block(at(0), at(24), 2, Decimal(1152)), Block(at(24), at(48), 2, Decimal(1152)))
    more = billed_ahead(by_day, [Segment(at(0), at(48.5), 1)], Decimal(1728))
    assert [(b.at, b.until, b.usd) for b in more] == [
        (at(24 * day), min(at(24 * day + 24), at(48.5)), Decimal(576)) for day in range(3)
    ]


def test_a_fee_belongs_to_the_first_block() -> None:
    """One node by the day at $24 an hour, with $100 when it is taken."""
    by_day = offer(billing_increment_s=86_400, upfront_usd=Decimal(100))
    blocks = billed_ahead(by_day, [Segment(at(0), at(48), 1)], Decimal(1252))
    assert [block.usd for block in blocks] == [Decimal(676), Decimal(576)]


def test_an_hour_that_is_begun_is_owed_at_once_and_a_longer_block_by_elapsed_time() -> None:
    hourly, longer = Meter(0, H), Meter(0, H + 1_000_000)
    assert (hourly.prepaid_block(0), hourly.amortized_us(1)) == (None, H)
    assert (longer.prepaid_block(0), longer.amortized_us(1)) == ((0, H + 1_000_000), 1)


def test_a_day_has_the_node_seconds_of_all_its_segments() -> None:
    """Six hours of one node, six of three, and two of four on the next day."""
    segments = [Segment(at(0), at(6), 1), Segment(at(6), at(12), 3), Segment(at(24), at(26), 4)]
    first, second = (Window(at(0), at(12)), 24 * 3600), (Window(at(24), at(26)), 8 * 3600)
    assert held_by_day(segments) == (first, second)
    assert [usd for _, usd in spread_by_day(Decimal(32), segments)] == [Decimal(24), Decimal(8)]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([Decimal("0.5"), Decimal("1.5")], [25, 75]),
        ([1, Decimal("0.25")], [80, 20]),
        ([Decimal("1E+2"), Decimal(300)], [25, 75]),
        ([Decimal("0.001"), Decimal("0.003")], [25, 75]),
    ],
)
def test_cents_are_split_by_weights_that_are_no_whole_numbers(
    weights: list[Decimal], shares: list[int]
) -> None:
    assert [usd * 100 for usd in split_cents(Decimal(1), weights)] == shares
