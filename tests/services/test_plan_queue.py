"""The line in front of the planner: turns, places in the line, and what a call that is given up leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from broker.domain.planning.plan_turns import Turn, TurnClass
from broker.services.planning.plan_queue import PlanQueue
from tests.fakes.slots import Slots

SMALL, LARGE = TurnClass.INTERACTIVE, TurnClass.LARGE


def plan(name: str) -> str:
    if name == "fault":
        raise ZeroDivisionError
    return name


class Line:
    """A queue over an executor that a test drives; calls are named."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.queue = PlanQueue(slots)
        self.calls: dict[str, asyncio.Task[str]] = {}

    async def ask(self, name: str, team: str = "research", kind: TurnClass = SMALL) -> asyncio.Task[str]:
        task = asyncio.ensure_future(self.queue.run(Turn(team, kind, name), plan, name))
        self.calls[name] = task
        await self.settled()
        return task

    async def settled(self) -> None:
        """Everything that can go on without the executor has."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self.slots.end(name)
        await self.settled()

    async def give_up(self, name: str) -> None:
        self.calls[name].cancel()
        await self.settled()


@pytest.fixture
def line() -> Line:
    return Line(Slots())


async def test_calls_run_one_after_the_other_in_turns(line: Line) -> None:
    for name in ("a1", "a2", "a3"):
        await line.ask(name, "research")
    await line.ask("b1", "product")
    assert line.slots.names == ["a1"]
    assert [line.queue.position(name) for name in ("a1", "b1", "a2", "a3")] == [None, 1, 2, 3]
    assert (line.queue.waiting(), line.queue.running()) == ({SMALL: 3}, {SMALL: 1})
    for name in ("a1", "b1", "a2", "a3"):
        await line.end(name)
        assert await line.calls[name] == name
    assert line.slots.names == ["a1", "b1", "a2", "a3"]
    assert (line.queue.waiting(), line.queue.running()) == ({}, {})


async def test_a_small_call_does_not_wait_for_large_ones_where_there_are_two_slots() -> None:
    line = Line(Slots(workers=2))
    for n in range(3):
        await line.ask(f"large{n}", kind=LARGE)
    await line.ask("small", "product")
    assert line.slots.names == ["large0", "small"]
    await line.end("small")
    assert line.slots.names == ["large0", "small"]
    assert line.queue.position("large1") == 1
    await line.end("large0")
    assert line.slots.names[2:] == ["large1"]


async def test_who_is_given_up_leaves_the_line(line: Line) -> None:
    for name in ("first", "second", "third"):
        await line.ask(name)
    await line.give_up("second")
    assert line.calls["second"].cancelled()
    assert line.queue.position("third") == 1
    await line.end("first")
    assert line.slots.names == ["first", "third"]


async def test_who_is_given_up_at_work_ends_the_call_and_frees_the_slot(line: Line) -> None:
    await line.ask("first")
    await line.ask("second")
    await line.give_up("first")
    assert line.slots.find("first").future.cancelled()
    assert line.slots.names == ["first", "second"]


async def test_a_call_that_cannot_be_ended_keeps_its_slot() -> None:
    line = Line(Slots(can_end=False))
    await line.ask("first")
    await line.ask("second")
    await line.give_up("first")
    assert line.calls["first"].cancelled()
    assert line.slots.names == ["first"]
    await line.end("first")
    assert line.slots.names == ["first", "second"]


async def test_who_is_given_up_as_its_turn_comes_passes_it_on(line: Line) -> None:
    for name in ("first", "second", "third"):
        await line.ask(name)
    for name in ("first", "second"):  # the second is on its way out as the first frees its slot
        line.calls[name].cancel()
    await line.settled()
    assert [line.calls[name].cancelled() for name in ("first", "second")] == [True, True]
    assert line.slots.names[-1] == "third"
    await line.end("third")
    assert line.queue.running() == {}


async def test_a_call_that_fails_frees_its_slot(line: Line) -> None:
    failing = await line.ask("fault")
    await line.ask("second")
    await line.end("fault")
    with pytest.raises(ZeroDivisionError):
        await failing
    assert line.slots.names == ["fault", "second"]


async def test_an_executor_that_takes_nothing_leaves_no_slot_taken() -> None:
    class Closed(Slots):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("closed")

    queue = PlanQueue(Closed())
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await queue.run(Turn("research", SMALL), plan, "x")
    assert queue.running() == {}


async def test_a_place_that_was_not_used_is_given_back(line: Line) -> None:
    async with line.queue.place(Turn("research", SMALL)):
        await line.ask("next")
        assert line.slots.names == []
    await line.settled()
    assert line.slots.names == ["next"]
