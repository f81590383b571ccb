"""The product's notifier: a line in the log, and a nudge to what sends webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from api.background import Background

log = structlog.get_logger()


class WakeSignal:
    """Starts ``work`` in the background unless it is under way or about to be."""

    def __init__(self, background: Background, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._background = background
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    def __call__(self) -> None:
        """Wakes it."""
        if self._task is None or self._task.done():
            self._task = self._background.start(self._work())


class LoggedNotifier:
    """Writes events to the log and wakes the sender; what is sent comes from the outbox, not from here.

    The outbox is written with each change, so that a process that dies between the two loses nothing.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """One line for one event."""
        log.info("event", name=event, team=team, **body)
        if self._wake is not None:
            self._wake()
