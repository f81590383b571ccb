"""A seller whose list of leases cannot be read is told wherever the health of sellers is told."""

from __future__ import annotations

from html import unescape
from pathlib import Path

from api.jobs.scheduler import Scheduler
from tests.api.house import ADMIN_KEY, House
from tests.fakes.provider import Fault

METRIC = 'broker_lease_list_failures_total{provider="fake"}'


def counted(metrics: str) -> float:
    return next((float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(METRIC)), 0.0)


async def test_a_list_that_cannot_be_read_is_told_until_it_can(tmp_path: Path) -> None:
    house = House(tmp_path / "b.db")
    async with house.open() as home:
        client, visitor = home.client(), home.client(None)
        await visitor.post("/signin", data={"key": ADMIN_KEY})
        timetable = Scheduler(home.product)
        before = counted((await client.get("/metrics")).text)
        house.provider.fail("list", Fault.DOWN)
        await timetable.reconcile()

        (feed,) = (await client.get("/v1/providers")).json()["items"]
        assert feed["leases_error"].startswith("fake: ")
        assert feed["leases_unread_since"] == "2026-11-23T12:00:00Z"
        for page in ("/market", "/market/feeds/fake"):
            assert feed["leases_error"] in unescape((await visitor.get(page)).text)
        assert counted((await client.get("/metrics")).text) == before + 1

        await timetable.reconcile()
        (feed,) = (await client.get("/v1/providers")).json()["items"]
        assert (feed["leases_error"], feed["leases_unread_since"]) == (None, None)
        assert "leases unread" not in (await visitor.get("/market")).text
        assert counted((await client.get("/metrics")).text) == before + 1
