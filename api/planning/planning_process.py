"""A process that plans: the server's handle of it, and the code that runs in it.

Its memory is limited by RLIMIT_DATA, which counts private writable memory. RLIMIT_AS would also count address
space that is only reserved (libraries, arenas and thread stacks): with 16 solver threads 1.7 GiB when 0.4 GiB
is used, and more on machines with more cores.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from api.planning import planning_call
from api.planning.relay import Sender
from broker import logs
from broker.domain.basics.errors import PlannerDied, PlannerOutOfMemory
from broker.ports.planning import Progress

GIB = 2**30
LOOK_EVERY_S = 0.2
ENDING_S = 5.0
SWOLLEN = 0.4
"""A process that keeps more than this share of its memory limit is not used for another call."""
NEAR = 0.8
"""A process that dies above this share of its memory limit is assumed to have reached it."""

_starting = threading.Lock()
"""Starting a process also reaps others that ended. Only one thread may do so, or exit codes are lost."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Progress of the run ``label``."""

    label: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Begun:
    """The call has begun."""


@dataclass(frozen=True, slots=True)
class _Returned:
    result: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Any


@dataclass(frozen=True, slots=True)
class _OutOfMemory:
    used_bytes: int
    words: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of ``fn``, which must be importable; its log records have the context ``bound``."""

    bound: Mapping[str, Any]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class NotBegun(PlannerDied):
    """The process ended before it began the call, so another process may take it."""


class PlanningProcess:
    """A process that answers one call at a time. One thread uses it; any other thread
    may ``terminate`` it.
    """

    def __init__(self, memory_gib: float) -> None:
        """Starts the process, which imports the planner before it answers. Raises PlannerDied if it cannot
        start.
        """
        self._memory_gib = memory_gib
        self._terminated, self._has_begun = False, False
        self._used_bytes = 0
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, logs.handed_on(), int(memory_gib * GIB)), name="planner", daemon=True
        )
        try:
            with _starting:
                self._process.start()
        except OSError as error:
            self._pipe.close()
            raise PlannerDied(f"no planning process can be started: {error}") from error
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether it can take a call."""
        with _starting:
            return not self._terminated and self._process.is_alive()

    @property
    def is_swollen(self) -> bool:
        """Whether it keeps so much memory after its calls that a new process is better."""
        return _data_bytes(self._process.pid) > SWOLLEN * self._memory_gib * GIB

    def call(self, asked: Asked, tell: Callable[[str, Progress], None]) -> Any:
        """The result of the call; its progress is passed to ``tell``.

        Raises what the call and its pickling raise. After NotBegun, PlannerOutOfMemory and PlannerDied the
        process has ended.
        """
        self._used_bytes, self._has_begun, kills = 0, False, _kills_for_memory()
        packed = ForkingPickler.dumps(asked)
        try:
            self._pipe.send_bytes(packed)
            answer = self._answer(tell)
        except (EOFError, OSError) as error:
            if not self._terminated:
                # It is exiting: a signal now would hide its exit code.
                wait([self._process.sentinel], ENDING_S)
            exit_code, killed = self.end(), _kills_for_memory() > kills
            if not self._has_begun and not self._terminated:
                raise NotBegun(
                    str(death(exit_code, 0, self._memory_gib, killed_for_memory=killed))
                ) from error
            raise death(exit_code, self._used_bytes, self._memory_gib, killed_for_memory=killed) from error
        if isinstance(answer, _OutOfMemory):
            self.end()
            more = f" ({answer.words})" if answer.words else ""
            found = f"it used {_in_gib(answer.used_bytes)} and asked for more{more}"
            raise PlannerOutOfMemory(found, self._memory_gib)
        if isinstance(answer, _Raised):
            raise answer.error
        return answer.result

    def _answer(self, tell: Callable[[str, Progress], None]) -> _Returned | _Raised | _OutOfMemory:
        """Waits for the answer. Raises EOFError and OSError once the process has ended or hangs."""
        while True:
            heard = self._pipe.recv() if self._pipe.poll(LOOK_EVERY_S) else None
            if isinstance(heard, _Told):
                tell(heard.label, heard.progress)
            elif isinstance(heard, _Begun):
                self._has_begun = True
            elif isinstance(heard, _Returned | _Raised | _OutOfMemory):
                return heard
            elif self._terminated:
                raise EOFError
            self._used_bytes = max(self._used_bytes, _data_bytes(self._process.pid))

    def terminate(self) -> None:
        """Ends the running call; its caller gets PlannerDied."""
        self._terminated = True
        with _starting:
            self._process.terminate()

    def end(self) -> int | None:
        """Ends the process, by force if necessary. Returns its exit code, negative for a signal. Twice is no
        error.
        """
        with _starting:
            self._process.terminate()
        self._pipe.close()
        wait([self._process.sentinel], ENDING_S)
        with _starting:
            self._process.kill()
            self._process.join()
            return self._process.exitcode


