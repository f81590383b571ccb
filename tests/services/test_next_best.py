import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import cast

import pytest

from broker.domain.basics.errors import CredentialsRejected, InsufficientCapacity
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.planning.plan import Obstacle, Plan, Unplaced
from broker.domain.planning.plan_turns import Turn, TurnClass
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.ports.planning import BudgetWatch, PlanOptions
from broker.services.holding.fallback_offer import FallbackRules
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ALICE,
    a_placement,
    a_plan,
    a_record,
    a_request,
    a_segment,
    an_offer,
    listed_terms,
    plan_on_cheapest,
    refuse_to_plan,
    slot_terms,
)
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

S = ReservationState


def sold(house: House, *others: Offer) -> Plan:
    """A run of ten hours on ``run`` and a service of two days on ``fleet``, with other offers beside."""
    run, fleet = an_offer("run", "10", stock=2), an_offer("fleet", "9", stock=1)
    house.sell(run, fleet, *others)
    plan = a_plan(
        a_placement(run, [a_segment(0, 10)]),
        a_placement(fleet, [a_segment(0, 48)], "chat", WorkloadKind.SERVING),
    )
    house.store_plan(plan)
    return plan


def planning_house() -> House:
    return House(plan_call=plan_on_cheapest)


async def test_the_exchange_is_in_the_trail_and_the_refused_row_has_failed() -> None:
    house = planning_house()
    sold(house, an_offer("next", "10.1"))
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    by_work = {row.workload: row.offer.offer_id for row in rows}
    assert by_work == {"train": "next", "chat": "fleet"}
    assert sorted(house.states()) == sorted([S.FAILED, S.ACTIVE, S.ACTIVE])
    (line,) = [entry for entry in house.tables.audit if "in place of" in entry.detail]
    assert "$101.00 instead of $100.00" in line.detail
    house.assert_agreement()


@dataclass
class OverByADollar:
    """Budgets in which nothing is left for an exchange; ``asked`` is what it would release and buy."""

    asked: list[tuple[list[str], list[tuple[str, str | None]]]] = field(default_factory=list)

    async def find_overruns_of_exchange(
        self, leaving: Sequence[Reservation], wanted: Sequence[Reservation], adds: str
    ) -> tuple[str, ...]:
        gone = [row.offer.offer_id for row in leaving]
        self.asked.append((gone, [(row.offer.offer_id, row.plan_id) for row in wanted]))
        return (f"over by $1.00: {adds} adds $1.00",)


@pytest.mark.parametrize("is_approved", [False, True])
async def test_an_exchange_that_would_exceed_a_budget_is_not_made_unless_finance_approved_the_plan(
    is_approved: bool,
) -> None:
    budgets = OverByADollar()
    house = House(plan_call=plan_on_cheapest, budgets=cast("BudgetWatch", budgets))
    plan = sold(house, an_offer("next", "10.1"))
    if is_approved:
        record = replace(a_record(plan), approved_by="key-finance", approved_at=NOON)
        house.tables.plans[plan.plan_id] = record
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY)
    if is_approved:
        rows = await house.reservations.reserve_plan(ALICE, "plan-1")
        assert {row.offer.offer_id for row in rows} == {"next", "fleet"}
        assert budgets.asked == []
        return
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert budgets.asked == [(["run"], [("next", "plan-1")])]
    assert house.provider.open_instances() == []


async def test_dearer_than_the_tolerance_is_given_back() -> None:
    house = planning_house()
    sold(house, an_offer("next", "10.3"))
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity, match=r"cost \$9\.00 \(rsv-\w+ \$9\.00\)") as caught:
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert caught.value.facts["cost_usd"] == "9.00"
    assert caught.value.facts["still_ending"] == []
    assert house.provider.open_instances() == []
    (line,) = [entry for entry in house.tables.audit if entry.action == "plan.given_back"]
    assert (line.object_id, "cost $9.00" in line.detail) == ("plan-1", True)


async def test_after_three_refusals_it_is_given_back() -> None:
    house = planning_house()
    sold(house, *(an_offer(f"next-{n}", "10") for n in range(6)))
    house.provider.fail("reserve", Fault.NONE, *[Fault.NO_CAPACITY] * 9)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.provider.calls.count("reserve") == 5
    assert house.provider.open_instances() == []


async def test_another_attempt_starts_with_a_clean_sheet() -> None:
    house = planning_house()
    sold(house, an_offer("next", "10.1"))
    house.provider.fail("reserve", Fault.NONE, *[Fault.NO_CAPACITY] * 2)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    house.clock.advance(minutes=1)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert {row.offer.offer_id for row in rows} == {"run", "fleet"}
    house.assert_agreement()


