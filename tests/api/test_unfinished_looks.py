"""A look that was cut off is told wherever looks and plans are told, until one is finished."""

from __future__ import annotations

from html import unescape
from pathlib import Path

from rich.console import Console

from api.cli.plans.reoptimization_view import looks_section
from api.cli.tables import print_section
from api.jobs.scheduler import Scheduler
from api.schemas.plans.reoptimization import REOPTIMIZATION
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import cut_off
from tests.api.house import ADMIN_KEY, House

GAUGE = "broker_unfinished_looks"


def counted(metrics: str) -> float:
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(GAUGE + " "))


async def test_a_look_that_was_cut_off_is_told_until_one_is_finished(tmp_path: Path) -> None:
    house = House(tmp_path / "b.db")
    async with house.open() as home:
        client, visitor = home.client(), home.client(None)
        await visitor.post("/signin", data={"key": ADMIN_KEY})
        plan_id = (await home.plan(client))["plan_id"]
        seen = Reoptimization(
            "reopt-1", "research", plan_id, "timetable", house.clock.now(), ProposalState.UNCHANGED
        )
        async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
            await uow.reoptimizations.add(cut_off(seen, "1 of 1 workloads were not tried elsewhere", 60.0))
            await uow.commit()

        timetable = Scheduler(home.product)
        await timetable.finish_looks()
        assert counted((await client.get("/metrics")).text) == 1
        (told,) = (await client.get("/v1/reoptimizations")).json()["items"]
        assert (told["state"], told["guard_s"]) == ("unfinished", 60.0)
        assert told["retry_at"] == "2026-11-23T12:01:00Z"
        for page in ("/proposals", "/proposals/reopt-1", f"/plans/{plan_id}"):
            assert told["reason"] in unescape((await visitor.get(page)).text), page
        console = Console(width=150, record=True)
        print_section(looks_section([REOPTIMIZATION.read(told)]), console)
        terminal = console.export_text()
        assert "unfinished" in terminal
        assert "again from" in terminal

        house.clock.advance(minutes=1)  # type: ignore[attr-defined]
        await timetable.finish_looks()
        assert counted((await client.get("/metrics")).text) == 0
        looks = (await client.get("/v1/reoptimizations")).json()["items"]
        assert [look["state"] for look in looks] == ["unchanged", "lapsed"]
        assert "was not finished within" not in unescape((await visitor.get(f"/plans/{plan_id}")).text)
