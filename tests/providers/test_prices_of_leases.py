"""What is paid for a lease by the hour is what its seller charges: every seller, over real sockets.

The judge is the market's own ledger: prices treble between the poll and the order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import PriceAboveLimit
from broker.domain.basics.window import Segment
from broker.domain.holding.lease_money import price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import PriceBasis, ReservationState
from broker.domain.market.offer import Offer, StockLevel, Tier
from broker.domain.spend.charging import owed_usd
from broker.services.holding.reconcile import ReconcileService
from broker.services.holding.reservations import ReservationsService
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.spec import Capability, ProviderAdapter
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ALICE, a_placement, a_plan, a_record
from tests.fakes.market_control import control, hasty, ledger
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.store import Tables
from tests.providers.test_against_sandbox import NAMES, orderable

HOURS = 10
TOLERATED = Decimal("1.02")
CENT = Decimal("0.01")


class MarketClock:
    """The time of a market whose clock is moved on by whoever tests it."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        """Now, as the market has it."""
        return datetime.now(UTC) + self.ahead


@pytest.fixture(scope="module")
def clock() -> MarketClock:
    return MarketClock()


@pytest.fixture
async def adapters(sandbox: str) -> AsyncIterator[dict[str, ProviderAdapter]]:
    wanted = {name: found for name, found in configured({}, sandbox).items() if name in NAMES}
    built = sellers(build_adapters(wanted, hasty))
    yield dict(built)
    for adapter in built.values():
        await adapter.aclose()


class Office:
    """The services over one seller of the market."""

    def __init__(self, adapter: ProviderAdapter, clock: MarketClock) -> None:
        self.tables, self.clock = Tables(), clock
        units = self.tables.unit_of_work
        buying = a_buyer(units, {adapter.provider: adapter}, clock)
        parts = (units, buying, clock, RecordingNotifier())
        self.reservations = ReservationsService(*parts)
        self.reconcile = ReconcileService(*parts)

    def sell(self, offer: Offer) -> None:
        """Puts an offer on sale as it was polled."""
        self.tables.put_offers(offer)


SILENT = {"crusoe", "together"}
"""Their APIs have no prices at all: what is known of them is a dated list."""
HOLDS_TO_A_LIMIT = "prime_intellect"
"""Its orders carry the most that may be paid."""
TELLING = tuple(name for name in NAMES if name not in SILENT | {HOLDS_TO_A_LIMIT})


async def sold(adapter: ProviderAdapter) -> Offer:
    """An offer that costs enough for cents to tell prices apart."""
    batch = await adapter.list_offers(datetime.now(UTC))
    return next(
        offer
        for offer in batch.offers
        if offer.tier is Tier.ON_DEMAND
        and offer.stock.level is not StockLevel.NONE
        and offer.price_usd_per_node_hour >= 1
    )


def repriced(market: str, offer: Offer, factor: int) -> None:
    """A seller asks ``factor`` times its usual price for what ``offer`` is, or for everything it sells."""
    cells = control(market, "market")["cells"]
    known = {cell["sku"] for cell in cells if cell["provider"] == offer.provider}
    named = {offer.sku.name, *offer.reference.values()} & known
    for sku in named or known:
        control(market, "market", provider=offer.provider, sku=sku, price_factor=factor)


@pytest.mark.parametrize("name", TELLING)
async def test_ten_hours_cost_what_the_ledger_says(
    adapters: dict[str, ProviderAdapter], sandbox: str, clock: MarketClock, name: str
) -> None:
    office = Office(adapters[name], clock)
    offer = await sold(adapters[name])
    office.sell(offer)
    repriced(sandbox, offer, 3)
    try:
        most = 4 * offer.price_usd_per_node_hour
        row = await office.reservations.reserve_offer(ALICE, offer.offer_id, 1, most_usd_per_node_hour=most)
        tells = Capability.LEASE_PRICE in SPECS[name].capabilities
        assert price_basis(row) is (PriceBasis.CONFIRMED if tells else PriceBasis.ESTIMATED)
        control(sandbox, "clock", advance_s=HOURS * 3600)
        clock.ahead += timedelta(hours=HOURS)
        await office.reconcile.run_once()
        row = await office.reservations.release(ALICE, row.reservation_id)
        await office.reconcile.run_once()
    finally:
        repriced(sandbox, offer, 1)
    row = await office.reservations.find_reservation(ALICE, row.reservation_id)
    (entry,) = [e for unit in row.units for e in ledger(sandbox, unit.tag)]
    owed, billed = owed_usd((row,), clock.now()), Decimal(entry["billed_usd"])
    increment = 3 * offer.price_usd_per_node_hour * offer.billing_increment_s / 3600
    assert abs(owed - billed) <= increment + CENT
    assert owed > 2 * HOURS * offer.price_usd_per_node_hour


async def a_pass(office: Office, market: str, **later: float) -> None:
    """A pass of the reconciler ``later``, by the market's clock and the broker's."""
    step = timedelta(**later)
    control(market, "clock", advance_s=step.total_seconds())
    office.clock.ahead += step
    await office.reconcile.run_once()


@pytest.mark.parametrize("name", ["gcp", "vast", "vultr", HOLDS_TO_A_LIMIT])
async def test_a_slot_that_became_dearer_than_planned_waits_until_it_is_not(
    adapters: dict[str, ProviderAdapter], sandbox: str, clock: MarketClock, name: str
) -> None:
    office = Office(adapters[name], clock)
    offer = await sold(adapters[name])
    office.sell(offer)
    start = clock.now() + timedelta(hours=1)
    slot = a_placement(offer, [Segment(start, start + timedelta(hours=4), 1)])
    office.tables.plans["plan-1"] = a_record(a_plan(slot))
    (row,) = await office.reservations.reserve_plan(ALICE, "plan-1")
    repriced(sandbox, offer, 3)
    try:
        await a_pass(office, sandbox, minutes=61)
        row = await office.reservations.find_reservation(ALICE, row.reservation_id)
        assert [entry for unit in row.units for entry in ledger(sandbox, unit.tag)] == []
        (short,) = await office.reservations.find_shortfalls(ALICE, plan_id="plan-1")
        assert re.search(r"asks \$.* per node-hour; the limit was \$", str(short))
        assert row.limit_usd_per_node_hour is not None
        assert row.limit_usd_per_node_hour - CENT <= offer.price_usd_per_node_hour * TOLERATED
    finally:
        repriced(sandbox, offer, 1)
    for _ in range(4):
        await a_pass(office, sandbox, minutes=20)
    row = await office.reservations.find_reservation(ALICE, row.reservation_id)
    assert row.state is ReservationState.ACTIVE
    await office.reservations.release(ALICE, row.reservation_id)
    for _ in range(3):
        await a_pass(office, sandbox, minutes=1)
    row = await office.reservations.find_reservation(ALICE, row.reservation_id)
    entries = [entry for unit in row.units for entry in ledger(sandbox, unit.tag)]
    billed = sum((Decimal(entry["billed_usd"]) for entry in entries), Decimal(0))
    increment = offer.price_usd_per_node_hour * offer.billing_increment_s / 3600
    assert abs(owed_usd((row,), clock.now()) - billed) <= increment + CENT


async def test_a_spot_price_is_confirmed_too(
    adapters: dict[str, ProviderAdapter], sandbox: str, clock: MarketClock
) -> None:
    office = Office(adapters["verda"], clock)
    offer = await orderable(adapters["verda"], Tier.SPOT)
    office.sell(offer)
    row = await office.reservations.reserve_offer(ALICE, offer.offer_id, 1)
    assert row.units[0].is_price_confirmed


@pytest.mark.parametrize(("factor", "is_bought"), [(Decimal("1.05"), False), (Decimal(4), True)])
async def test_a_seller_that_holds_to_a_limit_is_given_it(
    adapters: dict[str, ProviderAdapter],
    sandbox: str,
    clock: MarketClock,
    factor: Decimal,
    is_bought: bool,
) -> None:
    office = Office(adapters[HOLDS_TO_A_LIMIT], clock)
    offer = await sold(adapters[HOLDS_TO_A_LIMIT])
    office.sell(offer)
    limit = factor * offer.price_usd_per_node_hour
    repriced(sandbox, offer, 3)
    refusal = contextlib.nullcontext() if is_bought else pytest.raises(PriceAboveLimit)
    try:
        with refusal:
            await office.reservations.reserve_offer(ALICE, offer.offer_id, 1, most_usd_per_node_hour=limit)
    finally:
        repriced(sandbox, offer, 1)
    (row,) = office.tables.reservations.values()
    entries = [entry for unit in row.units for entry in ledger(sandbox, unit.tag)]
    assert bool(entries) == is_bought
    if is_bought:
        assert price_basis(row) is PriceBasis.CONFIRMED
        assert abs(rate_usd_per_node_hour(row) - 3 * offer.price_usd_per_node_hour) < CENT
