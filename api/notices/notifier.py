"""The product's notifier: it logs events and wakes the webhook sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from api.background import Background

log = structlog.get_logger()


class WakeSignal:
    """Starts ``work`` in the background unless it is running or about to run."""

    def __init__(self, background: Background, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._background = background
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    def __call__(self) -> None:
        """Wakes it."""
        if self._task is None or self._task.done():
            self._task = self._background.start(self._work())


class LoggedNotifier:
    """Logs events and wakes the webhook sender, which reads the events to send from the outbox.

    The outbox is written together with each change, so a process that dies between the two loses nothing.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Logs one line for one event."""
        log.info("event", name=event, team=team, **body)
        if self._wake is not None:
            self._wake()
