"""What is refused, and what runs for nobody, stands where people look."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.planning.workload import WorkloadKind
from tests.api.house import ADMIN_KEY, Home, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

HOUR = timedelta(hours=1)


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


async def signed_in(home: Home) -> httpx.AsyncClient:
    client = home.client(None)
    assert (await client.post("/signin", data={"key": ADMIN_KEY})).status_code == 303
    return client


async def text_of(client: httpx.AsyncClient, path: str) -> str:
    """What a page says, without its markup."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", answer.text))


def a_row(reservation_id: str, state: ReservationState, unit: UnitState, **more: object) -> Reservation:
    reference = reservation_id if unit is UnitState.HELD else None
    row = Reservation(
        reservation_id=reservation_id,
        team="research",
        state=state,
        offer=an_offer(price="2.906", provider="vast"),
        nodes=2,
        start=NOON,
        end=NOON + 4 * HOUR,
        units=(Unit(0, f"tag-{reservation_id}", 2, unit, reference, ordered_at=NOON),),
        created_at=NOON - HOUR,
        workload="chat",
        plan_id="plan-1",
        active_at=NOON if state is ReservationState.ACTIVE else None,
    )
    return replace(row, **more)  # type: ignore[arg-type]


async def store(home: Home, *rows: Reservation) -> None:
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        for row in rows:
            await uow.reservations.add(row)
        await uow.commit()


async def test_the_plans_page_and_the_list_say_which_hours_are_short(home: Home) -> None:
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(a_record(a_plan()))
        await uow.commit()
    refused = {"tries": 3, "tried_at": NOON, "reason": "vast: that Vast machine was just rented"}
    await store(
        home,
        a_row("rsv-held", ReservationState.ACTIVE, UnitState.HELD),
        a_row("rsv-slot", ReservationState.SCHEDULED, UnitState.PLANNED, start=NOON + HOUR, **refused),
    )
    client = await signed_in(home)
    told = (
        "chat is short of 2 of 4 nodes from 23 Nov 13:00 UTC to 16:00 UTC: "
        "refused at Vast.ai (that Vast machine was just rented). The next try is at 2026-11-23 12:02 UTC."
    )
    for path in ("/plans/plan-1", "/reservations", "/reservations?plan_id=plan-1"):
        assert told in await text_of(client, path), path
    assert "Capacity is missing" not in await text_of(client, "/reservations?plan_id=plan-2")


async def a_short_batch(home: Home) -> None:
    """A reserved batch of 16 nodes, of which its seller gave 3."""
    part = a_placement(an_offer(provider="vast"), [a_segment(0, 10, 16)], "embed", WorkloadKind.BATCH)
    plan = a_plan(replace(part, nodes=16, gpus=128))
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(replace(a_record(plan), reserved_at=NOON))
        await uow.commit()
    units = (Unit(0, "t0", 3, UnitState.HELD, "i0", NOON), Unit(1, "t1", 13, UnitState.PLANNED))
    row = a_row("rsv-embed", ReservationState.PENDING, UnitState.HELD, tries=3, tried_at=NOON)
    row = replace(row, nodes=16, units=units, workload="embed", reason="vast: no stock", end=NOON + 10 * HOUR)
    await store(home, row)


async def test_every_answer_says_what_is_held_of_what_is_planned(home: Home) -> None:
    await a_short_batch(home)
    client, told = await signed_in(home), "3 of 16 nodes held, 13 missing"
    page = await text_of(client, "/plans/plan-1")
    assert told in page
    assert "embed has no expected end" in page
    assert "expected to be done" not in page
    for path in ("/", "/plans"):
        assert told in await text_of(client, path), path
    rows = await text_of(client, "/reservations")
    assert "3 of 16 nodes" in rows
    assert "part held" in rows
    api = home.client(ADMIN_KEY)
    shown = await api.get("/v1/plans/plan-1")
    assert shown.json()["holding"]["text"] == told
    (listed,) = (await api.get("/v1/plans")).json()["items"]
    assert listed["holding"]["missing"] == 13
    (row,) = (await api.get("/v1/reservations")).json()["items"]
    assert (row["nodes_held"], row["nodes"]) == (3, 16)
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        kept = await uow.reservations.find("rsv-embed")
        bought = tuple(replace(unit, state=UnitState.HELD, reference=unit.tag) for unit in kept.units)
        await uow.reservations.update(replace(kept, units=bought, tries=0))
        await uow.commit()
    again = await api.get("/v1/plans/plan-1", headers={"If-None-Match": shown.headers["ETag"]})
    assert again.json()["holding"]["text"] == "16 of 16 nodes held", "the tag changes with what is held"


async def test_the_spend_page_and_the_projection_say_what_runs_for_nobody(home: Home) -> None:
    orphan = a_row(
        "rsv-orphan", ReservationState.ACTIVE, UnitState.HELD, team="unattributed", end=None, plan_id=None
    )
    await store(home, orphan, a_row("rsv-ours", ReservationState.ACTIVE, UnitState.HELD, plan_id=None))
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(minutes=30)
    client = await signed_in(home)
    assert "1 orphaned lease, $5.81 so far. It belongs to no team and costs $5.812 per hour" in await text_of(
        client, "/spend"
    )
    document = (await home.client(ADMIN_KEY).get("/v1/spend/projection")).json()
    assert document["orphaned"] == [
        {
            "provider": "vast",
            "reservation_ids": ["rsv-orphan"],
            "owed_usd": "5.81",
            "usd_per_hour": "5.812",
        }
    ]
    mine = (await (await home.team("research")).get("/v1/spend/projection")).json()
    assert mine["orphaned"] == []
    by_team = {row["group"]: Decimal(row["usd"]) for row in document["items"] if row["basis"] == "actual"}
    assert by_team["unattributed"] == Decimal("5.81")
