"""The process that plans: replaced when it dies, ended with us, and never left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

import structlog

from api import planning_call
from api.relay import Publish, Receiver, Sender
from broker import logs

T = TypeVar("T")

log = structlog.get_logger()


class _Watched(SpawnContext):
    """Starts processes and remembers them, so that they can be ended."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        """A process that is not started yet."""
        process = SpawnProcess(*args, **kwargs)
        self.started.append(process)
        return process


class PlannerProcess(Executor):
    """One worker process; a call that kills it (out of memory, say) fails alone, the next gets a new one."""

    def __init__(self, publish: Publish | None = None) -> None:
        self._publish = publish
        self._receiver: Receiver | None = None
        self._context, self._pool, self._progress = _open_pool()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules ``fn``, which the process must be able to import; progress goes to the caller's loop."""
        if self._receiver is None:
            self._listen()
        try:
            return self._pool.submit(logs.on_behalf, logs.bound_now(), fn, *args, **kwargs)
        except BrokenProcessPool:
            log.warning("the planning process died; starting another")
            self._pool.shutdown(wait=False)
            self._stop_listening()
            self._context, self._pool, self._progress = _open_pool()
            self._listen()
            return self._pool.submit(logs.on_behalf, logs.bound_now(), fn, *args, **kwargs)

    def _listen(self) -> None:
        if self._publish is not None:
            self._receiver = Receiver(self._progress, self._publish, asyncio.get_running_loop())

    def _stop_listening(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver = None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the pool; without ``wait`` what it is at ends too. Twice is no error."""
        self._stop_listening()
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
        if not wait and not self._closed:
            for process in self._context.started:
                if process.is_alive():
                    process.terminate()
        self._closed = True


class PlannerThread(ThreadPoolExecutor):
    """Plans in a thread of this process; what it logs carries the id of the request that asked."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="planner")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules ``fn``."""
        return super().submit(logs.on_behalf, logs.bound_now(), fn, *args, **kwargs)


def _open_pool() -> tuple[_Watched, ProcessPoolExecutor, Connection]:
    context = _Watched()
    reader, writer = context.Pipe(duplex=False)
    given = (writer, logs.handed_on())
    pool = ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_begin, initargs=given)
    return context, pool, reader


def _begin(progress: Connection, handed: logs.Handed) -> None:
    """In the worker: Ctrl-C is the parent's business, its death is ours; it has progress and logs."""
    logs.take_over(handed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    planning_call.send_progress_with(Sender(lambda label, seen: progress.send((label, seen))))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
