"""Progress reports while a plan is made: the work runs in a thread, and the caller's thread reports.

The caller's sink is called only from the caller's thread: at each step, and at least every second.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeVar

from broker.ports.planning import Progress, ProgressSink
from optimizer.placement.runtime.stopwatch import Stopwatch

BEAT_SECONDS = 0.25
"""Well below the promised second, since a busy machine wakes the caller late."""

Result = TypeVar("Result")


def with_heartbeat(
    work: Callable[[ProgressSink | None], Result], watch: Stopwatch, sink: ProgressSink | None
) -> Result:
    """Runs ``work`` with a sink of its own; if the caller is interrupted, the work's time limit is set
    to 0.
    """
    if sink is None:
        return work(None)
    told: SimpleQueue[Progress | None] = SimpleQueue()
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(work, told.put)
        running.add_done_callback(lambda _: told.put(None))
        try:
            _relay(told, watch, sink)
        except BaseException:
            watch.limit_s = 0.0
            raise
        return running.result()


def _relay(told: SimpleQueue[Progress | None], watch: Stopwatch, sink: ProgressSink) -> None:
    """Forwards reports until the end, and repeats the last one if there is nothing new."""
    last = Progress(watch.seconds, None, None, None, "reading the market")
    while True:
        try:
            heard = told.get(timeout=BEAT_SECONDS)
        except Empty:
            heard = replace(last, seconds=watch.seconds)
        if heard is None:
            return
        last = heard
        sink(heard)
