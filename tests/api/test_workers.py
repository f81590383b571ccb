"""The planning processes: calls that can be ended, die alone and have bounded memory; none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.planning.planning_call import progress_sink
from api.planning.planning_process import GIB, Asked, PlanningProcess, death
from api.planning.relay import progress_of
from api.planning.workers import PlannerProcesses
from broker.domain.basics.errors import FieldProblem, InputError, PlannerDied, PlannerOutOfMemory
from broker.ports.planning import Progress

pytestmark = pytest.mark.timeout(600)

LIMIT_S = 200.0
ROOT = Path(__file__).parents[2]


def pid() -> int:
    return os.getpid()


def tell(label: str) -> None:
    show = progress_sink(label)
    assert show is not None
    for stage in ("priced", "priced", "chosen"):
        show(Progress(1.0, 100.5, 99.0, 0.0149, stage))


def say_and_wait(mark: Path, until: Path | None = None) -> int:
    """Writes its process's id to ``mark``, then waits for ``until``, else until it is ended."""
    beside = mark.with_suffix(".begun")
    beside.write_text(str(os.getpid()))
    beside.rename(mark)
    while until is None or not until.exists():
        time.sleep(0.02)
    return os.getpid()


def say_and_stay(mark: Path) -> None:
    """As ``say_and_wait``, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_and_wait(mark)


def allocate(gib: float) -> int:
    return int(np.ones(int(gib * GIB / 8)).sum())


KEPT: list[Any] = []


def keep(gib: float) -> int:
    KEPT.append(np.ones(int(gib * GIB / 8)))
    return pid()


def fill_up() -> None:
    """Until not even an exception has room; what it holds lives in the traceback."""
    size, held = 2**20, []
    while True:
        try:
            held.append(bytearray(size))
        except MemoryError:
            if size == 16:
                raise
            size //= 2


def tell_and_wait(label: str, mark: Path) -> None:
    tell(label)
    say_and_wait(mark)


def start_threads() -> None:
    """Each has a stack of megabytes; none ends before its process."""
    while True:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def fill_and_die() -> None:
    """Ends as a library does that has no memory: in the midst of it, without an exception."""
    held = np.ones(int(0.9 * GIB / 8))
    time.sleep(2.0)
    assert held.any()
    os.abort()


class Unsendable(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def fail(kind: str) -> None:
    if kind == "ours":
        raise InputError("workloads", (FieldProblem("/team", "nothing", "a name"),))
    raise Unsendable("no such", " thing")


def noted(order: list[int], number: int, _: Future[Any]) -> None:
    order.append(number)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def has_ended(process: int) -> bool:
    """With all of its threads; also where nobody has asked for its exit code."""
    status = Path(f"/proc/{process}")
    try:
        is_zombie = (status / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return is_zombie and len(list((status / "task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def ends(process: int, limit_s: float = 60.0) -> bool:
    return comes(lambda: not is_alive(process), limit_s)


def comes(true: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def begun(mark: Path) -> int:
    """The process that has begun a call, once it has."""
    assert comes(mark.exists), "the call did not begin"
    return int(mark.read_text())


async def until_told(seen: Sequence[object], events: int, limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while len(seen) < events:
            await asyncio.sleep(0.02)


@pytest.fixture
def two() -> Iterator[PlannerProcesses]:
    """Two processes."""
    workers = PlannerProcesses(2, memory_gib=1.0)
    yield workers
    workers.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def one() -> Iterator[PlannerProcesses]:
    """One process."""
    workers = PlannerProcesses(1, memory_gib=1.0)
    yield workers
    workers.shutdown(wait=False, cancel_futures=True)


def test_two_calls_run_side_by_side_and_the_third_waits(two: PlannerProcesses, tmp_path: Path) -> None:
    """Each waits for what says that both have begun."""
    assert two.workers == 2
    go = tmp_path / "go"
    calls = [two.submit(say_and_wait, tmp_path / name, go) for name in ("a", "b")]
    third = two.submit(pid)
    assert begun(tmp_path / "a") != begun(tmp_path / "b")
    assert [call.running() for call in (*calls, third)] == [True, True, False]
    go.touch()
    both = {call.result(LIMIT_S) for call in calls}
    assert len(both) == 2
    assert third.result(LIMIT_S) in both, "no third process is started"


def test_the_second_process_starts_when_a_call_waits(two: PlannerProcesses) -> None:
    assert len({two.submit(pid).result(LIMIT_S) for _ in range(4)}) == 1


def test_what_waits_is_served_in_the_order_that_it_came(one: PlannerProcesses, tmp_path: Path) -> None:
    order: list[int] = []
    go = tmp_path / "go"
    calls: list[Future[Any]] = [one.submit(say_and_wait, tmp_path / "first", go)]
    for number in range(5):
        calls.append(one.submit(pid))
        calls[-1].add_done_callback(partial(noted, order, number))
    go.touch()
    wait(calls, LIMIT_S)
    assert order == [0, 1, 2, 3, 4]


def test_a_call_that_has_begun_can_be_cancelled(two: PlannerProcesses, tmp_path: Path) -> None:
    """Its process ends, the other's call goes on, and the next call has a place."""
    go = tmp_path / "go"
    kept = two.submit(say_and_wait, tmp_path / "kept", go)
    ended = two.submit(say_and_wait, tmp_path / "ended")
    kept_process, ended_process = begun(tmp_path / "kept"), begun(tmp_path / "ended")
    assert ended.running()
    assert ended.cancel()
    assert ended.cancelled()
    assert not ended.running()
    assert wait([ended], LIMIT_S).done == {ended}
    with pytest.raises(CancelledError):
        ended.result()
    assert ends(ended_process)
    assert two.submit(pid).result(LIMIT_S) not in (kept_process, ended_process)
    go.touch()
    assert kept.result(LIMIT_S) == kept_process


