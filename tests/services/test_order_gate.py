"""Every way to an order is held to BROKER_ORDERS and to the caps; releasing is not."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import Conflict, OrdersBarred, OverCap
from broker.domain.basics.machines import AccessWish
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.holding.reservation import Idempotency, Reservation, ReservationState, UnitState
from broker.domain.market.seller_mode import SellerMode
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.domain.spend.spending_caps import SpendingCap, SpendingCaps
from broker.services.holding.order_gate import OrderGate
from broker.services.holding.reservations import ReservationsService
from broker.services.holding.reserving_requests import OfferOrder
from broker.services.market.offers import OffersService
from broker.store import Store, create_store
from tests.depth import examples
from tests.fakes.buying import a_buyer
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import (
    ALICE,
    BOB,
    a_placement,
    a_plan,
    a_request,
    a_segment,
    an_offer,
    plan_on_cheapest,
)
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.provider import FakeProvider, Fault
from tests.services.conftest import House

HOUR = timedelta(hours=1)
S = ReservationState
REAL = {"fake": SellerMode.REAL}


def gate(orders: Orders = Orders.ON, caps: SpendingCaps | None = None, **modes: SellerMode) -> OrderGate:
    return OrderGate(OrderRules(orders, modes or REAL), caps, lambda document: a_request())


def under(gate: OrderGate, **parts: object) -> House:
    """A broker that is held to ``gate``, with two offers."""
    house = House(orders=gate, **parts)  # type: ignore[arg-type]
    house.sell(an_offer("o-1", "10"), an_offer("o-2", "8"))
    return house


def plan_of(*offers: str, plan_id: str = "plan-1") -> Plan:
    segments = [a_segment(0, 10)]
    placed = (a_placement(an_offer(one), segments, f"w-{one}", WorkloadKind.SERVING) for one in offers)
    return a_plan(*placed, plan_id=plan_id)


def _said(request: PlanRequest, document: str) -> PlanRequest:
    """Reads ``request`` from every document."""
    return request


async def switched(house: House, orders: Orders) -> None:
    """The broker starts again with another BROKER_ORDERS."""
    house.orders = gate(orders)
    house.restart()


async def test_no_order_of_an_offer_or_a_plan_reaches_a_real_seller_by_default() -> None:
    house = under(gate(Orders.SANDBOX))
    house.store_plan(plan_of("o-1"))
    order = OfferOrder("o-1", 1)
    for act in (
        lambda: house.reservations.reserve_order(ALICE, order),
        lambda: house.reservations.quote_offer(ALICE, order),
        lambda: house.reservations.reserve_plan(ALICE, "plan-1"),
        lambda: house.reservations.quote_plan(ALICE, "plan-1"),
    ):
        with pytest.raises(OrdersBarred, match="fake is a real seller: set BROKER_ORDERS to on"):
            await act()
    assert (house.rows(), house.provider.ledger) == ([], [])
    await switched(house, Orders.ON)
    assert (await house.reservations.reserve_order(ALICE, order)).state is S.ACTIVE


async def test_leases_are_followed_and_released_while_orders_are_off() -> None:
    house = under(gate())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2)
    await switched(house, Orders.OFF)
    await house.settle(2)
    assert house.states() == [S.ACTIVE]
    with pytest.raises(OrdersBarred):
        await house.reservations.extend(ALICE, (await _ending(house)).reservation_id, NOON + 9 * HOUR)
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is S.RELEASED
    assert len(house.provider.open_instances()) == 1
    house.assert_agreement()


async def test_an_order_that_nobody_could_enter_is_refused_with_what_to_do() -> None:
    house = under(gate())
    house.provider.needs_keys = True
    with pytest.raises(Conflict, match=r"no public SSH key goes with .*; expected .*`broker ssh-keys --add"):
        await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert (house.rows(), house.provider.ledger) == ([], [])
    unentered = OfferOrder("o-1", 1, access=AccessWish.NONE)
    assert (await house.reservations.reserve_order(ALICE, unentered)).state is S.ACTIVE


async def _ending(house: House) -> Reservation:
    """A lease with an end, made while orders were on."""
    await switched(house, Orders.ON)
    row = await house.reservations.reserve_offer(ALICE, "o-2", 1, None, NOON + 5 * HOUR)
    await switched(house, Orders.OFF)
    return row


async def test_what_was_scheduled_waits_until_orders_are_on_again() -> None:
    house = under(gate())
    await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON + HOUR, NOON + 9 * HOUR)
    await switched(house, Orders.OFF)
    house.clock.advance(hours=1)
    await house.settle(3)
    assert house.states() == [S.SCHEDULED]
    assert "while BROKER_ORDERS is off" in house.rows()[0].reason
    assert not house.provider.ledger
    await switched(house, Orders.ON)
    await house.settle(12)
    assert house.states() == [S.ACTIVE]


@pytest.mark.parametrize("idempotency", [Idempotency.TAG, Idempotency.TOKEN])
async def test_an_order_in_doubt_is_not_sent_again(idempotency: Idempotency) -> None:
    house = under(gate(), idempotency=idempotency)
    house.provider.fail("reserve", Fault.LOST_BEFORE, Fault.LOST_BEFORE)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert house.states() == [S.UNKNOWN]
    sent = house.provider.calls.count("reserve")
    await switched(house, Orders.OFF)
    await house.settle(6)
    assert house.provider.calls.count("reserve") == sent
    assert house.states() == [S.FAILED]


async def test_an_order_in_doubt_that_was_carried_out_is_released() -> None:
    house = under(gate(), idempotency=Idempotency.TOKEN)
    house.provider.visible_after_s = 600
    house.provider.fail("reserve", Fault.LOST_AFTER, Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await switched(house, Orders.OFF)
    await house.settle(20)
    assert house.provider.open_instances() == []
    house.assert_agreement()


@pytest.mark.parametrize("caps", [None, SpendingCaps(SpendingCap(Decimal(1)))])
async def test_a_loss_is_stored_though_it_may_not_be_bought_again(caps: SpendingCaps | None) -> None:
    house = under(gate())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2)
    house.orders = gate(Orders.OFF) if caps is None else gate(caps=caps)
    house.restart()
    house.provider.preempt(row.provider_references[0])
    await house.settle(4)
    (left,) = house.rows()
    assert [unit.state for unit in left.units] == [UnitState.GONE, UnitState.HELD]
    assert "it is not bought again: " in left.reason
    house.assert_agreement()


async def test_a_move_is_held_to_the_rules() -> None:
    house = under(gate())
    house.store_plan(plan_of("o-1"))
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.orders = gate(Orders.SANDBOX)
    house.restart()
    moved = plan_of("o-2", plan_id="plan-2")
    moved = replace(moved, placements=(replace(moved.placements[0], workload="w-o-1"),))
    house.store_plan(moved)
    with pytest.raises(OrdersBarred):
        await house.moves.move("reoptimizer", moved, [row.reservation_id])
    assert house.states() == [S.ACTIVE]


async def test_a_plan_of_sandbox_and_real_sellers_needs_its_policy_s_word() -> None:
    modes = {"fake": SellerMode.REAL, "toy": SellerMode.SANDBOX}
    plan = plan_of("o-1", "o-2")
    mixed = replace(plan, placements=(plan.placements[0], replace(plan.placements[1], provider="toy")))
    for mixes in (False, True):
        request = replace(a_request(), policy=replace(a_request().policy, mix_sandbox=mixes))
        house = under(OrderGate(OrderRules(Orders.ON, modes), None, partial(_said, request)))
        house.store_plan(mixed)
        if mixes:
            assert len(await house.reservations.reserve_plan(ALICE, "plan-1")) == 2
        else:
            with pytest.raises(OrdersBarred, match=r"fake is a real seller.*policy\.mix_sandbox: true"):
                await house.reservations.reserve_plan(ALICE, "plan-1")
            assert not house.rows()


async def test_a_refused_placement_is_replaced_only_where_orders_are_allowed() -> None:
    request = a_request(serving=False)
    house = under(gate(Orders.SANDBOX, fake=SellerMode.SANDBOX), plan_call=plan_on_cheapest, request=request)
    house.sell(an_offer("real", "7", provider="elsewhere"))
    house.store_plan(a_plan(a_placement(an_offer("o-1", "10"), [a_segment(0, 10)])))
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert [row.offer.offer_id for row in rows] == ["o-2"]


async def test_an_order_without_a_limit_of_its_own_has_one() -> None:
    """The seller asks 2 % more than its offer says: the cap counts that, and nothing above it is bought."""
    caps = SpendingCaps(SpendingCap(Decimal("10.10")))
    house = under(gate(caps=caps))
    with pytest.raises(OverCap, match=r"\$10.20 of this order"):
        await house.reservations.reserve_order(ALICE, OfferOrder("o-1", 1, most_usd_per_node_hour=None))
    house.provider.price_factor = Decimal("1.02")
    row = await house.reservations.reserve_order(ALICE, OfferOrder("o-2", 1))
    assert row.limit_usd_per_node_hour == Decimal("8.16") == row.units[0].price_usd_per_node_hour


async def test_a_quote_is_refused_as_the_order_is() -> None:
    house = under(gate(caps=SpendingCaps(teams={"research": SpendingCap(None, Decimal(100))})))
    for act in (house.reservations.quote_offer, house.reservations.reserve_order):
        with pytest.raises(OverCap, match=r"BROKER_TEAM_CAPS allows team research \$100.00 per day"):
            await act(ALICE, OfferOrder("o-1", 1))
    await house.reservations.reserve_order(BOB, OfferOrder("o-1", 1))


Wish = tuple[Caller, str, int, int, int | None, bool]
"""Who orders how many nodes of which offer, from which hour on, for how long, and whether it is released."""

wishes = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB]),
        st.sampled_from(["o-5", "o-10", "o-20"]),
        st.integers(1, 3),
        st.sampled_from([0, 0, 1, 13, 30]),
        st.sampled_from([1, 2, 12, 40, None]),
        st.booleans(),
    ),
    min_size=2,
    max_size=7,
)
dollars = st.sampled_from([None, Decimal(25), Decimal(45)])
daily = st.sampled_from([None, Decimal(150), Decimal(600)])
caps_of = st.builds(SpendingCap, dollars, daily)


@asynccontextmanager
async def broker_on(url: str, caps: SpendingCaps) -> AsyncIterator[tuple[Store, ReservationsService]]:
    """A broker whose seller asks 1 % more than its offers say."""
    clock = FakeClock()
    on_sale = tuple(an_offer(f"o-{usd}", usd) for usd in ("5", "10", "20"))
    provider = FakeProvider(clock, offers=on_sale, price_factor=Decimal("1.01"))
    store = create_store(url)
    try:
        await OffersService(store.unit_of_work, {"fake": provider}, clock).refresh()
        buying = a_buyer(store.unit_of_work, {"fake": provider}, clock, orders=OrderGate(caps=caps))
        yield store, ReservationsService(store.unit_of_work, buying, clock, RecordingNotifier())
    finally:
        await store.close()


async def order(service: ReservationsService, wish: Wish) -> None:
    caller, offer_id, nodes, start, hours, leaves = wish
    begin = None if start == 0 else NOON + start * HOUR
    end = None if hours is None else NOON + (start + hours) * HOUR
    try:
        row = await service.reserve_offer(caller, offer_id, nodes, begin, end)
        if leaves:
            await service.release(caller, row.reservation_id)
    except OverCap:
        return


def spans(rows: Iterable[Reservation]) -> list[tuple[datetime, datetime | None, Decimal]]:
    """From when to when each node is held, and its price: the seller's, or the limit before that is known."""
    found: list[tuple[datetime, datetime | None, Decimal]] = []
    for row in rows:
        for unit in row.units:
            if unit.state is UnitState.GONE and unit.reference is None:
                continue
            usd = unit.price_usd_per_node_hour if unit.is_price_confirmed else row.limit_usd_per_node_hour
            assert usd is not None
            end = NOON + HOUR if unit.state is UnitState.GONE else row.end
            found.append((row.start, end, usd * unit.nodes))
    return found


