"""The queue of calls to the planner, with fair turns between teams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from broker.domain.planning.plan_turns import Served, Turn, TurnClass, next_turn, starting_order
from broker.ports.unit_of_work import Executor

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Call:
    """A waiting or running call. ``future``: its future in the executor, once it was submitted."""

    turn: Turn
    granted: asyncio.Future[None]
    future: Future[Any] | None = None


class Place:
    """A slot of the executor that a caller holds."""

    def __init__(self, executor: Executor, call: _Call) -> None:
        self._executor = executor
        self._call = call

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """The result of ``fn``. Cancelling this task cancels the call. A place runs only one call."""
        future: Future[T] = self._executor.submit(fn, *args)
        self._call.future = future
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.cancel()
            raise


class PlanQueue:
    """Assigns the slots of an executor by turns (see ``plan_turns``); for one event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._numbers = count(1)
        self._waiting: dict[int, _Call] = {}
        self._running: dict[int, _Call] = {}
        self._served = Served()
        self._positions: Mapping[str, int] | None = None

    def draw_number(self) -> int:
        """A ``sequence`` for a caller that arrives now and enters the queue later."""
        return next(self._numbers)

    async def run(self, turn: Turn, fn: Callable[..., T], *args: Any) -> T:
        """Waits for its turn, then returns the result of ``fn``. Cancelling it leaves the queue."""
        async with self.place(turn) as place:
            return await place.run(fn, *args)

    @asynccontextmanager
    async def place(self, turn: Turn) -> AsyncIterator[Place]:
        """Waits for a slot and holds it; a call that cannot be cancelled keeps it until it ends."""
        numbered = turn if turn.sequence else replace(turn, sequence=self.draw_number())
        call = _Call(numbered, asyncio.get_running_loop().create_future())
        self._waiting[numbered.sequence] = call
        self._start()
        try:
            await call.granted
            yield Place(self._executor, call)
        finally:
            self._leave(call)

    def position(self, plan_id: str) -> int | None:
        """Position of a plan in the queue, from 1; None if it does not wait in this process."""
        if self._positions is None:
            order = starting_order(
                (call.turn for call in self._waiting.values()),
                (call.turn for call in self._running.values()),
                self._slots,
                self._served,
            )
            self._positions = {turn.plan_id: place for place, turn in enumerate(order, 1) if turn.plan_id}
        return self._positions.get(plan_id)

    def waiting(self) -> Mapping[TurnClass, int]:
        """Number of waiting calls by class."""
        return Counter(call.turn.kind for call in self._waiting.values())

    def running(self) -> Mapping[TurnClass, int]:
        """Number of running calls by class."""
        return Counter(call.turn.kind for call in self._running.values())

    @property
    def _slots(self) -> int:
        return max(1, self._executor.workers)

    def _start(self) -> None:
        """Assigns all free slots."""
        self._positions = None
        slots = self._slots if self._waiting else 0
        while True:
            # Cancelled calls are about to leave the queue.
            waiting = [call.turn for call in self._waiting.values() if not call.granted.done()]
            running = [call.turn for call in self._running.values()]
            found = next_turn(waiting, running, slots, self._served)
            if found is None:
                return
            turn, self._served = found
            call = self._running[turn.sequence] = self._waiting.pop(turn.sequence)
            call.granted.set_result(None)

    def _leave(self, call: _Call) -> None:
        self._waiting.pop(call.turn.sequence, None)
        if call.future is None or call.future.done():
            self._free(call)
        else:
            loop = asyncio.get_running_loop()
            call.future.add_done_callback(partial(self._ended, call, loop))

    def _ended(self, call: _Call, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        """Runs in the thread in which the executor ends the call."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._free, call)

    def _free(self, call: _Call) -> None:
        self._running.pop(call.turn.sequence, None)
        self._start()