def test_a_process_that_does_not_heed_sigterm_is_killed(one: PlannerProcesses, tmp_path: Path) -> None:
    stubborn = one.submit(say_and_stay, tmp_path / "stubborn")
    process = begun(tmp_path / "stubborn")
    assert stubborn.cancel()
    assert one.submit(pid).result(LIMIT_S) != process
    assert ends(process)


def test_a_process_that_is_to_end_is_asked_no_more() -> None:
    """Also where it has not heeded the signal yet, or never does."""
    process = PlanningProcess(memory_gib=1.0)
    deaf = Asked({}, signal.signal, (signal.SIGTERM, signal.SIG_IGN), {})
    assert process.call(deaf, lambda label, seen: None) is signal.SIG_DFL
    before = process.is_alive
    process.terminate()
    assert (before, process.is_alive) == (True, False)
    assert process.end() == 0, "it hears that nobody asks it any more"


def test_a_call_that_waits_is_only_taken_out_of_line(one: PlannerProcesses, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = one.submit(say_and_wait, tmp_path / "first", go)
    process = begun(tmp_path / "first")
    waiting = one.submit(say_and_wait, tmp_path / "waiting")
    assert waiting.cancel()
    assert wait([waiting], LIMIT_S).done == {waiting}
    last = one.submit(pid)
    go.touch()
    assert first.result(LIMIT_S) == last.result(LIMIT_S) == process
    assert not (tmp_path / "waiting").exists()


async def test_a_task_passes_its_cancellation_on(one: PlannerProcesses, tmp_path: Path) -> None:
    task = asyncio.ensure_future(asyncio.wrap_future(one.submit(say_and_wait, tmp_path / "mark")))
    process = await asyncio.to_thread(begun, tmp_path / "mark")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ends, process)
    assert await asyncio.wrap_future(one.submit(pid)) != process


def test_calls_that_are_cancelled_at_any_moment_harm_no_other(two: PlannerProcesses) -> None:
    """Short calls, cancelled before, while and after they run; every one that is left has its result."""
    for round_ in range(6):
        calls = [two.submit(abs, -number) for number in range(8)]
        for call in calls[round_ % 3 :: 3]:
            time.sleep(0.0005 * round_)
            call.cancel()
        for number, call in enumerate(calls):
            if not call.cancelled():
                assert call.result(LIMIT_S) == number


