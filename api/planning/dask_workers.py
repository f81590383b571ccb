"""Plans on a Dask cluster whose workers have this product installed:
``BROKER_SOLVER_EXECUTOR=dask://host:port``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from math import inf
from typing import Any, TypeVar

import structlog
from distributed import Client, get_worker

from api.planning.planning_call import send_progress_with
from api.planning.relay import Publish, Sender, progress_event
from broker import logs
from broker.ports.planning import Progress

T = TypeVar("T")
Asked = tuple[logs.Handed, Mapping[str, Any], str | None]

CONNECT_LIMIT_S = 10.0
THREADS_KNOWN_S = 10.0
ANSWER_LIMIT_S = 2.0

log = structlog.get_logger()


class DaskPlanners(Executor):
    """A client of one cluster. If a worker is lost, its call is made again on another. Cancelling a call that
    has begun only drops its result: the worker finishes it, within Dask's own memory limits.

    Several brokers may share a cluster, because each client has its own progress topic.
    """

    def __init__(self, address: str, publish: Publish | None = None) -> None:
        """Connects to the scheduler at ``address`` (host:port). Raises OSError if none answers."""
        self._client = Client(f"tcp://{address}", timeout=CONNECT_LIMIT_S, set_as_default=False)  # type: ignore[no-untyped-call]
        self._calls = self._client.get_executor(pure=False)  # type: ignore[no-untyped-call]
        self._publish = publish
        self._topic: str | None = None
        self._threads, self._threads_known_until = 1, inf
        self._ask_for_threads()

    @property
    def workers(self) -> int:
        """The number of threads of all workers when last asked, at least 1.

        The scheduler is asked now and then in a thread, because a busy one takes seconds and the caller runs
        an event loop.
        """
        if time.monotonic() >= self._threads_known_until:
            self._threads_known_until = inf  # until the answer is there
            threading.Thread(target=self._ask_for_threads, name="dask-threads", daemon=True).start()
        return self._threads

    def _ask_for_threads(self) -> None:
        try:
            threads: Mapping[str, int] = self._client.nthreads(callback_timeout=ANSWER_LIMIT_S)  # type: ignore[no-untyped-call]
            self._threads = max(1, sum(threads.values()))
        except (
            Exception
        ) as error:  # the boundary of a thread; a client that is closed meanwhile fails in many ways
            log.warning("the Dask scheduler does not say how many workers it has", problem=repr(error))
        finally:
            self._threads_known_until = time.monotonic() + THREADS_KNOWN_S

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules ``fn``, which the workers must be able to import; progress is sent
        to the caller's loop.
        """
        if self._topic is None and self._publish is not None:
            self._topic = self._listen(self._publish, asyncio.get_running_loop())
        asked = (logs.handed_on(), logs.bound_now(), self._topic)
        future: Future[T] = self._calls.submit(_telling, asked, fn, *args, **kwargs)
        return future

    def _listen(self, publish: Publish, loop: asyncio.AbstractEventLoop) -> str:
        topic = f"plans-{self._client.id}"

        def hand_on(event: tuple[float, tuple[str, dict[str, object]]]) -> None:
            label, told = event[1]
            if not loop.is_closed():
                loop.call_soon_threadsafe(publish, label, dict(told))

        self._client.subscribe_topic(topic, hand_on)  # type: ignore[no-untyped-call]
        return topic

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnects; without ``wait``, our calls are cancelled. Twice is no error."""
        if self._client.status != "closed":
            self._calls.shutdown(wait=wait and not cancel_futures)
            self._client.close()  # type: ignore[no-untyped-call]


def _telling(asked: Asked, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs ``fn`` on the worker, logs its progress under the topic, and logs with the caller's context."""
    handed, bound, topic = asked
    logs.begin_for_ours(handed)
    if topic is not None:
        worker = get_worker()

        def tell(label: str, progress: Progress) -> None:
            worker.log_event(topic, (label, progress_event(progress)))

        send_progress_with(Sender(tell))
    return logs.on_behalf(bound, fn, *args, **kwargs)
