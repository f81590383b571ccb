"""One stock for all teams: a plan takes nothing that reserving it would find taken, on both databases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from broker.domain.basics.account import Caller
from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import ReservationState
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, PlanRecord
from broker.services.holding.reservations import ReservationsService
from broker.services.market.offers import OffersService
from broker.services.moving.reoptimize import ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningService
from broker.store import Store
from tests.fakes.buying import a_buyer
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ALICE, BOB, a_request, an_offer, anew, plan_on_cheapest, slot_terms
from tests.fakes.notifier import InlineExecutor, RecordingEvents, RecordingNotifier
from tests.fakes.provider import FakeProvider, Fault

HOUR = timedelta(hours=1)


@dataclass
class Market:
    """Two teams on one store, and what one seller says that it sells."""

    store: Store
    starts_in: timedelta = 2 * HOUR
    seen: tuple[Offer, ...] = ()
    """What the last plan was made of."""

    def __post_init__(self) -> None:
        self.clock, notifier = FakeClock(), RecordingNotifier()
        self.provider = FakeProvider(self.clock)
        uow, reservers = self.store.unit_of_work, {"fake": self.provider}
        queue = PlanQueue(InlineExecutor())
        self.offers = OffersService(uow, {"fake": self.provider}, self.clock)
        self.planning = PlanningService(
            uow,
            self._plan,
            queue,
            self.clock,
            notifier,
            RecordingEvents(),
            read_request=lambda document: self._of(document),
            replan_call=anew(self._plan),
        )
        self.reservations = ReservationsService(
            uow, a_buyer(uow, reservers, self.clock), self.clock, notifier
        )
        self.reoptimize = ReoptimizeService(
            uow,
            anew(plan_on_cheapest),
            queue,
            self.clock,
            notifier,
            read_request=lambda document: self._of(document),
        )

    def _plan(
        self, request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
    ) -> Plan:
        self.seen = offers
        return plan_on_cheapest(request, offers, as_of, options)

    def _of(self, team: str) -> PlanRequest:
        horizon = Window(NOON + self.starts_in, NOON + 40 * HOUR)
        return replace(a_request(serving=False), horizon=horizon, team=team)

    async def sell(self, *offers: Offer) -> None:
        self.provider.offers = tuple(replace(offer, observed_at=self.clock.now()) for offer in offers)
        await self.offers.refresh()

    async def plan(self, caller: Caller) -> PlanRecord:
        record = await self.planning.request_plan(
            caller, caller.team, self._of(caller.team), PlanOptions(), intended=True
        )
        return await self.planning.run(record.plan_id)

    async def planned_on(self, caller: Caller) -> set[str]:
        record = await self.plan(caller)
        return {placement.offer_id for placement in record.plan.placements} if record.plan else set()


def elsewhere(name: str, price: str) -> Offer:
    """One node in another region."""
    return replace(an_offer(name, price, stock=1), region="us-2")


def pooled(name: str, price: str, *, gpus: int) -> Offer:
    """Nodes of eight GPUs out of a hall of so many."""
    return replace(an_offer(name, price), stock=Stock(StockLevel.LOW, gpus // 8, GpuPool("hall", gpus)))


async def test_what_another_team_buys_later_is_in_no_plan_and_the_plan_can_be_reserved(store: Store) -> None:
    market = Market(store)
    await market.sell(an_offer("single", "4", stock=1), elsewhere("dear", "9"))
    assert await market.planned_on(BOB) == {"single"}
    first = await market.plan(ALICE)
    (row,) = await market.reservations.reserve_plan(ALICE, first.plan_id)
    assert (row.state, row.offer.offer_id) == (ReservationState.SCHEDULED, "single")

    second = await market.plan(BOB)
    assert second.plan is not None
    assert {placement.offer_id for placement in second.plan.placements} == {"dear"}
    (other,) = await market.reservations.reserve_plan(BOB, second.plan_id)
    assert other.offer.offer_id == "dear"


@pytest.mark.parametrize(
    ("start", "end", "taken"),
    [
        (NOON + 30 * HOUR, NOON + 50 * HOUR, "dear"),
        (NOON + 30 * HOUR, None, "dear"),
        (NOON + 40 * HOUR, NOON + 50 * HOUR, "single"),
        (NOON + HOUR, NOON + 2 * HOUR, "single"),
    ],
)
async def test_only_what_is_held_within_the_horizon_counts(
    store: Store, start: datetime, end: datetime | None, taken: str
) -> None:
    market = Market(store)
    await market.sell(an_offer("single", "4", stock=1), elsewhere("dear", "9"))
    await market.reservations.reserve_offer(ALICE, "single", 1, start, end)
    assert await market.planned_on(BOB) == {taken}


async def test_other_sizes_of_one_pool_are_counted_together(store: Store) -> None:
    market = Market(store)
    await market.sell(pooled("own", "4", gpus=8), pooled("resold", "5", gpus=8), elsewhere("dear", "9"))
    await market.reservations.reserve_offer(ALICE, "own", 1, NOON + 3 * HOUR, NOON + 4 * HOUR)
    assert await market.planned_on(BOB) == {"dear"}


async def test_what_the_seller_no_longer_counts_is_not_taken_off_twice(store: Store) -> None:
    market = Market(store)
    await market.sell(an_offer("few", "4", stock=2), elsewhere("dear", "9"))
    await market.reservations.reserve_offer(ALICE, "few", 1, None, NOON + 30 * HOUR)
    market.clock.advance(minutes=1)
    await market.sell(an_offer("few", "4", stock=1), elsewhere("dear", "9"))
    assert await market.planned_on(BOB) == {"few"}


async def test_a_look_at_a_plan_keeps_what_it_holds_and_avoids_what_others_hold(store: Store) -> None:
    market = Market(store)
    await market.sell(an_offer("single", "4", stock=1), elsewhere("dear", "9"))
    first = await market.plan(ALICE)
    await market.reservations.reserve_plan(ALICE, first.plan_id)
    second = await market.plan(BOB)
    await market.reservations.reserve_plan(BOB, second.plan_id)
    looks = await market.reoptimize.run("test")
    assert {look.plan_id for look in looks} == {first.plan_id, second.plan_id}
    assert {(look.state.value, look.moves) for look in looks} == {("unchanged", ())}


async def refuse(market: Market) -> None:
    """ALICE's plan takes the cheapest, and its seller refuses the order for lack of capacity."""
    first = await market.plan(ALICE)
    market.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await market.reservations.reserve_plan(ALICE, first.plan_id)


