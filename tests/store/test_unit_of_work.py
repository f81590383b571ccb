"""One transaction: all or nothing, and how its failures are named."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import NotFound, StoreUnavailable
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.store import Store, create_store
from broker.store.tables import Row
from tests.store.examples import plan_record, reservation


async def test_leaving_without_commit_rolls_back(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("p"))
        assert (await unit.plans.find("p")).plan_id == "p"

    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound):
            await unit.plans.find("p")


async def test_an_error_rolls_back_every_repository(store: Store) -> None:
    async def fail() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            await unit.reservations.add(reservation("r"))
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        await fail()

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.reservations.find_open() == ()
        assert (await unit.plans.find_page(10, None)).items == ()


async def test_a_cancelled_unit_gives_its_connection_back(store: Store) -> None:
    async def hold() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            await asyncio.sleep(30)

    for _ in range(20):
        task = asyncio.create_task(hold())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("p"))
        await unit.commit()


async def test_what_is_not_committed_is_not_seen(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as writer, store.unit_of_work(EVERY_TEAM) as reader:
        await writer.plans.add(plan_record("p"))
        assert (await reader.plans.find_page(10, None)).items == ()

        await writer.commit()
        assert len((await reader.plans.find_page(10, None)).items) == 1


async def test_a_writer_that_read_first_waits_for_another(store: Store) -> None:
    async def write(plan_id: str) -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.find_page(10, None)
            await asyncio.sleep(0.01)
            await unit.plans.add(plan_record(plan_id))
            await asyncio.sleep(0.01)
            await unit.commit()

    await asyncio.gather(*(write(f"p{n}") for n in range(5)))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert len((await unit.plans.find_page(10, None)).items) == 5


async def test_naive_times_are_refused(store: Store) -> None:
    naive = datetime(2026, 11, 23)  # noqa: DTZ001  what is refused
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(Exception, match="must have a time zone"):
            await unit.plans.add(plan_record("p", created_at=naive))


async def test_relationships_never_load_by_themselves() -> None:
    relationships = [relation for mapper in Row.registry.mappers for relation in mapper.relationships]

    assert relationships
    assert {relation.lazy for relation in relationships} == {"raise"}


async def test_a_store_makes_units_of_work_as_the_ports_want_them(store: Store) -> None:
    factory: UnitOfWorkFactory = store.unit_of_work

    async with factory(EVERY_TEAM) as unit:
        assert await unit.offers.find_as_of() is None


async def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    store = create_store(f"postgresql://nobody@/nothing?host={tmp_path}")

    with pytest.raises(StoreUnavailable, match="the database does not answer"):
        await store.revision_is_current()
    with pytest.raises(StoreUnavailable):
        await store.migrate()
    with pytest.raises(StoreUnavailable):
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.offers.find_as_of()
    await store.close()