def test_a_killed_process_fails_its_call_alone(two: PlannerProcesses, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kept = two.submit(say_and_wait, tmp_path / "kept", go)
    lost = two.submit(say_and_wait, tmp_path / "lost")
    kept_process, lost_process = begun(tmp_path / "kept"), begun(tmp_path / "lost")
    os.kill(lost_process, signal.SIGKILL)
    with pytest.raises(PlannerDied, match=r"the planning process ended by signal 9 \(SIGKILL\)"):
        lost.result(LIMIT_S)
    assert two.submit(pid).result(LIMIT_S) not in (kept_process, lost_process)
    go.touch()
    assert kept.result(LIMIT_S) == kept_process


def test_a_process_that_died_while_idle_is_replaced(one: PlannerProcesses) -> None:
    first = one.submit(pid).result(LIMIT_S)
    os.kill(first, signal.SIGINT)
    assert one.submit(pid).result(LIMIT_S) == first, "Ctrl-C is the parent's business"
    os.kill(first, signal.SIGKILL)
    assert comes(lambda: has_ended(first))
    assert one.submit(pid).result(LIMIT_S) != first


def test_a_process_that_dies_as_it_is_asked_is_replaced(
    one: PlannerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken to be alive, as its death was not yet seen."""
    first = one.submit(pid).result(LIMIT_S)
    os.kill(first, signal.SIGKILL)
    assert comes(lambda: has_ended(first))
    monkeypatch.setattr(PlanningProcess, "is_alive", True)
    assert one.submit(pid).result(LIMIT_S) != first


def test_a_process_that_keeps_much_memory_is_replaced(one: PlannerProcesses) -> None:
    first = one.submit(pid).result(LIMIT_S)
    assert one.submit(keep, 0.1).result(LIMIT_S) == first
    assert one.submit(pid).result(LIMIT_S) == first
    assert one.submit(keep, 0.5).result(LIMIT_S) == first
    assert one.submit(pid).result(LIMIT_S) != first


def test_a_process_that_never_begins_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.planning.planning_process._serve", os._exit)
    with PlannerProcesses(1, memory_gib=1.0) as workers, pytest.raises(PlannerDied):
        workers.submit(pid).result(LIMIT_S)


@pytest.mark.parametrize("leave", [os._exit, sys.exit])
def test_an_exit_in_a_call_is_told_with_its_code(one: PlannerProcesses, leave: Callable[[int], None]) -> None:
    with pytest.raises(PlannerDied, match="ended with exit code 3"):
        one.submit(leave, 3).result(LIMIT_S)
    assert one.submit(abs, -1).result(LIMIT_S) == 1


def test_a_call_beyond_the_memory_limit_fails_alone(two: PlannerProcesses, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kept = two.submit(say_and_wait, tmp_path / "kept", go)
    with pytest.raises(PlannerOutOfMemory) as told:
        two.submit(allocate, 2.0).result(LIMIT_S)
    words = str(told.value)
    assert "Unable to allocate 2.00 GiB" in words
    assert "the limit is 1 GiB; plan fewer workloads" in words
    assert "raise BROKER_PLANNER_MEMORY_GIB" in words
    assert told.value.facts == {"limit_gib": 1.0, "setting": "BROKER_PLANNER_MEMORY_GIB"}
    assert two.submit(allocate, 0.5).result(LIMIT_S) == GIB // 16
    go.touch()
    assert kept.result(LIMIT_S)


def test_a_process_without_any_memory_left_still_tells(one: PlannerProcesses) -> None:
    with pytest.raises(PlannerOutOfMemory, match=r"it used 1\.00 GiB and asked for more"):
        one.submit(fill_up).result(LIMIT_S)


def test_a_thread_without_room_for_its_stack_is_want_of_memory(one: PlannerProcesses) -> None:
    with pytest.raises(PlannerOutOfMemory, match="can't start new thread"):
        one.submit(start_threads).result(LIMIT_S)


def test_a_death_near_the_limit_is_told_as_want_of_memory() -> None:
    died = r"ended by signal 6 \(SIGABRT\) while it used 1.* GiB"
    with PlannerProcesses(1, memory_gib=1.3) as workers, pytest.raises(PlannerOutOfMemory, match=died):
        workers.submit(fill_and_die).result(LIMIT_S)


def test_what_the_kernel_kills_for_memory_is_told_as_such() -> None:
    killed = death(-signal.SIGKILL, GIB, 4.0, killed_for_memory=True)
    assert "the machine had too little memory" in str(killed)
    assert "lower BROKER_PLANNER_PROCESSES or BROKER_PLANNER_MEMORY_GIB" in str(killed)
    assert "memory;" not in str(death(-signal.SIGSEGV, GIB, 4.0, killed_for_memory=True))
    assert not isinstance(death(-signal.SIGKILL, GIB, 4.0, killed_for_memory=False), PlannerOutOfMemory)
    assert "by signal 64" in str(death(-64, 0, 4.0, killed_for_memory=False))


def test_failures_of_a_call_come_back_as_they_were(one: PlannerProcesses) -> None:
    with pytest.raises(InputError, match="workloads: /team: found nothing, expected a name") as told:
        one.submit(fail, "ours").result(LIMIT_S)
    assert told.value.problems == (FieldProblem("/team", "nothing", "a name"),)
    with pytest.raises(RuntimeError, match="Unsendable: no such thing"):
        one.submit(fail, "foreign").result(LIMIT_S)
    with pytest.raises(Exception, match="pickle"):
        one.submit(lambda: None).result(LIMIT_S)
    assert one.submit(abs, -1).result(LIMIT_S) == 1


def test_shutdown_ends_what_is_at_work(two: PlannerProcesses, tmp_path: Path) -> None:
    calls = [two.submit(say_and_wait, tmp_path / name) for name in ("a", "b", "c")]
    processes = [begun(tmp_path / name) for name in ("a", "b")]
    two.shutdown(wait=False)
    assert all(call.cancelled() for call in calls)
    assert all(ends(process) for process in processes)
    two.shutdown(wait=False, cancel_futures=True)
    two.shutdown(wait=True)
    with pytest.raises(RuntimeError, match="they take no more calls"):
        two.submit(pid)


def test_shutdown_that_waits_lets_calls_finish(one: PlannerProcesses, tmp_path: Path) -> None:
    go = tmp_path / "go"
    calls = [one.submit(say_and_wait, tmp_path / "first", go), one.submit(pid)]
    process = begun(tmp_path / "first")
    go.touch()
    one.shutdown()
    assert [call.result(0) for call in calls] == [process, process]
    assert not is_alive(process)


PARENT = """
import sys, time
from pathlib import Path
from api.planning.workers import PlannerProcesses
from tests.api.test_workers import begun, pid, say_and_wait
if __name__ == "__main__":
    workers, folder = PlannerProcesses(2), Path(sys.argv[1])
    workers.submit(say_and_wait, folder / "at-work")
    (folder / "idle.begun").write_text(str(workers.submit(pid).result(200)))
    (folder / "idle.begun").rename(folder / "idle")
    begun(folder / "at-work")
    if sys.argv[2] == "stay":
        time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_no_process_outlives_its_parent(tmp_path: Path, how: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    stay = "stay" if how == "killed" else "go"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, script, tmp_path, stay], env=environment)
    try:
        processes = [begun(tmp_path / name) for name in ("at-work", "idle")]
        if how == "killed":
            parent.kill()
        parent.wait(LIMIT_S)
        assert all(ends(process) for process in processes)
    finally:
        parent.kill()
        parent.wait()


async def test_progress_crosses_the_border_throttled_and_whole() -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    workers = PlannerProcesses(publish=lambda plan_id, event: seen.append((plan_id, event)))
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


async def test_a_cancelled_call_tells_no_more_progress(tmp_path: Path) -> None:
    """Its progress waits for the loop, which is held up, when it is cancelled."""
    seen: list[str] = []
    workers = PlannerProcesses(publish=lambda plan_id, _: seen.append(plan_id))
    try:
        call = workers.submit(tell_and_wait, "plan-1", tmp_path / "mark")
        begun(tmp_path / "mark")
        time.sleep(0.5)
        assert call.cancel()
        await asyncio.wrap_future(workers.submit(tell, "plan-2"))
        await until_told(seen, 2)
        assert seen == ["plan-2", "plan-2"]
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
