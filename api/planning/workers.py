"""Executors of the planner: processes with cancellable calls and limited memory, or a thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import structlog

from api.planning.planning_process import Asked, NotBegun, PlanningProcess
from api.planning.relay import Publish, progress_event
from broker import logs
from broker.domain.basics.errors import PlannerDied
from broker.ports import unit_of_work as ports
from broker.ports.planning import Progress

T = TypeVar("T")

log = structlog.get_logger()


class Planners(ports.Executor, Protocol):
    """An executor that its owner shuts down."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; without ``wait``, running calls end too. Twice is no error."""
        ...


class _Call(Future[Any]):
    """A future that stays pending until it has its result, so that ``cancel`` always works."""

    process: PlanningProcess | None = None

    def __init__(self, asked: Asked, tell: Callable[[str, Progress], None]) -> None:
        super().__init__()
        self.asked, self.tell = asked, tell

    def running(self) -> bool:
        """Whether a process works on it."""
        return self.process is not None and not self.done()


class PlannerProcesses(Executor):
    """Processes that answer one call each at a time; further calls wait in a queue (first in, first out).

    A process is started when a call waits and none is idle. Cancelling a call that has begun ends its
    process. A call whose process dies fails alone, with PlannerDied, and one that needs more memory than
    ``memory_gib`` with PlannerOutOfMemory; the next call gets a new process.
    """

    def __init__(self, processes: int = 1, memory_gib: float = 4.0, publish: Publish | None = None) -> None:
        self._processes, self._memory_gib, self._publish = processes, memory_gib, publish
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._at_work: set[_Call] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    @property
    def workers(self) -> int:
        """The number of calls that may run at once."""
        return self._processes

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules ``fn``, which a process must be able to import; progress is sent to the caller's loop."""
        loop = None if self._publish is None else asyncio.get_running_loop()
        asked = Asked(logs.bound_now(), fn, args, kwargs)
        call = _Call(asked, lambda label, seen: self._tell(loop, call, label, seen))
        with self._changed:
            if self._closed:
                raise RuntimeError("the planning processes are shut down: they take no more calls")
            self._waiting.append(call)
            self._have_served()
        call.add_done_callback(lambda _: self._let_go(call))
        return call

    def _have_served(self) -> None:
        """Makes sure that a thread takes the next waiting call. Call it under the lock."""
        free = len(self._threads) - len(self._at_work)
        if free >= len(self._waiting) or len(self._threads) >= self._processes:
            self._changed.notify()
        else:
            thread = threading.Thread(target=self._serve, name="planner", daemon=True)
            thread.start()
            self._threads.add(thread)

    def _tell(
        self, loop: asyncio.AbstractEventLoop | None, call: _Call, label: str, progress: Progress
    ) -> None:
        def publish() -> None:
            if self._publish is not None and not call.cancelled():
                self._publish(label, progress_event(progress))

        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(publish)

    def _let_go(self, call: _Call) -> None:
        """Removes a cancelled call from the queue, or ends its process."""
        if not call.cancelled():
            return
        with self._changed:
            if call in self._waiting:
                self._waiting.remove(call)
                call.set_running_or_notify_cancel()
            elif call.process is not None:
                call.process.terminate()

    def _serve(self) -> None:
        """The main function of a thread. It has one process at a time, and ends when nothing waits."""
        process: PlanningProcess | None = None
        while (call := self._next(idle=process is not None)) is not None:
            process = self._answer(call, process)
        if process is not None:
            process.end()

    def _next(self, *, idle: bool) -> _Call | None:
        with self._changed:
            while not self._waiting:
                if self._closed or not idle:
                    self._threads.discard(threading.current_thread())
                    return None
                self._changed.wait()
            call = self._waiting.popleft()
            self._at_work.add(call)
            return call

    def _answer(self, call: _Call, process: PlanningProcess | None) -> PlanningProcess | None:
        """Answers a call. Returns the process if it may be used again, else None."""
        result, failure = None, None
        try:
            # An idle process may die just as it gets the call; then a new one gets it.
            for known in (_living(process), None):
                process = known or PlanningProcess(self._memory_gib)
                if not self._begin(call, process):
                    break
                try:
                    result = process.call(call.asked, call.tell)
                    break
                except NotBegun:
                    if known is None:
                        raise
        except Exception as error:  # the error of the call or of the process goes to the caller
            failure = error
        with self._changed:
            self._at_work.discard(call)
            call.process = None
        if isinstance(failure, PlannerDied) and not call.cancelled():
            log.warning("a planning process ended early", problem=str(failure))
        if call.set_running_or_notify_cancel():
            if failure is None:
                call.set_result(result)
            else:
                call.set_exception(failure)
        return _living(process)

    def _begin(self, call: _Call, process: PlanningProcess) -> bool:
        """Registers the call, so that cancelling it ends the process; False if it is cancelled already."""
        with self._changed:
            if call.cancelled():
                return False
            call.process = process
            return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; without ``wait``, all calls are cancelled. Twice is no error."""
        with self._changed:
            self._closed = True
            dropped = [*self._waiting] if cancel_futures or not wait else []
            dropped += [] if wait else self._at_work
            threads = [*self._threads]
            self._changed.notify_all()
        for call in dropped:
            call.cancel()
        if wait:
            for thread in threads:
                thread.join()


def _living(process: PlanningProcess | None) -> PlanningProcess | None:
    """``process`` if it may be used again; otherwise it is ended."""
    if process is None or (process.is_alive and not process.is_swollen):
        return process
    process.end()
    return None


class PlannerThread(ThreadPoolExecutor):
    """Plans in a thread of this process; its logs have the request id of the caller."""

    workers = 1

    def __init__(self) -> None:
        super().__init__(max_workers=self.workers, thread_name_prefix="planner")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules ``fn``."""
        return super().submit(logs.on_behalf, logs.bound_now(), fn, *args, **kwargs)
