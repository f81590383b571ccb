"""A fleet that follows its traffic buys most of its nodes later, and their seller may then have none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.planning.planning_call import plan_call
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InsufficientCapacity, OrderRejected, PriceAboveLimit
from broker.domain.holding.back_off import ORDERS, RELEASES
from broker.domain.holding.reservation import Lease, Order, Reservation, ReservationState
from broker.domain.market.offer import HostKind, Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.shortfalls import find_shortfalls
from broker.ports.planning import PlanOptions
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, an_offer
from tests.fakes.provider import Fault
from tests.services.conftest import House

S = ReservationState
CHAT = """
team: research
horizon: {{start: 2026-11-23T12:00:00Z, days: 1}}
workloads:
  - name: chat
    kind: serving
    model: Llama-3.1-8B
    traffic: {{peak_requests_per_s: 60, input_tokens: 1500, output_tokens: 300, shape: diurnal,
              trough_share: 0.3, peak_hour_utc: 18}}
    slo: {{ttft_p95_ms: 1000, itl_p95_ms: 60}}
    {more}
"""


def a_gpu(offer_id: str, price: str, place: str = "") -> Offer:
    """One GPU of a data centre."""
    offer = an_offer(offer_id, price)
    return replace(
        offer, host=HostKind.DATACENTER, sku=replace(offer.sku, gpus_per_node=1), place=place or offer.place
    )


def chat(more: str = "") -> PlanRequest:
    return read_workloads(CHAT.format(more=more), source="test", base=None, now=NOON)


class Refusing:
    """Makes the house's provider refuse some SKUs, and counts how often each was asked for."""

    def __init__(self, house: House, *skus: str, error: type[InsufficientCapacity | OrderRejected]) -> None:
        self.house, self.skus, self.error = house, set(skus), error
        self.asked: list[str] = []
        self.real = house.provider.reserve
        house.provider.reserve = self.reserve  # type: ignore[method-assign]

    async def reserve(self, order: Order) -> Lease:
        self.asked.append(order.offer.sku.name)
        if order.offer.sku.name in self.skus:
            raise self.error("fake", "no stock")
        return await self.real(order)


async def served(
    house: House, *others: Offer, error: type[InsufficientCapacity | OrderRejected] = InsufficientCapacity
) -> Refusing:
    """The day's plan on ``a``, of which only what is needed at noon is bought; then ``a`` is sold out."""
    offers = (a_gpu("a", "2.00"), *others)
    house.sell(*offers)
    plan = plan_call(house.request, (offers[0],), NOON, PlanOptions(time_limit_s=5, baselines=False))
    assert {p.offer_id for p in plan.placements} == {"a"}
    house.store_plan(replace(plan, plan_id="plan-1"))
    await house.reservations.reserve_plan(ALICE, "plan-1")
    return Refusing(house, "sku-a", error=error)


def next_slot(house: House) -> Reservation:
    return min((row for row in house.rows() if row.state is S.SCHEDULED), key=lambda row: row.start)


async def until(house: House, row: Reservation, minutes: float = 0) -> None:
    """Passes of the reconciler every fifteen seconds, the market seen anew, to ``minutes`` after a start."""
    end = row.start + timedelta(minutes=minutes)
    house.clock.advance(seconds=(row.start - timedelta(minutes=1) - house.clock.now()).total_seconds())
    while house.clock.now() <= end:
        for offer in tuple(house.tables.offers.values()):
            house.set_time(offer, house.clock.now())
        await house.reconcile.run_once()
        house.clock.advance(seconds=15)


def planning_house(more: str = "") -> House:
    return House(plan_call=plan_call, request=chat(more))


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
async def test_a_slot_that_is_refused_is_bought_elsewhere_within_the_tolerance(confidence: float) -> None:
    house = planning_house(f"confidence: {confidence}")
    await served(house, a_gpu("b", "2.03"), a_gpu("dear", "2.50"))
    slot = next_slot(house)
    before = len(house.provider.open_instances())
    await until(house, slot, minutes=2)
    bought = house.provider.open_instances()[before:]
    assert [(i.sku, i.nodes) for i in bought] == [("sku-b", 1)] * slot.nodes
    (row,) = [r for r in house.rows() if r.offer.offer_id == "b"]
    assert (row.state, row.workload, row.end) == (S.ACTIVE, "chat", slot.end)
    assert find_shortfalls(house.rows(), house.clock.now()) == ()
    house.assert_agreement()


