"""Migrations lead to the schema that the rows describe, once, whoever starts them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import ProgrammingError

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, StoreTooNew, StoreUnavailable
from broker.store import Store, create_store, schema
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


async def test_a_database_from_before_the_first_release_is_told_what_to_do(store: Store) -> None:
    async with store._engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0027'"))

    with pytest.raises(Conflict, match=r"at revision 0027, .*Start once, with this database, a checkout"):
        await store.migrate()
    with pytest.raises(Conflict, match="continues from 0030 on"):
        await store.revision_is_current()


async def test_an_older_database_is_migrated(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    migrations = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, migrations)
    newest = ScriptDirectory(str(migrations)).get_current_head()
    (migrations / "versions" / "9999_colour.py").write_text(NEXT.format(newest), encoding="utf-8")
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)

    assert not await store.revision_is_current()
    await store.migrate()
    assert await store.revision_is_current()
    async with store._engine.connect() as connection:
        assert (await connection.execute(text("SELECT colour FROM plans"))).all() == []


NEXT = """from alembic import op
import sqlalchemy as sa

revision, down_revision = "9999", "{}"


def upgrade():
    op.add_column("plans", sa.Column("colour", sa.String()))
"""


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
