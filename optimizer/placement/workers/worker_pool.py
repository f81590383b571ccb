"""Worker processes that answer questions about services on the other cores while the search continues.

Answers arrive in any order and are processed by the search's own thread (``collect``). A worker that dies or
cannot be started is logged and not replaced. Its question is answered in the search's process, so no plan
depends on a worker. Without workers every question is answered here, in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from multiprocessing import Pipe
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from broker import logs
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.workers.asks import Ask
from optimizer.placement.workers.wire import Sender

WAIT_S = 0.1
ENDING_S = 5.0

log = structlog.get_logger()


def nothing() -> None:
    """A callback that does nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A question and the callback for its answer. ``key`` identifies it while it is being answered."""

    key: Hashable
    ask: Ask[Any]
    done: Callable[[Any], None]


@dataclass(slots=True, eq=False)
class _Lost:
    """Stands for an answer that never came, because the worker is gone."""


class _Process:
    """One worker process and the thread that communicates with it."""

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = workers
        self._connection, theirs = Pipe()
        # Not ``multiprocessing.Process``: a planning process of the API is a daemon, which may start none.
        with theirs:
            self.popen = subprocess.Popen(  # noqa: S603  nothing of it comes from outside
                [sys.executable, "-m", "optimizer.placement.workers.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        self.thread = threading.Thread(
            target=copy_context().run, args=(self._talk,), name="oracle", daemon=True
        )
        self.thread.start()

    def _talk(self) -> None:
        sender, task = Sender(self._connection), None
        try:
            self._connection.send((logs.handed_on(), dict(logs.bound_now())))
            while (task := self._workers.next_task()) is not None:
                sender.send((task.ask, self._workers.problem))
                self._workers.answered(task, self._connection.recv())
        except Exception as problem:  # boundary of a thread: the search must learn that no answer will come
            self._workers.lost(self, task, problem)

    def end(self) -> None:
        """Kills the process at once."""
        self.popen.kill()
        self.popen.wait()
        self.thread.join(ENDING_S)
        self._connection.close()


class WorkerPool:
    """The worker processes of one search. Questions of ``run`` go before those of ``prefetch``."""

    def __init__(self, problem: Problem, processes: int = 0) -> None:
        self.problem = problem
        self._urgent: deque[Task] = deque()
        self._later: dict[Hashable, Task] = {}
        self._under_way: set[Hashable] = set()
        self._awaited: set[Hashable] = set()
        self._changed = threading.Condition()
        self._answers: SimpleQueue[tuple[Task, Any]] = SimpleQueue()
        self._ended = False
        self._alive = 0
        self._processes: list[_Process] = []
        for _ in range(min(processes, TUNING.workers.most_processes)):
            try:
                self._alive += 1
                self._processes.append(_Process(self))
            except OSError as problem_found:
                self._alive -= 1
                log.warning("a worker of the planner cannot be started", problem=str(problem_found))

    @property
    def size(self) -> int:
        """How many worker processes are alive."""
        return self._alive

    def run(self, tasks: Iterable[Task], out_of_time: Callable[[], bool] = never) -> None:
        """Answers ``tasks`` with all workers and in the caller's process, until none is left or the time is
        over.

        ``tasks`` is consumed as capacity becomes free, so that it can depend on the answers so far.
        """
        for task in tasks:
            self.collect()
            if not self._is_awaited(task):
                task.done(task.ask.answer(self.problem, out_of_time))
        while self._awaited and not out_of_time():
            self.collect(WAIT_S)
        self._awaited.clear()

    def prefetch(self, tasks: Iterable[Task]) -> None:
        """Sets what idle workers do from now on; replaces what the last call set and no worker has begun."""
        if not self._alive:
            return
        with self._changed:
            self._later = {task.key: task for task in tasks if task.key not in self._under_way}
            self._changed.notify_all()

    def collect(self, wait_s: float = 0.0) -> None:
        """Processes the answers that have arrived; waits at most ``wait_s`` for the first."""
        while True:
            try:
                task, answer = self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
            except Empty:
                return
            wait_s = 0.0
            self._under_way.discard(task.key)
            self._awaited.discard(task.key)
            if isinstance(answer, _Lost):
                answer = task.ask.answer(self.problem, never)
            task.done(answer)

    def _is_awaited(self, task: Task) -> bool:
        """Whether a worker answers the task, now or as soon as one is idle."""
        with self._changed:
            self._later.pop(task.key, None)
            if task.key not in self._under_way:
                if len(self._awaited) >= TUNING.workers.ahead * self._alive:
                    return False
                self._under_way.add(task.key)
                self._urgent.append(task)
                self._changed.notify()
            self._awaited.add(task.key)
            return True

    def next_task(self) -> Task | None:
        """The next task of a worker; None when the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._urgent or self._later)
            if self._ended:
                return None
            if self._urgent:
                return self._urgent.popleft()
            task = self._later.pop(next(iter(self._later)))
            self._under_way.add(task.key)
            return task

    def answered(self, task: Task, answer: object) -> None:
        """Called by a worker's thread with an answer."""
        self._answers.put((task, answer))

    def lost(self, process: _Process, task: Task | None, problem: Exception) -> None:
        """Called when a worker is gone. After the last one, all queued questions return to the search."""
        if self._ended:
            return
        with self._changed:
            self._alive -= 1
            left = [] if task is None else [task]
            if not self._alive:
                left += self._urgent
                self._urgent.clear()
                self._later.clear()
        log.warning(
            "a worker of the planner ended early; its work is done without it",
            exit_code=process.popen.poll(),
            problem=f"{type(problem).__name__}: {problem}",
        )
        for one in left:
            self._answers.put((one, _Lost()))

    def close(self) -> None:
        """Ends every worker and drops unfinished questions; later ones are answered in this process."""
        with self._changed:
            self._ended = True
            self._alive = 0
            self._urgent.clear()
            self._later.clear()
            self._under_way.clear()
            self._awaited.clear()
            self._changed.notify_all()
        for process in self._processes:
            process.end()
        self._processes.clear()
        self._answers = SimpleQueue()


@contextmanager
def worker_pool(problem: Problem, processes: int) -> Iterator[WorkerPool]:
    """A worker pool that is closed at the end of the block."""
    workers = WorkerPool(problem, processes)
    try:
        yield workers
    finally:
        workers.close()


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment() -> dict[str, str]:
    """This process's environment with its import path, and one thread for numerical libraries."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
