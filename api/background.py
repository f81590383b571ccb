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

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs ``work`` beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def stop(self) -> None:
        """Cancels what still runs; what was stored as unfinished is taken up at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass
class Readiness:
    """What ``/readyz`` waits for."""

    schema_current: bool = False
    polled: bool = False
    reconciled: bool = False

    def as_document(self) -> dict[str, bool]:
        """Each condition by name."""
        return {
            "schema_current": self.schema_current,
            "polled": self.polled,
            "reconciled": self.reconciled,
        }
