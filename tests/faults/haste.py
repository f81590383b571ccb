"""An event loop on which nobody sleeps for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TypeVar, TypeVarTuple

Answer = TypeVar("Answer")
Ts = TypeVarTuple("Ts")

SHARE = 0.02


class HastyLoop(asyncio.SelectorEventLoop):
    """Sleeps a fiftieth of what was asked for: pauses between tries, not the limits of waiting for answers.

    (``asyncio.sleep`` counts from now, with ``call_later``; time limits name an instant, with ``call_at``.)
    """

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls back sooner."""
        return super().call_later(delay * SHARE, callback, *args, context=context)


def run(work: Coroutine[object, object, Answer]) -> Answer:
    """As ``asyncio.run``, on a hasty loop."""
    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        return runner.run(work)