async def test_only_the_gap_is_exchanged_and_the_rest_of_the_fleet_stays() -> None:
    house = planning_house()
    await served(house, a_gpu("b", "2.03"))
    slot = next_slot(house)
    stays = {r.reservation_id: r.state for r in house.rows() if r.reservation_id != slot.reservation_id}
    await until(house, slot, minutes=2)
    assert {key: house.tables.reservations[key].state for key in stays} == stays


async def test_what_costs_more_than_the_tolerance_is_not_bought_and_is_told_once() -> None:
    house = planning_house()
    refusing = await served(house, a_gpu("dear", "2.50"))
    slot = next_slot(house)
    held = sum(r.nodes for r in house.rows() if r.state is S.ACTIVE)
    await until(house, slot, minutes=60)
    row = house.tables.reservations[slot.reservation_id]
    assert (row.state, row.tries) == (S.SCHEDULED, refusing.asked.count("sku-a"))
    lines = [entry for entry in house.tables.audit if entry.object_id == slot.reservation_id]
    counted = [
        sum(line.action == f"reservation.{word}" for line in lines) for word in ("order", "refused", "short")
    ]
    assert counted == [1, 1, 1]
    (told,) = [entry for entry in lines if entry.action == "reservation.short"]
    assert told.detail.startswith(
        f"chat is short of {slot.nodes} of {held + slot.nodes} nodes from 23 Nov {slot.start:%H:%M} UTC to "
    )
    assert "refused at fake (no stock); nothing else was found within the price tolerance" in told.detail
    assert house.notifier.events().count("reservation.short") == 1


async def test_tries_are_ever_further_apart_also_over_restarts() -> None:
    house = planning_house()
    refusing = await served(house)
    slot = next_slot(house)
    times = []
    house.clock.advance(seconds=(slot.start - house.clock.now()).total_seconds())
    for _ in range(4 * 90):
        house.restart()
        before = len(refusing.asked)
        await house.reconcile.run_once()
        times += [house.clock.now()] * (len(refusing.asked) - before)
        house.clock.advance(seconds=15)
    waits = [(later - sooner).total_seconds() for sooner, later in pairwise(times)]
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900, 900]


async def test_an_order_that_is_rejected_is_not_asked_for_at_every_pass_either() -> None:
    house = planning_house()
    refusing = await served(house, error=OrderRejected)
    slot = next_slot(house)
    await until(house, slot, minutes=10)
    assert refusing.asked.count("sku-a") == 5, "at 0, 0:30, 1:30, 3:30 and 7:30 minutes"


async def test_what_is_sold_out_is_handed_to_whoever_looks_at_plans_again() -> None:
    house = planning_house()
    await served(house)
    slot = next_slot(house)
    house.clock.advance(seconds=(slot.start - house.clock.now()).total_seconds())
    report = await house.reconcile.run_once()
    assert [change.offer_id for change in report.sold_out] == ["a"]
    house.clock.advance(seconds=30)
    assert (await house.reconcile.run_once()).sold_out == (), "the same news is no news"


async def test_capacity_that_comes_back_ends_the_shortfall() -> None:
    house = planning_house()
    refusing = await served(house)
    slot = next_slot(house)
    await until(house, slot, minutes=1)
    short = find_shortfalls(house.rows(), house.clock.now())
    assert {s.nodes_short for s in short} == {slot.nodes}, (
        "whatever else of the fleet begins or ends meanwhile"
    )
    refusing.skus.clear()
    await house.settle(2)
    row = house.tables.reservations[slot.reservation_id]
    assert (row.state, row.tries, row.reason) == (S.ACTIVE, 0, "")
    assert find_shortfalls(house.rows(), house.clock.now()) == ()
    house.assert_agreement()


