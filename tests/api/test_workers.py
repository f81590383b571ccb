"""The planning process: it is replaced when it dies, ends with us, and leaves Ctrl-C to its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from api.planning_call import progress_sink
from api.relay import progress_of
from api.workers import PlannerProcess
from broker.plan_ports import Progress


def die() -> None:
    os._exit(9)


def pid() -> int:
    return os.getpid()


def tell(label: str) -> None:
    show = progress_sink(label)
    assert show is not None
    for stage in ("priced", "priced", "chosen"):
        show(Progress(1.0, 100.5, 99.0, 0.0149, stage))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int, limit_s: float = 60.0) -> bool:
    deadline = time.monotonic() + limit_s
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


async def until_told(seen: list[tuple[str, dict[str, object]]], events: int, limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while len(seen) < events:
            await asyncio.sleep(0.02)


def test_a_worker_dies_alone_and_shutdown_does_not_wait() -> None:
    workers = PlannerProcess()
    first = workers.submit(pid).result(200)
    os.kill(first, signal.SIGINT)
    assert workers.submit(pid).result(200) == first
    with pytest.raises(BrokenProcessPool):
        workers.submit(die).result(200)
    second = workers.submit(pid).result(200)
    assert second != first
    workers.submit(time.sleep, 600)
    workers.shutdown(wait=False, cancel_futures=True)
    assert ends(second)
    workers.shutdown(wait=False, cancel_futures=True)


async def test_progress_crosses_the_border_throttled_and_whole() -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    workers = PlannerProcess(lambda plan_id, event: seen.append((plan_id, event)))
    try:
        await asyncio.wrap_future(workers.submit(tell, "plan-1"))
        await until_told(seen, 2)
        assert [(plan_id, event["stage"]) for plan_id, event in seen] == [
            ("plan-1", "priced"),
            ("plan-1", "chosen"),
        ]
        assert progress_of(seen[0][1]) == Progress(1.0, 100.5, 99.0, 0.0149, "priced")
        assert progress_of({"state": "done"}) is None
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
