"""A database that goes away, at every point of a transaction: one named error, which tells no address."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, NotFound, StoreUnavailable
from broker.store import Store, create_store
from broker.store.failures import FULL, LOCKED, NO_ANSWER, NO_CONNECTION, READ_ONLY
from tests.postgres import PostgresServer
from tests.store.examples import plan_record

Kill = Callable[[], None]


@pytest.fixture
def url(postgres_server: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    made = postgres_server.create_database(migrated_postgres)
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = create_store(url)
    yield opened
    await opened.close()


@pytest.fixture
def kill(postgres_server: PostgresServer, url: str) -> Kill:
    return lambda: postgres_server.end_connections(url)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that only tests of this module stop."""
    server = PostgresServer()
    yield server
    server.stop()


async def assert_whole(store: Store) -> None:
    """Every connection was given back, and the next transaction works."""
    assert store._engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("after"))
        await unit.commit()


async def test_a_connection_that_ended_while_idle_is_made_anew(store: Store, kill: Kill) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.offers.find_as_of()
    kill()
    await assert_whole(store)


async def test_a_connection_that_ends_between_statements_is_unavailable(store: Store, kill: Kill) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            kill()
            await unit.plans.find("p")

    with pytest.raises(StoreUnavailable) as caught:
        await work()
    assert str(caught.value) == NO_ANSWER
    assert caught.value.__cause__ is not None
    await assert_whole(store)


async def test_a_connection_that_ends_before_the_commit_is_unavailable(store: Store, kill: Kill) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            kill()
            await unit.commit()

    with pytest.raises(StoreUnavailable, match=NO_ANSWER):
        await work()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound):
            await unit.plans.find("p")
    await assert_whole(store)


async def test_what_was_read_stands_when_only_the_rollback_fails(store: Store, kill: Kill) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_as_of()
        kill()
    assert found is None
    await assert_whole(store)


@pytest.mark.parametrize("error", [Conflict("no"), RuntimeError("defect"), TimeoutError("a seller's")])
async def test_a_rollback_that_fails_hides_no_other_error(store: Store, kill: Kill, error: Exception) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            kill()
            raise error

    with pytest.raises(type(error)) as caught:
        await work()
    assert caught.value is error
    await assert_whole(store)


async def test_work_that_goes_on_after_a_lost_statement_is_unavailable(store: Store, kill: Kill) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))
            kill()
            await asyncio.gather(unit.plans.find("p"), return_exceptions=True)
            await unit.plans.find("p")

    with pytest.raises(StoreUnavailable, match=NO_ANSWER):
        await work()
    await assert_whole(store)


async def test_a_transaction_that_idled_too_long_is_unavailable(store: Store) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            session = unit._session
            await session.execute(text("SET idle_in_transaction_session_timeout = '20ms'"))
            await asyncio.sleep(0.5)
            await unit.offers.find_as_of()

    with pytest.raises(StoreUnavailable, match=NO_ANSWER):
        await work()
    await assert_whole(store)


async def test_a_server_that_writes_nothing_says_so(store: Store) -> None:
    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            session = unit._session
            await session.execute(text("SET TRANSACTION READ ONLY"))
            await unit.plans.add(plan_record("p"))

    with pytest.raises(StoreUnavailable, match=READ_ONLY):
        await work()
    await assert_whole(store)


async def test_a_store_whose_connections_are_all_in_use_is_busy(url: str) -> None:
    parsed = make_url(url).set(drivername="postgresql+psycopg")
    store = Store(create_async_engine(parsed, pool_size=1, max_overflow=0, pool_timeout=0.05))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.offers.find_as_of()
        with pytest.raises(StoreUnavailable, match=NO_CONNECTION):
            async with store.unit_of_work(EVERY_TEAM) as other:
                await other.offers.find_as_of()
    await assert_whole(store)
    await store.close()


async def test_a_stopped_server_is_unavailable_without_its_address_until_it_is_back(
    own_server: PostgresServer,
) -> None:
    url = own_server.create_database()
    store = create_store(url)
    await store.migrate()
    seat = store.seat()
    assert await seat.take() is not None
    assert await store.answers()
    own_server.pause()
    try:

        async def read() -> None:
            async with store.unit_of_work(EVERY_TEAM) as unit:
                await unit.offers.find_as_of()

        with capture_logs() as logs:
            for ask in (
                read,
                store.migrate,
                store.revision_is_current,
                store.say_alive,
                seat.has_passed,
                seat.take,
            ):
                with pytest.raises(StoreUnavailable) as caught:
                    await ask()
                assert str(caught.value) == NO_ANSWER
        assert not await store.answers()
        assert "socket" in logs[-1]["error"]  # the log has what the driver said
    finally:
        own_server.resume()
    await assert_whole(store)
    assert await seat.take() is not None
    await seat.leave()
    await store.close()


async def test_a_full_disk_and_a_read_only_file_say_so(tmp_path: Path, migrated_sqlite: Path) -> None:
    file = tmp_path / "broker.db"
    file.write_bytes(migrated_sqlite.read_bytes())
    store = create_store(f"sqlite:///{file}")
    for pragma, told in (("max_page_count = 1", FULL), ("query_only = ON", READ_ONLY)):

        @event.listens_for(store._engine.sync_engine, "begin", once=True)
        def limit(connection: object, pragma: str = pragma) -> None:
            connection.exec_driver_sql(f"PRAGMA {pragma}")  # type: ignore[attr-defined]

        with pytest.raises(StoreUnavailable, match=told):
            async with store.unit_of_work(EVERY_TEAM) as unit:
                await unit.plans.add(plan_record("p" * 200_000))
        await store._engine.dispose()
    await assert_whole(store)
    await store.close()


async def test_a_file_that_another_program_holds_is_busy(tmp_path: Path, migrated_sqlite: Path) -> None:
    file = tmp_path / "broker.db"
    file.write_bytes(migrated_sqlite.read_bytes())
    options = {"isolation_level": "IMMEDIATE", "timeout": 0.01}
    store = Store(create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args=options))
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def work() -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.plans.add(plan_record("p"))

    with pytest.raises(StoreUnavailable, match=LOCKED):
        await work()
    other.execute("ROLLBACK")
    other.close()
    await assert_whole(store)
    await store.close()
