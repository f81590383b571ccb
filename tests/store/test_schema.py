"""Migrations lead to the schema that the rows describe, once, whoever starts them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import ProgrammingError

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import StoreTooNew, StoreUnavailable
from broker.store import Store, create_store
from broker.store.schema import _config
from broker.store.tables import Row
from tests.postgres import PostgresServer


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, Row.metadata))


async def test_the_rows_describe_the_migrated_schema(store: Store) -> None:
    async with store._engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_an_empty_database_becomes_current_and_stays_so(empty_database_url: str) -> None:
    store = create_store(empty_database_url)

    assert not await store.revision_is_current()
    await store.migrate()
    assert await store.revision_is_current()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        install_id = await unit.accounts.install_id()
    await store.migrate()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.accounts.install_id() == install_id
    await store.close()


async def test_a_database_of_a_newer_version_is_refused(store: Store) -> None:
    async with store._engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(StoreTooNew, match=r"at revision 9999, .*newest known: 00\d\d"):
        await store.migrate()
    with pytest.raises(StoreTooNew):
        await store.revision_is_current()


async def test_a_migration_that_fails_leaves_nothing(
    empty_database_url: str,
) -> None:
    store = create_store(empty_database_url)
    async with store._engine.begin() as connection:
        await connection.execute(text("CREATE TABLE plans (plan_id INTEGER)"))

    with pytest.raises((StoreUnavailable, ProgrammingError)) as caught:
        await store.migrate()
    assert "already exists" in f"{caught.value} {caught.value.__cause__}"

    async with store._engine.connect() as connection:
        tables = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    await store.close()
    assert tables == ["plans"]


async def test_two_that_migrate_at_once_do_it_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    stores = [create_store(url) for _ in range(3)]

    await asyncio.gather(*(store.migrate() for store in stores))

    assert [await store.revision_is_current() for store in stores] == [True] * 3
    for store in stores:
        await store.close()


async def test_a_migration_can_be_undone(store: Store) -> None:
    def downgrade(connection: Connection) -> list[str]:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        return inspect(connection).get_table_names()

    async with store._engine.begin() as connection:
        assert await connection.run_sync(downgrade) == ["alembic_version"]