def death(
    exit_code: int | None, used_bytes: int, memory_gib: float, *, killed_for_memory: bool
) -> PlannerDied:
    """Why a process ended in the middle of a call, as far as it is visible from outside.

    ``killed_for_memory``: the kernel killed some process for lack of memory during the call.
    """
    how = f"the planning process ended {_in_words(exit_code)} while it used {_in_gib(used_bytes)}"
    if exit_code == -signal.SIGKILL and killed_for_memory:
        return PlannerDied(
            f"{how}: the machine had too little memory; plan fewer workloads in one document, or lower "
            "BROKER_PLANNER_PROCESSES or BROKER_PLANNER_MEMORY_GIB until all processes fit the machine"
        )
    if used_bytes >= NEAR * memory_gib * GIB:
        return PlannerOutOfMemory(how, memory_gib)
    return PlannerDied(how)


def _in_words(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"with exit code {exit_code}"
    with suppress(ValueError):
        return f"by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"by signal {-exit_code}"


def _in_gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def _data_bytes(pid: int | None) -> int:
    """The memory of a process that RLIMIT_DATA counts; 0 once it is gone, or if the system does not report
    it.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[5]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def _kills_for_memory() -> int:
    """The number of out-of-memory kills since the system started; 0 if it does not report them."""
    try:
        rows = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def _serve(pipe: Connection, handed: logs.Handed, memory_bytes: int) -> None:
    """The main function of the process. The parent handles Ctrl-C; if the parent dies, this process ends."""
    logs.take_over(handed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    planning_call.send_progress_with(Sender(lambda label, seen: pipe.send(_Told(label, seen))))
    with suppress(EOFError, OSError):  # the parent is gone, or no longer needs this process
        while True:
            packed = pipe.recv_bytes()
            pipe.send(_Begun())
            pipe.send_bytes(_answer(packed, soft, hard))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(packed: bytes, limit_bytes: int, hard_limit_bytes: int) -> bytes:
    try:
        asked: Asked = pickle.loads(packed)  # noqa: S301  from our parent
        result = logs.on_behalf(asked.bound, asked.fn, *asked.args, **asked.kwargs)
        return bytes(ForkingPickler.dumps(_Returned(result)))
    except Exception as error:  # an error of the call goes back to the caller
        # Reporting takes memory too.
        resource.setrlimit(resource.RLIMIT_DATA, (hard_limit_bytes, hard_limit_bytes))
        used_bytes = _data_bytes(os.getpid())
        if not _is_for_memory(error, is_near=used_bytes >= NEAR * limit_bytes):
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard_limit_bytes))
            return _failure(error)
        return bytes(ForkingPickler.dumps(_OutOfMemory(used_bytes, str(error))))


def _is_for_memory(error: Exception, *, is_near: bool) -> bool:
    """Whether the error means lack of memory; Python raises RuntimeError if a new thread's stack does not
    fit.
    """
    is_told = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return is_told or (is_near and isinstance(error, RuntimeError) and "new thread" in str(error))


def _failure(error: Exception) -> bytes:
    """``error`` with its traceback as text; as plain text if it cannot be pickled."""
    try:
        whole = bytes(ForkingPickler.dumps(_Raised(ExceptionWithTraceback(error, error.__traceback__))))
        pickle.loads(whole)  # noqa: S301  our own
    except Exception:  # pickling a foreign exception may raise anything
        return bytes(ForkingPickler.dumps(_Raised(RuntimeError(f"{type(error).__name__}: {error}"))))
    return whole