def dearest_hour(rows: Iterable[Reservation]) -> Decimal:
    held = spans(row for row in rows if row.is_open)
    most = Decimal()
    for at in {start for start, _, _ in held}:
        there = (usd for start, end, usd in held if start <= at and (end is None or at < end))
        most = max(most, sum(there, Decimal()))
    return most


def dearest_day(rows: Iterable[Reservation]) -> Decimal:
    held = spans(rows)
    midnight = datetime(NOON.year, NOON.month, NOON.day, tzinfo=UTC)
    sums = []
    for number in range(5):
        a, b = midnight + number * 24 * HOUR, midnight + (number + 1) * 24 * HOUR
        parts = ((max(a, start), min(b, end or b), usd) for start, end, usd in held)
        sums.append(sum((usd * Decimal((y - x) / HOUR) for x, y, usd in parts if x < y), Decimal()))
    return max(sums)


def assert_within(cap: SpendingCap, rows: Sequence[Reservation]) -> None:
    cents = Decimal("0.01") * len(rows)
    assert cap.usd_per_hour is None or dearest_hour(rows) <= cap.usd_per_hour
    assert cap.usd_per_day is None or dearest_day(rows) <= cap.usd_per_day + cents


@given(wishes, caps_of, caps_of)
@settings(max_examples=examples(15))
async def test_no_order_of_concurrent_orders_passes_a_cap(
    migrated_sqlite: Path, asked: list[Wish], everyone: SpendingCap, research: SpendingCap
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "broker.db"
        shutil.copy(migrated_sqlite, file)
        caps = SpendingCaps(everyone, {"research": research})
        async with broker_on(f"sqlite:///{file}", caps) as (store, service):
            await asyncio.gather(*(order(service, wish) for wish in asked))
            async with store.unit_of_work(EVERY_TEAM) as uow:
                rows = await uow.reservations.find_spending(NOON - 24 * HOUR)
    assert_within(everyone, rows)
    assert_within(research, [row for row in rows if row.team == "research"])


async def test_brokers_of_one_database_take_turns(
    postgres_url_factory: Callable[[], str], migrated_postgres: str
) -> None:
    """Three brokers order four times each: the cap leaves room for four nodes, whoever comes first."""
    url = postgres_url_factory()
    store = create_store(url)
    await store.migrate()
    await store.close()
    caps = SpendingCaps(SpendingCap(Decimal("42")))
    wish: Wish = (ALICE, "o-10", 1, 0, 5, False)
    async with broker_on(url, caps) as first, broker_on(url, caps) as second, broker_on(url, caps) as third:
        asked = [order(service, wish) for _, service in (first, second, third) for _ in range(4)]
        await asyncio.gather(*asked)
        async with first[0].unit_of_work(EVERY_TEAM) as uow:
            rows = await uow.reservations.find_open()
    assert len(rows) == 4
    assert dearest_hour(rows) <= Decimal(42)
