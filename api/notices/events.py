"""Progress of running plans, kept in this process and streamed to listeners."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

FINAL_STATES = frozenset({"done", "failed", "cancelled"})
REMEMBERED_PLANS = 1000


class PlanEvents:
    """An in-process ``broker.ports.planning.EventStream``: the last event of each plan, and queues of
    listeners.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[str, dict[str, object]] = OrderedDict()
        self._queues: defaultdict[str, list[asyncio.Queue[dict[str, object] | None]]] = defaultdict(list)
        self._is_closed = False

    def publish(self, plan_id: str, event: dict[str, object]) -> None:
        """Stores ``event`` as the last of its plan and passes it to every listener."""
        self._last[plan_id] = event
        self._last.move_to_end(plan_id)
        while len(self._last) > REMEMBERED_PLANS:
            self._last.popitem(last=False)
        for queue in self._queues.get(plan_id, ()):
            queue.put_nowait(event)

    def last(self, plan_id: str) -> Mapping[str, object]:
        """The last event of a plan; empty if there is none."""
        return self._last.get(plan_id, {})

    def close(self) -> None:
        """Ends every stream. The plans go on, or are resumed at the next start."""
        self._is_closed = True
        for queues in self._queues.values():
            for queue in queues:
                queue.put_nowait(None)

    async def listen(self, plan_id: str) -> AsyncIterator[dict[str, object]]:
        """The last event, then each new one; ends after a final state, and with the server."""
        queue: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()
        self._queues[plan_id].append(queue)
        try:
            if plan_id in self._last:
                queue.put_nowait(self._last[plan_id])
            if self._is_closed:
                queue.put_nowait(None)
            while (event := await queue.get()) is not None:
                yield event
                if event.get("state") in FINAL_STATES:
                    return
        finally:
            self._queues[plan_id].remove(queue)
            if not self._queues[plan_id]:
                del self._queues[plan_id]


async def with_pauses(stream: AsyncIterator[T], pause_s: float) -> AsyncIterator[T | None]:
    """The items of ``stream``, and None whenever ``pause_s`` seconds pass without one."""
    coming: asyncio.Future[T | None] = asyncio.ensure_future(anext(stream, None))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=pause_s)
            if not done:
                yield None
                continue
            item = coming.result()
            if item is None:
                return
            yield item
            coming = asyncio.ensure_future(anext(stream, None))
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError):
            await coming
