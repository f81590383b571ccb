"""Capacity that starts later is held now, under all checks of an order, or is ordered at its start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import cast

import pytest

from broker.domain.basics.account import Caller
from broker.domain.basics.errors import (
    Conflict,
    InsufficientCapacity,
    NotFound,
    NotPermitted,
    OrdersBarred,
    OverBudget,
    OverCap,
    OverQuota,
    ProviderUnavailable,
)
from broker.domain.basics.window import Wish
from broker.domain.holding.capacity_promise import CapacityPromise, promise_of
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Quota, WorkloadKind
from broker.domain.spend.charging import owed_usd
from broker.domain.spend.spending_caps import SpendingCap, SpendingCaps
from broker.ports.planning import BudgetWatch, PlanRecord
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.order_gate import OrderGate
from broker.services.holding.reservations import ReservationsService
from broker.services.planning.quota_gate import QuotaGate
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ALICE,
    BOB,
    READER,
    a_placement,
    a_plan,
    a_segment,
    an_offer,
    plan_on_cheapest,
    slot_terms,
)
from tests.fakes.provider import Fault
from tests.services.conftest import House

HOUR = timedelta(hours=1)
S, P = ReservationState, CapacityPromise


async def waiting(house: House, caller: Caller = ALICE, nodes: int = 1) -> Reservation:
    """``nodes`` of o-1 at $10, ordered in four hours for two."""
    house.sell(an_offer())
    start = NOON + 4 * HOUR
    return await house.reservations.reserve_offer(caller, "o-1", nodes, start, start + 2 * HOUR)


def a_day() -> Plan:
    """A run in six hours and a fleet that grows in two."""
    return a_plan(
        a_placement(an_offer("o-1", "10"), [a_segment(6, 10, 2)]),
        a_placement(
            an_offer("o-2", "8"), [a_segment(0, 2), a_segment(2, 4, 3)], "chat", WorkloadKind.SERVING
        ),
    )


def sold(house: House) -> Plan:
    house.sell(an_offer("o-1", "10"), an_offer("o-2", "8"))
    plan = a_day()
    house.store_plan(plan)
    return plan


async def test_one_reservation_is_held_now_and_charged_from_now_on(house: House) -> None:
    row = await waiting(house)
    assert (await house.early_holding.quote(ALICE, row.reservation_id)).usd == Decimal(40)
    for _ in range(2):
        held = await house.early_holding.hold(ALICE, row.reservation_id)
    assert len(house.provider.ledger) == 1
    assert (held.wish, held.end) == (Wish(NOON + 4 * HOUR, NOON + 6 * HOUR), NOON + 6 * HOUR)
    await house.settle(1)
    (active,) = house.rows()
    now = house.clock.now()
    assert (active.state, promise_of(active, now)) == (S.ACTIVE, P.HOLDING)
    house.clock.advance(hours=6)
    await house.settle(2)
    (over,) = house.rows()
    assert (over.state, owed_usd([over], house.clock.now())) == (S.RELEASED, Decimal(60) + 10)
    (line,) = [entry for entry in house.tables.audit if entry.action == "reservation.hold"]
    assert line.detail == "scheduled: held from now on, needed from 23 Nov 2026 16:00 UTC; that adds $40.00"


async def test_a_plan_is_held_now_with_everything_that_starts_later(house: House) -> None:
    plan = sold(house)
    quote = await house.reservations.quote_plan(ALICE, plan.plan_id)
    assert quote.hold_usd == Decimal(2 * 6 * 10 + 2 * 2 * 8)
    rows = await house.reservations.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
    assert {row.state for row in rows} <= {S.HELD, S.ACTIVE}
    assert sorted((row.offer.offer_id, row.nodes, row.start == NOON) for row in rows) == [
        ("o-1", 2, True),
        ("o-2", 1, True),
        ("o-2", 2, True),
    ]
    await house.settle(1)
    now = house.clock.now()
    assert sorted(str(promise_of(row, now)) for row in house.rows()) == ["held", "holding", "holding"]
    house.assert_agreement()


async def test_at_start_stays_as_it_was(house: House) -> None:
    plan = sold(house)
    rows = await house.reservations.reserve_plan(ALICE, plan.plan_id)
    assert sorted(str(promise_of(row, NOON)) for row in rows if row.state is S.SCHEDULED) == ["at_start"] * 2


async def test_a_refusal_leaves_it_to_be_ordered_at_its_start(house: House) -> None:
    row = await waiting(house)
    house.clock.advance(hours=1)
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(
        InsufficientCapacity, match=r"Nothing is held; .* at its start, 2026-11-23 16:00 UTC, as before"
    ):
        await house.early_holding.hold(ALICE, row.reservation_id)
    (left,) = house.rows()
    assert (left.state, left.start, left.tries) == (S.SCHEDULED, NOON + 4 * HOUR, 0)
    await house.settle(3)
    assert house.states() == [S.SCHEDULED], "nobody asks again before its start"
    assert (await house.early_holding.hold(ALICE, row.reservation_id)).nodes_held == 1


async def test_a_refused_hold_of_a_plan_gives_the_plan_back(house: House) -> None:
    plan = sold(house)
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
    await house.settle(3)
    assert not any(row.is_open for row in house.rows())
    house.assert_agreement()


async def test_a_refused_hold_of_a_plan_is_held_at_the_next_best_offer() -> None:
    house = House(plan_call=plan_on_cheapest)
    house.sell(an_offer("o-1", "10"), an_offer("next", "10.1"))
    plan = a_plan(a_placement(an_offer("o-1", "10"), [a_segment(1, 11)]))
    house.store_plan(plan)
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    rows = await house.reservations.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
    assert [row.offer.offer_id for row in rows] == ["next"]
    assert [row.nodes_held for row in rows] == [1]


async def test_a_lost_answer_is_found_out_and_held_once(house: House) -> None:
    row = await waiting(house)
    house.provider.fail("reserve", Fault.LOST_AFTER)
    held = await house.early_holding.hold(ALICE, row.reservation_id)
    assert held.state is S.UNKNOWN
    await house.settle(4)
    assert house.states() == [S.ACTIVE]
    assert len(house.provider.ledger) == 1
    house.assert_agreement()


async def test_a_seller_that_does_not_answer_holds_nothing(house: House) -> None:
    row = await waiting(house)
    house.provider.fail("list_offers", Fault.DOWN)
    with pytest.raises(ProviderUnavailable, match="as before"):
        await house.early_holding.hold(ALICE, row.reservation_id)
    (left,) = house.rows()
    assert (left.state, left.start) == (S.SCHEDULED, NOON + 4 * HOUR)


async def test_two_at_once_hold_once(house: House) -> None:
    row = await waiting(house)
    await asyncio.gather(*(house.early_holding.hold(ALICE, row.reservation_id) for _ in range(3)))
    assert len(house.provider.ledger) == 1


async def test_what_cannot_be_held_says_why(house: House) -> None:
    row = await waiting(house)
    spot = replace(an_offer("spot"), tier=Tier.SPOT)
    house.sell(an_offer(), spot, an_offer("w", window=slot_terms(NOON, 24), stock=None))
    later = await house.reservations.reserve_offer(ALICE, "spot", 1, NOON + HOUR, NOON + 2 * HOUR)
    window = await house.reservations.reserve_offer(ALICE, "w", 1, NOON + HOUR, NOON + 3 * HOUR)
    for name, why in (
        (later.reservation_id, "spot capacity back"),
        (window.reservation_id, "only what is ordered"),
    ):
        for call in (house.early_holding.hold, house.early_holding.quote):
            with pytest.raises(Conflict, match=why):
                await call(ALICE, name)
    with pytest.raises(NotPermitted):
        await house.early_holding.hold(READER, row.reservation_id)
    with pytest.raises(NotFound):
        await house.early_holding.hold(BOB, row.reservation_id)
    await house.reservations.release(ALICE, row.reservation_id)
    with pytest.raises(Conflict, match="only what is ordered at its start"):
        await house.early_holding.hold(ALICE, row.reservation_id)


async def test_the_stock_of_the_time_before_is_taken_in_turn(house: House) -> None:
    house.sell(an_offer(stock=2))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2, NOON + 4 * HOUR, NOON + 6 * HOUR)
    await house.reservations.reserve_offer(BOB, "o-1", 1, NOON + HOUR, NOON + 2 * HOUR)
    with pytest.raises(Conflict, match="2 nodes were requested, 1 left"):
        await house.early_holding.hold(ALICE, row.reservation_id)
    assert house.provider.ledger == []


async def test_it_is_held_to_quotas_caps_and_the_sellers_that_are_ordered_from() -> None:
    house = House(quotas=QuotaGate((Quota("fake", nodes=1),)))
    row = await waiting(house)
    await house.reservations.reserve_offer(BOB, "o-1", 1, NOON + HOUR, NOON + 2 * HOUR)
    with pytest.raises(OverQuota):
        await house.early_holding.hold(ALICE, row.reservation_id)
    caps = SpendingCaps(SpendingCap(usd_per_day=Decimal(60)))
    house = House(orders=OrderGate(caps=caps))
    row = await waiting(house)
    with pytest.raises(OverCap) as refused:
        await house.early_holding.hold(ALICE, row.reservation_id)
    assert refused.value.problems[0].pointer == "/start"
    house.orders = OrderGate(OrderRules(Orders.OFF))
    house.restart()
    with pytest.raises(OrdersBarred):
        await house.early_holding.hold(ALICE, row.reservation_id)
    assert house.provider.ledger == []
    assert [one.start for one in house.rows()] == [NOON + 4 * HOUR]


@dataclass
class Budgets:
    """Budgets that hold so far, with nothing left for an early hold; ``asked`` is what holding would add."""

    asked: list[Decimal] = field(default_factory=list)

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_hold(self, record: PlanRecord, plan: Plan, held: Plan) -> tuple[str, ...]:
        self.asked.append(held.cost_usd - plan.cost_usd)
        return ("over by $1.00",)

    async def find_overruns_of_exchange(
        self, leaving: list[Reservation], wanted: list[Reservation], adds: str
    ) -> tuple[str, ...]:
        self.asked.append(Decimal((leaving[0].start - wanted[0].start) / HOUR))
        return (f"over by $1.00: {adds}",)


async def test_budgets_are_asked_for_what_holding_adds(house: House) -> None:
    row, plan, budgets = await waiting(house), sold(house), Budgets()
    watch = cast("BudgetWatch", budgets)
    early = EarlyHoldingService(*house.parts(), watch)
    with pytest.raises(OverBudget, match="holding it now: leave it to be ordered at its start"):
        await early.hold(ALICE, row.reservation_id)
    reserving = ReservationsService(*house.parts(), budgets=watch)
    with pytest.raises(OverBudget, match="order it at its start") as refused:
        await reserving.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
    assert refused.value.problems[0].pointer == "/hold"
    assert budgets.asked[1:] == [Decimal(152)]
    assert round(budgets.asked[0]) == 4
    assert house.provider.ledger == []
    await reserving.reserve_plan(ALICE, plan.plan_id)


async def test_the_budget_of_the_document_counts_what_holding_adds(house: House) -> None:
    plan = sold(house)
    request = replace(house.request, budget_usd=plan.cost_usd + 151)
    service = ReservationsService(*house.parts(), read_request=lambda document: request)
    with pytest.raises(OverBudget, match="if it is held now"):
        await service.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
    request = replace(request, budget_usd=plan.cost_usd + 152)
    await service.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
