"""Plans on a Dask cluster: a real scheduler and a real worker process on loopback."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest
from distributed import LocalCluster

from api.bootstrap import build_executor
from api.notices.events import PlanEvents
from api.planning import dask_workers
from api.planning.dask_workers import DaskPlanners
from broker.domain.basics.errors import InputError
from tests.api.test_workers import pid, tell, until_told

pytestmark = pytest.mark.xdist_group("dask")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """host:port of a cluster with one worker process."""
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


async def test_a_call_runs_on_the_cluster_and_ends_with_us(address: str) -> None:
    planners = build_executor(f"dask://{address}", PlanEvents())
    assert isinstance(planners, DaskPlanners)
    assert await asyncio.wrap_future(planners.submit(pid)) != os.getpid()
    waiting = planners.submit(time.sleep, 2)
    planners.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() or waiting.exception(60) is not None
    planners.shutdown(wait=False, cancel_futures=True)


def test_its_workers_are_the_threads_of_the_cluster_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "THREADS_KNOWN_S", 0.0)
    cluster = LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=3, dashboard_address=":0", host="127.0.0.1"
    )
    planners = DaskPlanners(cluster.scheduler_address.removeprefix("tcp://"))
    try:
        assert planners.workers == 3
        cluster.scale(0)  # type: ignore[no-untyped-call]
        while planners.workers > 1:
            time.sleep(0.05)
        cluster.close()
        assert planners.workers == 1, "a scheduler that is gone is no error"
    finally:
        cluster.close()
        planners.shutdown(wait=False, cancel_futures=True)


def test_a_scheduler_that_does_not_answer_keeps_nobody_waiting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "THREADS_KNOWN_S", 0.0)
    planners, asked, answer = DaskPlanners(address), threading.Event(), threading.Event()

    def nthreads(**_: float) -> dict[str, int]:
        asked.set()
        assert answer.wait(60)
        return {"tcp://worker": 5}

    monkeypatch.setattr(planners._client, "nthreads", nthreads)
    try:
        assert planners.workers == 1  # as known before
        assert asked.wait(60)
        assert planners.workers == 1
        answer.set()
        while planners.workers != 5:
            time.sleep(0.01)
    finally:
        planners.shutdown(wait=False, cancel_futures=True)


async def test_progress_comes_back_to_the_loop_that_asked(address: str) -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    planners = DaskPlanners(address, lambda plan_id, event: seen.append((plan_id, event)))
    try:
        await asyncio.wrap_future(planners.submit(tell, "plan-1"))
        await until_told(seen, 2)
        assert [(plan_id, event["stage"]) for plan_id, event in seen] == [
            ("plan-1", "priced"),
            ("plan-1", "chosen"),
        ]
        assert seen[0][1]["bound_usd"] == "99.00"
    finally:
        planners.shutdown(wait=False, cancel_futures=True)


def test_no_scheduler_is_said_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.planning.dask_workers.CONNECT_LIMIT_S", 0.5)
    with pytest.raises(InputError, match=r"BROKER_SOLVER_EXECUTOR.*a Dask scheduler that answers at 127"):
        build_executor("dask://127.0.0.1:9", PlanEvents())
