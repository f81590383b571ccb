"""The planning process: it is replaced when it dies, ends with us, and leaves Ctrl-C to its parent."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from api.workers import PlannerProcess


def die() -> None:
    os._exit(9)


def pid() -> int:
    return os.getpid()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int, limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


def test_a_worker_dies_alone_and_shutdown_does_not_wait() -> None:
    workers = PlannerProcess()
    first = workers.submit(pid).result(30)
    os.kill(first, signal.SIGINT)
    assert workers.submit(pid).result(30) == first
    with pytest.raises(BrokenProcessPool):
        workers.submit(die).result(30)
    second = workers.submit(pid).result(30)
    assert second != first
    workers.submit(time.sleep, 60)
    began = time.monotonic()
    workers.shutdown(wait=False, cancel_futures=True)
    assert ends(second)
    assert time.monotonic() - began < 10
    workers.shutdown(wait=False, cancel_futures=True)
