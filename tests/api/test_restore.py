"""A backup is restored over a market that went on: judged by the seller's ledger."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.bootstrap import Product
from api.jobs.scheduler import Scheduler
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from tests.api.house import House
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock


def copy(source: Path, target: Path) -> None:
    """As the documentation says that backups are made, beside a running broker."""
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as file:
        live.backup(file)


async def reserve(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/reservations", json={"offer_id": "h100-a", "nodes": 1})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["reservation_id"])


def reconciler(house: House, product: Product, *, keep: bool) -> ReconcileService:
    units = product.store.unit_of_work
    parts = (units, a_buyer(units, {"fake": house.provider}, house.clock), house.clock, house.notifier)
    return ReconcileService(*parts, rules=ReconcileRules(keep_orphans=keep))


async def passes(house: House, service: ReconcileService, times: int = 20) -> None:
    assert isinstance(house.clock, FakeClock)
    for _ in range(times):
        house.clock.advance(minutes=2)
        await service.run_once()


def running(house: House) -> list[str]:
    return sorted(instance.reference for instance in house.provider.open_instances())


async def deeds(client: httpx.AsyncClient) -> list[tuple[str, str | None]]:
    document: dict[str, Any] = (await client.get("/v1/reconciliation")).json()
    assert document["unread"] == []
    return [(item["deed"], item["reference"]) for item in document["items"]]


async def lived(house: House, backup: Path) -> tuple[str, str, list[str]]:
    """A and B are reserved, a backup is made, C is reserved, A released: A's id, A's reference, B and C."""
    async with house.open() as home:
        client = await home.team("research")
        first = await reserve(client)
        (gone,) = running(house)
        await reserve(client)
        copy(house.database, backup)
        await reserve(client)
        assert (await client.delete(f"/v1/reservations/{first}")).status_code == 202
    left = running(house)
    assert len(left) == 2
    assert gone not in left
    return first, gone, left


@pytest.fixture
def paused(house: House) -> House:
    house.settings = house.settings.model_copy(update={"paused": True})
    return house


async def test_a_restore_is_shown_before_anything_is_done_and_keeps_what_runs(
    house: House, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.db"
    first, gone, left = await lived(house, backup)
    shutil.copy(backup, house.database)
    house.settings = house.settings.model_copy(update={"paused": True})
    async with house.open() as home:
        client = home.client()
        shown = await deeds(client)
        assert ("gone", gone) in shown
        assert ("buy", None) in shown
        (stray,) = [reference for deed, reference in shown if deed == "end"]
        assert stray in left
        assert running(house) == left
        refused = await client.post("/v1/reservations", json={"offer_id": "h100-a", "nodes": 1})
        assert (refused.status_code, refused.json()["code"]) == (503, "paused")
        assert (await client.delete(f"/v1/reservations/{first}")).status_code == 202
        assert ("buy", None) not in await deeds(client)
        service = reconciler(house, home.product, keep=True)
        assert {p.deed for p in (await service.preview())[0] if p.reference == stray} == {"adopt"}
        await passes(house, service)
        assert running(house) == left
        rows = (await client.get("/v1/reservations?limit=50")).json()["items"]
        held = [one for row in rows if row["state"] == "active" for one in row["provider_references"]]
        assert sorted(held) == left


async def test_what_is_shown_is_what_passes_do(house: House, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    left = (await lived(house, backup))[2]
    shutil.copy(backup, house.database)
    async with house.open() as home:
        shown = await deeds(home.client())
        ended = [reference for deed, reference in shown if deed == "end"]
        await passes(house, reconciler(house, home.product, keep=False))
        now = running(house)
        assert not set(ended) & set(now)
        bought = len([deed for deed, _ in shown if deed == "buy"])
        assert len(set(now) - set(left)) == bought == 1


async def test_a_paused_leader_polls_and_does_nothing_else(paused: House) -> None:
    async with paused.open(polled=False) as home:
        timetable = Scheduler(home.product)
        await timetable._first_pass()
        assert home.product.readiness.polled
        assert not home.product.readiness.reconciled
        names = {job.__name__ for job, _ in timetable._paused_jobs()}
        assert names == {"poll", "keep_history"}
