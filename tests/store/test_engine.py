"""Opening a database: URLs, the one process of a SQLite file, settings of a connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, InputError, NotFound, StoreUnavailable
from broker.store import create_store
from broker.store.file_lock import FileLock
from tests.store.examples import plan_record

NOBODY = 65534
HOLDER = """
import sys, time
from broker.store import create_store
store = create_store(sys.argv[1])
sys.stdout.write("held\\n")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://u:hunter2@h/d",
        "mysql://h/d?password=hunter2",
        "u:hunter2/h",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql+asyncpg://h/d",
    ],
)
def test_a_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(InputError, match=r"/database_url: found .*, expected sqlite:///") as caught:
        create_store(url)

    assert "hunter2" not in str(caught.value)


async def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    store = create_store(f"sqlite:///{tmp_path / 'a' / 'b' / 'broker.db'}")
    await store.migrate()
    await store.close()

    assert (tmp_path / "a" / "b" / "broker.db").is_file()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InputError, match="a SQLite file in a folder, both of which can be written"):
        create_store(f"sqlite:///{tmp_path / 'file' / 'broker.db'}")


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Not root, whom no mode of a file holds off."""
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("of", ["file", "folder"])
def test_what_cannot_be_written_is_not_served(migrated_sqlite: Path, of: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "broker.db"
        shutil.copy(migrated_sqlite, file)
        (folder / "broker.db.lock").touch()
        for path in (*folder.iterdir(), folder):
            path.chmod(0o777)
        if of == "file":
            file.chmod(0o444)
        else:
            folder.chmod(0o555)
        with an_ordinary_user():
            with pytest.raises(InputError, match=r"/database_url: .*broker\.db.*which can be written"):
                create_store(f"sqlite:///{file}")
            file_is_free = FileLock(file)
            file_is_free.release()
        folder.chmod(0o777)


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("This is a text and no database.")
    with pytest.raises(InputError, match=r"/database_url: .*not a database"):
        create_store(f"sqlite:///{file}")
    assert file.read_text() == "This is a text and no database."


async def test_every_connection_has_its_settings(tmp_path: Path) -> None:
    store = create_store(f"sqlite:///{tmp_path / 'broker.db'}")
    found = {}
    for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous"):
        async with store._engine.connect() as connection:
            found[name] = (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
    await store.close()

    assert found == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000, "synchronous": 1}


async def test_one_process_has_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    first = create_store(url)

    with pytest.raises(Conflict, match=f"in use by process {os.getpid()}"):
        create_store(url)

    await first.close()
    second = create_store(url)
    await second.close()
    await second.close()


async def test_a_killed_process_leaves_the_file_free(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(Conflict, match=f"in use by process {holder.pid}.*BROKER_DATABASE_URL"):
                create_store(url)
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait(60)

    await create_store(url).close()


async def test_others_may_read_beside_the_broker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    broker = create_store(url)
    await broker.migrate()
    reader = create_store(url, exclusive=False)
    async with broker.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("p"))
        await unit.commit()

        async with reader.unit_of_work(EVERY_TEAM) as reading:
            assert (await reading.plans.find("p")).plan_id == "p"

    assert await reader.revision_is_current()
    with pytest.raises(StoreUnavailable, match="read-only"):
        async with reader.unit_of_work(EVERY_TEAM) as writing:
            await writing.plans.add(plan_record("q"))
    with pytest.raises(Conflict, match="opened read-only"):
        await reader.migrate()
    await reader.close()
    await broker.close()


def test_a_missing_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="start the broker or poll once first"):
        create_store(f"sqlite:///{tmp_path / 'broker.db'}", exclusive=False)

    assert list(tmp_path.iterdir()) == []


async def test_another_name_of_a_file_does_not_pass_its_lock(tmp_path: Path) -> None:
    database = tmp_path / "broker.db"
    database.touch()
    symbolic, folder = tmp_path / "other.db", tmp_path / "folder"
    symbolic.symlink_to(database)
    folder.symlink_to(tmp_path, target_is_directory=True)
    lock = FileLock(database)
    for name in (symbolic, folder / "broker.db"):
        with pytest.raises(Conflict, match="in use"):
            FileLock(name)
    lock.release()
    hard = tmp_path / "hard.db"
    hard.hardlink_to(database)
    for name in (database, hard):
        with pytest.raises(Conflict, match="2 hard links"):
            FileLock(name)
    hard.unlink()
    FileLock(database).release()


async def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = create_store(f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/d")
        async with asyncio.timeout(120):
            assert not await store.answers()
            with pytest.raises(StoreUnavailable):
                await store.migrate()
        await store.close()
