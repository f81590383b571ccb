"""Plans that are cancelled: in the line, at work, in another process, and in a race with their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, NotFound, NotPermitted
from broker.ports.planning import PlanOptions, PlanRecord, PlanState
from broker.services.market.offers import OffersService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningService
from broker.store import Store, create_store
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ALICE, BOB, READER, a_request, an_offer, anew, plan_on_cheapest
from tests.fakes.notifier import RecordingEvents, RecordingNotifier
from tests.fakes.provider import FakeProvider
from tests.fakes.slots import Slots

LIMIT_S = 60.0


class Broker:
    """Planning of one process, whose planner a test drives."""

    def __init__(self, store: Store, clock: FakeClock, *, can_end: bool = True) -> None:
        self.store, self.clock = store, clock
        self.slots = Slots(can_end=can_end)
        self.queue = PlanQueue(self.slots)
        self.events, self.notifier = RecordingEvents(), RecordingNotifier()
        self.service = PlanningService(
            store.unit_of_work,
            plan_on_cheapest,
            self.queue,
            clock,
            self.notifier,
            self.events,
            read_request=lambda _: a_request(),
            replan_call=anew(plan_on_cheapest),
        )
        self.runs: dict[str, asyncio.Task[PlanRecord]] = {}

    async def ask(self, *, intended: bool = False) -> str:
        record = await self.service.request_plan(ALICE, "{}", a_request(), PlanOptions(), intended=intended)
        self.runs[record.plan_id] = asyncio.create_task(self.service.run(record.plan_id))
        return record.plan_id

    async def ask_several(self, count: int, *, intended: bool = False) -> list[str]:
        """Plans of which the first is at work and the others wait, in their order.

        Each is in its place before the next is asked: a run that must open a connection to read its plan
        enters the line after one that finds a connection open.
        """
        asked = [await self.ask(intended=intended)]
        await self.submitted(asked[0])
        for _ in range(count - 1):
            asked.append(await self.ask(intended=intended))
            await self.in_line(asked[-1])
        return asked

    async def submitted(self, plan_id: str) -> Future[object]:
        """The planner's call, once it is made."""
        async with asyncio.timeout(LIMIT_S):
            while plan_id not in self.slots.names:
                await asyncio.sleep(0.01)
        return self.slots.find(plan_id).future

    async def in_line(self, plan_id: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.queue.position(plan_id) is None:
                await asyncio.sleep(0.01)

    async def ended(self, plan_id: str) -> PlanRecord:
        async with asyncio.timeout(LIMIT_S):
            return await self.runs[plan_id]

    async def state(self, plan_id: str) -> PlanState:
        return (await self.service.find_plan(ALICE, plan_id)).state

    async def actions(self, plan_id: str) -> list[str]:
        async with self.store.unit_of_work(EVERY_TEAM) as uow:
            page = await uow.accounts.find_audit(50, None, object_id=plan_id)
        return [entry.action for entry in reversed(page.items)]


@pytest.fixture
async def broker(store: Store) -> AsyncIterator[Broker]:
    clock = FakeClock()
    provider = FakeProvider(clock, offers=(an_offer("a", "10"),))
    await OffersService(store.unit_of_work, {"fake": provider}, clock).refresh()
    one = Broker(store, clock)
    yield one
    for task in one.runs.values():
        task.cancel()
    await asyncio.gather(*one.runs.values(), return_exceptions=True)


async def test_a_plan_that_waits_leaves_the_line(broker: Broker) -> None:
    first, second, third = await broker.ask_several(3)
    cancelled = await broker.service.cancel(ALICE, second)
    assert (cancelled.state, cancelled.plan, cancelled.problem) == (PlanState.CANCELLED, None, None)
    assert await broker.ended(second) == cancelled
    assert broker.queue.position(third) == 1
    broker.slots.end(first)
    await broker.submitted(third)
    await broker.ended(first)
    assert broker.slots.names == [first, third]
    assert await broker.actions(second) == ["plan.request", "plan.cancelled"]
    assert broker.events.states(second) == ["queued", "cancelled"]
    assert broker.notifier.events() == ["plan.cancelled", "plan.done"]


async def test_an_intention_passes_when_the_later_plan_is_made(broker: Broker) -> None:
    async def is_intended(plan_id: str) -> bool:
        return (await broker.service.find_plan(ALICE, plan_id)).is_intended

    draft, cancelled, made = await broker.ask_several(3, intended=True)
    broker.slots.end(draft)
    assert (await broker.ended(draft)).is_intended
    await broker.submitted(cancelled)
    await broker.service.cancel(ALICE, cancelled)
    await broker.ended(cancelled)
    assert await is_intended(draft)
    await broker.submitted(made)
    assert await is_intended(draft)
    broker.slots.end(made)
    assert (await broker.ended(made)).is_intended
    assert not await is_intended(draft)


async def test_a_plan_at_work_is_ended_and_frees_its_slot(broker: Broker) -> None:
    first, second = await broker.ask_several(2)
    future = await broker.submitted(first)
    assert await broker.state(first) is PlanState.RUNNING
    await broker.service.cancel(ALICE, first)
    assert (await broker.ended(first)).state is PlanState.CANCELLED
    assert future.cancelled()
    await broker.submitted(second)
    assert await broker.actions(first) == ["plan.request", "plan.run", "plan.cancelled"]


async def test_cancelling_twice_is_once_and_what_is_made_stays(broker: Broker) -> None:
    plan_id = await broker.ask()
    await broker.submitted(plan_id)
    once = await broker.service.cancel(ALICE, plan_id)
    assert await broker.service.cancel(ALICE, plan_id) == once
    assert (await broker.actions(plan_id)).count("plan.cancelled") == 1
    made = await broker.ask()
    await broker.submitted(made)
    broker.slots.end(made)
    await broker.ended(made)
    with pytest.raises(Conflict, match=f"plan {made} is done: only one that is queued or running"):
        await broker.service.cancel(ALICE, made)
    assert await broker.state(made) is PlanState.DONE


async def test_who_may_not_see_or_plan_cancels_nothing(broker: Broker) -> None:
    plan_id = await broker.ask()
    await broker.submitted(plan_id)
    with pytest.raises(NotFound):
        await broker.service.cancel(BOB, plan_id)
    with pytest.raises(NotPermitted):
        await broker.service.cancel(READER, plan_id)
    assert await broker.state(plan_id) is PlanState.RUNNING


async def test_a_plan_of_another_process_is_ended_there(broker: Broker, database_url: str) -> None:
    """On PostgreSQL by a process with a connection of its own; a SQLite file has one process."""
    elsewhere = broker.store if database_url.startswith("sqlite") else create_store(database_url)
    try:
        other = Broker(elsewhere, broker.clock)
        first, second = await broker.ask_several(2)
        future = await broker.submitted(first)
        seen = await other.service.find_plan(ALICE, second)
        assert (await other.service.find_whereabouts([seen]))[second].position == 1
        for plan_id in (first, second):
            assert (await other.service.cancel(ALICE, plan_id)).state is PlanState.CANCELLED
        assert not future.done()
        await broker.service.end_cancelled()
        assert {(await broker.ended(plan_id)).state for plan_id in (first, second)} == {PlanState.CANCELLED}
        assert future.cancelled()
        assert broker.slots.names == [first]
    finally:
        if elsewhere is not broker.store:
            await elsewhere.close()


async def test_a_plan_that_is_made_as_it_is_cancelled_elsewhere_stays_cancelled(broker: Broker) -> None:
    other = Broker(broker.store, broker.clock)
    plan_id = await broker.ask()
    await broker.submitted(plan_id)
    await other.service.cancel(ALICE, plan_id)
    broker.slots.end(plan_id)
    assert (await broker.ended(plan_id)).state is PlanState.CANCELLED
    assert await broker.state(plan_id) is PlanState.CANCELLED
    assert "plan.done" not in await broker.actions(plan_id)
    assert broker.notifier.events() == []


async def test_a_cancelled_plan_is_not_taken_up_after_a_crash(broker: Broker) -> None:
    first, second = await broker.ask_several(2)
    other = Broker(broker.store, broker.clock)
    await other.service.cancel(ALICE, first)
    assert await other.service.claim_left_over() == (second,)


async def test_where_plans_are_is_told(broker: Broker) -> None:
    first, second, third = await broker.ask_several(3)
    records = [await broker.service.find_plan(ALICE, one) for one in (first, second, third)]
    places = await broker.service.find_whereabouts(records)
    assert (places[first].position, places[first].phase) == (None, "planning")
    assert [places[one].position for one in (second, third)] == [1, 2]
    broker.events.publish(first, {"state": "running", "stage": "improving"})
    assert (await broker.service.find_whereabouts(records[:1]))[first].phase == "improving"
