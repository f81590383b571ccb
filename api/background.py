"""Work that goes on after a request was answered, and figures of how the product is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger()


class Background:
    """Tasks of this process. Keeps them alive, logs how they fail, ends them with the process."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs ``work`` beside everything else; who awaits the task and is cancelled cancels it too."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def stop(self) -> None:
        """Cancels what still runs and waits for its end; what is unfinished is taken up at the next start."""
        while self._tasks:
            ending = tuple(self._tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


@dataclass
class Readiness:
    """What ``/readyz`` waits for. ``serving`` ends with the wish to stop, before any connection is refused.

    ``awaited``: feeds that have not answered their first poll, for which readiness does not wait.
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
