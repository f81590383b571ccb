"""Jobs that take longer than their interval run late, one at a time and beside the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from api.jobs.scheduler import Scheduler
from broker.domain.basics.errors import StoreUnavailable
from tests.api.house import House


class Blocked:
    """Work of every job, which ends when it is let; how often each began, and how many ran at once."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Event] = {}

    def work(self, name: str) -> Callable[..., Awaitable[None]]:
        self.gates[name] = asyncio.Event()

        async def run(*_: object, **__: object) -> None:
            self.begun[name] += 1
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
            try:
                await self.gates[name].wait()
            finally:
                self.running[name] -= 1

        return run


def blocked(timetable: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Blocked:
    """The works of all jobs, in place of the product's use cases."""
    works = Blocked()
    product: Any = timetable._product
    for service, name in (
        (timetable, "_poll"),
        (timetable, "_reconcile"),
        (product.reoptimize, "run"),
        (product.proposals, "act"),
        (product.budgets, "watch"),
        (product.spend, "roll_up"),
        (product.webhooks, "deliver"),
        (product.prices, "keep_up"),
        (product.retention, "prune"),
        (product.probes, "run_due"),
    ):
        monkeypatch.setattr(service, name, works.work(name))
    return works


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_failure_that_comes_again_is_told_once_and_when_it_is_over(house: House) -> None:
    is_down = True

    async def work() -> None:
        if is_down:
            raise StoreUnavailable("the database does not answer")

    async with house.open() as home:
        timetable = Scheduler(home.product)
        with capture_logs() as logs:
            for _ in range(5):
                await timetable._pass("prices", work)
            is_down = False
            for _ in range(2):
                await timetable._pass("prices", work)
    told = [(line["event"], line["untold"]) for line in logs if line.get("job") == "prices"]
    assert told == [("job failed", 0), ("job works again", 4)]


async def test_slow_jobs_run_late_alone_and_hold_up_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.open() as home:
        timetable = Scheduler(home.product)
        works = blocked(timetable, monkeypatch)
        jobs = [job for job, _ in timetable._jobs()]
        for _ in range(3):
            for job in jobs:
                timetable._in_background(job)
        await turns()
        assert works.begun == dict.fromkeys(works.gates, 1)
        works.gates["_reconcile"].set()
        await turns()
        timetable._in_background(timetable.reconcile)
        await turns()
        assert works.begun["_reconcile"] == 2
        assert works.begun["_poll"] == 1
        assert set(works.most.values()) == {1}
        await timetable.end()
        assert not +works.running


async def test_a_shutdown_during_every_job_logs_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as logs:
        async with house.open() as home:
            timetable = Scheduler(home.product)
            works = blocked(timetable, monkeypatch)
            timetable.start()
            for job, _ in timetable._jobs():
                timetable._in_background(job)
            await turns()
            assert set(works.begun) == set(works.gates)
        assert not +works.running
        timetable.stop()
    assert [entry for entry in logs if entry["log_level"] in {"error", "critical"}] == []
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("steps", range(6))
async def test_a_shutdown_just_as_jobs_fall_due_logs_nothing(
    steps: int, house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop has taken so many steps since every job fell due: a pass may be begun, or not yet."""
    async with house.open() as home:
        timetable = Scheduler(home.product)
        blocked(timetable, monkeypatch)
        timetable.start()
        await turns()
        for job in timetable._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))
        await turns(steps)
        await timetable.end()
        await turns()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_every_job_is_one_at_a_time_late_rather_than_never(house: House) -> None:
    async with house.open() as home:
        timetable = Scheduler(home.product)
        timetable.start()
        jobs = timetable._scheduler.get_jobs()
        assert len(jobs) == len(timetable._jobs())
        for job in jobs:
            assert (job.max_instances, job.coalesce, job.misfire_grace_time) == (1, True, None)
        await timetable.end()


async def test_who_led_before_tells_nothing_of_feeds(house: House) -> None:
    async with house.open(polled=False) as home:
        timetable = Scheduler(home.product)
        await timetable.poll()
        assert b'broker_feed_last_success_timestamp_seconds{provider="fake"}' in generate_latest()
        await timetable.end()
        assert b"broker_feed_last_success_timestamp_seconds{" not in generate_latest()
        assert b"broker_feed_offers{" not in generate_latest()
