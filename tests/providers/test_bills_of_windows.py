"""A window is billed when its seller bills it: every kind of window of every seller, over real sockets.

The judge is the market's own ledger, after the order, before the start, within the window and after its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple

import pytest

from broker.domain.basics.errors import BrokerError
from broker.domain.basics.window import Window
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer, WindowBilling
from broker.domain.spend.charging import owed_usd, reservation_charges
from broker.domain.spend.spend import Charge, CostView
from broker.provider_facts import load_provider_facts
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.spec import ProviderAdapter
from tests.fakes.examples import ALICE
from tests.fakes.market_control import control, hasty
from tests.providers.test_prices_of_leases import MarketClock, Office

CENT, ZERO = Decimal("0.01"), Decimal(0)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


class Kind(NamedTuple):
    """A kind of window: part of the ids of its offers, and how long and how far ahead one is bought."""

    named: str
    days: int
    ahead_days: int


KINDS = {
    ("aws", "block"): Kind("aws/block/", 0, 1),
    ("aws", "plan"): Kind("aws/plan/", 0, 1),
    ("aws", "future"): Kind("aws/future/us-east-1/g4dn.12xlarge", 14, 7),
    ("azure", "block"): Kind("/Standard_ND96isr_H100_v5/block", 2, 3),
    ("azure", "future"): Kind("/Standard_NC96ads_A100_v4/future", 35, 9),
    ("gcp", "calendar"): Kind("gcp/calendar/", 2, 5),
    ("gcp", "flex"): Kind("gcp/flex/", 2, 1),
    ("mithril", "reservation"): Kind("/window", 2, 1),
    ("sfcompute", "block"): Kind("sfcompute/", 2, 1),
    ("together", "scheduled"): Kind("/days_7_30", 7, 2),
}


def test_every_kind_of_window_is_held_against_the_ledger() -> None:
    billings = ((name, load_provider_facts(name).billing) for name in SPECS)
    assert set(KINDS) == {(name, kind) for name, billing in billings if billing for kind in billing.windows}


@pytest.fixture(scope="module")
def clock() -> MarketClock:
    return MarketClock()


@pytest.fixture
async def adapter(sandbox: str, name: str) -> AsyncIterator[ProviderAdapter]:
    built = sellers(build_adapters({name: configured({}, sandbox)[name]}, hasty))
    yield built[name]
    await built[name].aclose()


class Till:
    """Time at the market, and what one order has cost there."""

    def __init__(self, office: Office, market: str, clock: MarketClock, row: Reservation) -> None:
        self._office, self._market, self._clock, self._row = office, market, clock, row

    async def at(self, instant: datetime) -> tuple[Reservation, datetime, Decimal]:
        """The reservation, the market's time and its bill, once it is ``instant`` there."""
        step = max(timedelta(0), instant - self._clock.now()) + timedelta(seconds=1)
        control(self._market, "clock", advance_s=step.total_seconds())
        self._clock.ahead += step
        await self._office.reconcile.run_once()
        row = await self._office.reservations.find_reservation(ALICE, self._row.reservation_id)
        answer = control(self._market, "ledger")
        tags = {unit.tag for unit in row.units}
        billed = (Decimal(one["billed_usd"]) for one in answer["instances"] if one["tag"] in tags)
        return row, datetime.fromisoformat(answer["now"]), sum(billed, ZERO)


def midnight(instant: datetime) -> datetime:
    return datetime.combine(instant.date(), time(), instant.tzinfo)


def chosen(offer: Offer, kind: Kind, now: datetime) -> Window | None:
    """A window of the offer's, on its grid; None if it has none of that length."""
    assert offer.window is not None
    length = kind.days * DAY
    earliest = midnight(now) + kind.ahead_days * DAY
    if not kind.days:
        (segment, *_) = offer.window.segments
        return segment.window if segment.start > now + HOUR else None
    anchor = offer.window.anchor_utc or time()
    start = datetime.combine(earliest.date(), anchor, now.tzinfo)
    return Window(start, start + length)


async def ordered(
    office: Office, adapter: ProviderAdapter, kind: Kind, now: datetime
) -> tuple[Offer, Reservation]:
    """The first window of that kind which the seller sells."""
    batch = await adapter.list_offers(now)
    refusals = []
    for offer in batch.offers:
        if offer.window is None or kind.named not in offer.offer_id:
            continue
        window = chosen(offer, kind, now)
        if window is None:
            continue
        office.sell(offer)
        nodes = offer.window.least_sold(1) or 1
        try:
            most = 2 * offer.price_usd_per_node_hour
            row = await office.reservations.reserve_offer(
                ALICE, offer.offer_id, nodes, window.start, window.end, most_usd_per_node_hour=most
            )
        except BrokerError as error:  # sold out on these days, or shorter than asked for
            refusals.append(f"{offer.offer_id}: {error}")
            continue
        return offer, row
    raise AssertionError("\n".join(refusals[:5]) or "no such offer")


def by(charges: Iterable[Charge], instant: datetime) -> Decimal:
    """What they say is billed before ``instant``."""
    return sum((one.usd for one in charges if one.at(CostView.CASH) < instant), ZERO)


def exported(row: Reservation, now: datetime) -> Decimal:
    """What FOCUS says is billed by now."""
    rows = focus_rows((row,), now, "test")
    return sum((Decimal(str(cells["BilledCost"])) for cells in rows), ZERO)


@pytest.mark.parametrize(("name", "window"), KINDS)
async def test_a_window_is_billed_when_its_seller_bills_it(
    adapter: ProviderAdapter, sandbox: str, clock: MarketClock, name: str, window: str
) -> None:
    office, kind = Office(adapter, clock), KINDS[name, window]
    offer, row = await ordered(office, adapter, kind, clock.now())
    assert offer.window is not None
    billed_at = load_provider_facts(name).billed.window_billed(window)
    assert offer.window.billed is billed_at
    till, waits = Till(office, sandbox, clock, row), offer.window.waits
    row, now, billed = await till.at(clock.now())
    expected = reservation_charges((row,), {}, now)
    whole = sum((one.usd for one in expected), ZERO)
    assert whole > 0
    assert (billed > 0) == (billed_at is WindowBilling.AT_ORDER)
    assert abs(owed_usd((row,), now) - billed) <= CENT
    assert row.end is not None
    a_minute = row.nodes * offer.price_usd_per_node_hour / 60
    slack = CENT if offer.window.is_prepaid else CENT + a_minute
    half = midnight(row.start + (row.end - row.start) / 2)
    ordered_at = row.start - max(HOUR, offer.window.longest_wait)
    for instant in (ordered_at, row.start, half, row.end, midnight(row.end) + 2 * DAY):
        row, now, billed = await till.at(instant)
        assert abs(owed_usd((row,), now) - billed) <= slack, instant
        assert abs(exported(row, now) - billed) <= slack, instant
        if instant == midnight(instant) and not waits:
            assert abs(by(expected, instant) - billed) <= slack, instant
    if waits and row.state is ReservationState.FAILED:
        assert billed == 0, "capacity that never appeared costs nothing"
        return
    assert abs(whole - billed) <= slack
