"""An event loop in a separate thread, which does not wait for the work of other event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """The thread starts with the first call and ends with ``close``; a later call starts another one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``. Cancelling this task cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        """Ends the thread, and cancels what still runs in it. Closing it twice is no error."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs ``loop`` until it is stopped; then cancels unfinished tasks."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