async def test_a_fleet_in_two_zones_is_not_put_into_one() -> None:
    """The only offer in tolerance stands where another part of the fleet does."""
    house = planning_house("redundancy: {zones: 2}")
    offers = a_gpu("a", "2.00", "north"), a_gpu("b", "2.01", "south")
    house.sell(*offers)
    plan: Plan = plan_call(house.request, offers, NOON, PlanOptions(time_limit_s=5, baselines=False))
    house.store_plan(replace(plan, plan_id="plan-1"))
    await house.reservations.reserve_plan(ALICE, "plan-1")
    slot = next_slot(house)
    beside = next(o for o in offers if o.offer_id != slot.offer.offer_id)
    Refusing(house, slot.offer.sku.name, error=InsufficientCapacity)
    house.sell(a_gpu("twin", "2.00", beside.place))
    await until(house, slot, minutes=1)
    assert [r.offer.offer_id for r in house.rows() if r.offer.offer_id == "twin"] == []
    house.sell(a_gpu("here", "2.00", slot.offer.place))
    await until(house, slot, minutes=3)
    assert [r.nodes for r in house.rows() if r.offer.offer_id == "here"] == [slot.nodes]


async def test_what_has_no_end_is_given_up_after_a_day(house: House) -> None:
    house.sell(an_offer())
    await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON + timedelta(hours=1))
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 1000)
    house.clock.advance(hours=1)
    for _ in range(4 * 26):
        await house.reconcile.run_once()
        house.clock.advance(minutes=15)
    assert house.states() == [S.FAILED]
    assert 90 <= house.provider.calls.count("reserve") <= 100, "every quarter of an hour, for a day"


async def test_a_release_that_its_seller_refuses_says_so_with_what_it_costs(house: House) -> None:
    house.sell(an_offer(price="2.906"))
    house.provider.per_order, house.provider.price_factor = None, Decimal(2)
    most = Decimal("5.812")
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2, most_usd_per_node_hour=most)
    house.provider.fail("release", *[Fault.DOWN] * 5)
    await house.reservations.release(ALICE, row.reservation_id)
    for _ in range(10):
        house.clock.advance(seconds=15)
        await house.reconcile.run_once()
    noted = house.tables.reservations[row.reservation_id]
    assert noted.state is S.RELEASING
    assert noted.reason == (
        f"released by {ALICE.called}; fake refuses to release: down; tried 4 times, "
        "next at 12:04 UTC; until then it bills $11.62 per hour"
    )
    refused = [e.detail for e in house.tables.audit if e.action == "reservation.release_refused"]
    assert len(refused) == 1
    assert "fake refuses to release: down" in refused[0]
    await house.settle(4)
    assert house.states() == [S.RELEASED]
    assert house.rows()[0].reason == f"released by {ALICE.called}; the provider accepted the release"
    house.assert_agreement()


async def test_why_a_dear_lease_was_given_back_outlives_a_refused_release(house: House) -> None:
    house.sell(an_offer(price="1"))
    house.provider.price_factor, house.provider.quoted_usd = Decimal(3), Decimal(1)
    house.provider.fail("release", *[Fault.DOWN] * 5)
    with pytest.raises(PriceAboveLimit):
        await house.reservations.reserve_offer(ALICE, "o-1", 1, most_usd_per_node_hour=Decimal("1.05"))
    await house.settle(8)
    assert house.states() == [S.RELEASED]
    assert house.rows()[0].reason == (
        "fake: charges $3.00 per node-hour; the limit was $1.05, 5.0% above the $1.00 of the offer; "
        "the provider accepted the release"
    )


@given(st.integers(1, 10_000))
def test_waits_grow_to_their_limit_and_never_shrink(tries: int) -> None:
    for waits in (ORDERS, RELEASES):
        assert waits.first <= waits.after(tries) <= waits.after(tries + 1) <= waits.longest
