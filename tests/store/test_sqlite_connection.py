"""The end of a connection whose closing is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.store.sqlite_connection import SqliteConnections


async def test_a_closing_that_is_cut_off_ends_although_its_thread_was_stopped(tmp_path: Path) -> None:
    connection = SqliteConnections().connect(str(tmp_path / "file.db"))
    await connection
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    stopped = connection.stop()
    assert stopped is not None
    closing.cancel()
    ended, _ = await asyncio.wait({closing}, timeout=60)
    assert ended
    await stopped
    connection.thread.join(60)
    assert not connection.thread.is_alive()


async def test_a_connection_that_nobody_closed_is_ended_with_the_others(tmp_path: Path) -> None:
    connections = SqliteConnections()
    connection = connections.connect(str(tmp_path / "file.db"))
    await connection
    await connections.close()
    assert not connection.thread.is_alive()
    await connections.close()