def leaves_out(request: PlanRequest, offers: tuple[Offer, ...], as_of: object, options: PlanOptions) -> Plan:
    return a_plan(unplaced=(Unplaced("train", Obstacle.STOCK, "more stock"),))


@pytest.mark.parametrize("planner", [leaves_out, refuse_to_plan])
async def test_no_other_way_is_no_exchange(planner: object) -> None:
    house = House(plan_call=planner)  # type: ignore[arg-type]
    sold(house)
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity, match="no stock"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.provider.ledger == []


async def test_the_workload_alone_is_planned_with_the_rest_of_the_budget() -> None:
    seen: list[tuple[PlanRequest, tuple[Offer, ...]]] = []

    def watching(request: PlanRequest, offers: tuple[Offer, ...], as_of: object, options: object) -> Plan:
        seen.append((request, offers))
        return a_plan(unplaced=(Unplaced("train", Obstacle.STOCK, "more stock"),))

    house = House(plan_call=watching, request=a_request(budget="600"))
    sold(house, an_offer("next", "10.1"))
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    ((request, offers),) = seen
    assert [workload.name for workload in request.workloads] == ["chat"]
    assert request.budget_usd == Decimal(500)
    assert {offer.offer_id: offer.stock.nodes for offer in offers} == {"run": 1, "next": 100}


@pytest.mark.parametrize(("longest_wait_s", "held"), [(600.0, {"next", "fleet"}), (0.0, set())])
async def test_the_patience_begins_with_the_turn_and_the_wait_has_a_bound(
    longest_wait_s: float, held: set[str]
) -> None:
    house = House(
        plan_call=plan_on_cheapest,
        next_best_rules=FallbackRules(patience_s=1.0, longest_wait_s=longest_wait_s),
    )
    sold(house, an_offer("next", "10.1"))
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY)
    async with house.queue.place(Turn("research", TurnClass.INTERACTIVE)):
        reserving = asyncio.create_task(house.reservations.reserve_plan(ALICE, "plan-1"))
        await asyncio.wait((reserving,), timeout=1.5 if held else 60)
        assert reserving.done() is not bool(held)
    with nullcontext() if held else pytest.raises(InsufficientCapacity):
        await reserving
    assert {row.offer.offer_id for row in house.rows() if row.is_open} == held


async def test_the_reconciler_takes_it_too_after_a_crash() -> None:
    house = planning_house()
    sold(house, an_offer("next", "10.1"))
    house.provider.fail("reserve", Fault.CRASH, Fault.NO_CAPACITY)
    with pytest.raises(Crash):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    house.restart()
    await house.settle(6)
    held = {row.offer.offer_id for row in house.rows() if row.is_open}
    assert held == {"fleet", "next"}
    house.assert_agreement()


async def test_what_is_bought_dear_stays_and_the_rest_is_given_back() -> None:
    """A block of the same workload cannot be left, so no other way may leave it out."""
    house = planning_house()
    block = an_offer("block", "40", window=listed_terms(NOON + timedelta(hours=1), 24, 1), upfront="960")
    step = replace(an_offer("step", "10"), min_hours=0.0)
    house.sell(step, block, an_offer("next", "1"))
    house.store_plan(a_plan(a_placement(step, [a_segment(0, 10)]), a_placement(block, [a_segment(1, 25)])))
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert {row.offer.offer_id for row in rows} == {"next"}, "the step was cheap to leave, the block unbought"
    assert house.provider.ledger[0].released_at is not None
    house.assert_agreement()


async def test_a_rejected_key_shuts_the_whole_provider() -> None:
    house = planning_house()
    sold(house, an_offer("next", "10.1"))

    async def reject(order: object) -> object:
        raise CredentialsRejected("fake", "key revoked")

    house.provider.reserve = reject  # type: ignore[method-assign, assignment]
    with pytest.raises(CredentialsRejected, match="key revoked"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.rows()[-1].offer.offer_id in {"run", "fleet"}


async def test_an_until_window_that_begins_at_once_cannot_be_left_and_is_bought_last() -> None:
    house = planning_house()
    until = CancelRule.UNTIL
    late = an_offer("late", "20", window=slot_terms(NOON, 48, cancel=until), stock=None)
    now = an_offer("now", "20", window=slot_terms(NOON, 48, cancel=until), stock=None)
    house.sell(late, now, an_offer("fleet", "9"))
    house.store_plan(
        a_plan(
            a_placement(now, [a_segment(0, 4)], "a"),
            a_placement(late, [a_segment(2, 6)], "b"),
            a_placement(an_offer("fleet", "9"), [a_segment(0, 4)], "c"),
        )
    )
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert [i.sku for i in house.provider.ledger] == ["sku-late", "sku-fleet", "sku-now"]
