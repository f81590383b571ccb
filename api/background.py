"""Background tasks of the process, and the conditions of its readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger()


class Background:
    """Background tasks of this process. They are kept alive, their failures are logged, and they end with the
    process.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs ``work`` in the background. Cancelling the returned task, or who awaits
        it, cancels the work.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def stop(self) -> None:
        """Cancels all running tasks and waits for their end. Unfinished work is resumed at the next start."""
        while self._tasks:
            await end_all(self._tasks)


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels ``tasks`` and waits for their end.

    A task that is being cancelled is only waited for: a second cancellation would cut off how it ends, such
    as the return of its connection to the database.
    """
    ending = tuple(tasks)
    for task in ending:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


@dataclass
class Readiness:
    """The conditions of ``/readyz``. ``serving`` becomes false when shutdown is requested, before connections
    are refused.

    ``awaited`` names feeds that have not answered their first poll; readiness does not wait for them.
    """

    serving: bool = True
    schema_current: bool = False
    polled: bool = False
    reconciled: bool = False
    awaited: frozenset[str] = frozenset()

    def conditions(self) -> dict[str, bool]:
        """Each condition by name."""
        return {
            "serving": self.serving,
            "schema_current": self.schema_current,
            "polled": self.polled,
            "reconciled": self.reconciled,
        }