def soon(market: Market) -> Market:
    """The same market for plans that begin at once."""
    market.starts_in = timedelta()
    return market


async def test_what_a_seller_refused_is_in_no_plan_for_ten_minutes_and_the_plan_says_so(store: Store) -> None:
    market = soon(Market(store))
    goods = (an_offer("full", "4", stock=1), elsewhere("dear", "9"))
    await market.sell(*goods)
    await refuse(market)
    again = await market.plan(ALICE)
    assert again.plan is not None
    assert {placement.offer_id for placement in again.plan.placements} == {"dear"}
    assert again.plan.notes == (
        "left out because the seller refused an order for lack of capacity: full until 12:10 UTC; each "
        "returns sooner if its price or stock changes",
    )
    market.clock.advance(minutes=9)
    await market.sell(*goods)
    assert await market.planned_on(BOB) == {"dear"}
    market.clock.advance(minutes=1)
    later = await market.plan(BOB)
    assert later.plan is not None
    assert {placement.offer_id for placement in later.plan.placements} == {"full"}
    assert later.plan.notes == ()


@pytest.mark.parametrize(("price", "stock"), [("4.01", 1), ("4", 2)])
async def test_a_refused_offer_returns_when_its_seller_changes_price_or_stock(
    store: Store, price: str, stock: int
) -> None:
    market = soon(Market(store))
    await market.sell(an_offer("full", "4", stock=1), elsewhere("dear", "9"))
    await refuse(market)
    market.clock.advance(minutes=1)
    await market.sell(an_offer("full", "4", stock=1), elsewhere("dear", "9"))
    assert await market.planned_on(BOB) == {"dear"}
    market.clock.advance(minutes=1)
    await market.sell(an_offer("full", price, stock=stock), elsewhere("dear", "9"))
    assert await market.planned_on(BOB) == {"full"}


async def test_fewer_nodes_than_were_refused_may_be_there(store: Store) -> None:
    market = soon(Market(store))
    await market.sell(an_offer("full", "4", stock=5), elsewhere("dear", "9"))
    market.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await market.reservations.reserve_offer(ALICE, "full", 3)
    assert await market.planned_on(BOB) == {"full"}
    assert {offer.stock.nodes for offer in market.seen if offer.offer_id == "full"} == {2}


async def test_a_window_that_was_refused_is_cut_out_and_told(store: Store) -> None:
    market = Market(store)
    block = an_offer("block", "4", window=slot_terms(NOON + HOUR, 48))
    await market.sell(block, elsewhere("dear", "9"))
    await refuse(market)
    again = await market.plan(ALICE)
    assert again.plan is not None
    assert "block (23 Nov 14:00 to 24 Nov 00:00) until 13:00 UTC" in again.plan.notes[0]
    (left,) = (offer for offer in market.seen if offer.offer_id == "block")
    assert left.window is not None
    assert not any(
        part.window.overlaps(Window(NOON + 2 * HOUR, NOON + 12 * HOUR)) for part in left.window.segments
    )
