"""Connections to a SQLite file, each with a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from threading import Thread
from typing import Any
from weakref import WeakSet

import aiosqlite

ROWS_AT_ONCE = 64
END_LIMIT_S = 5.0


class SqliteConnection(aiosqlite.Connection):
    """A connection whose thread is told to stop once.

    SQLAlchemy stops the thread of a connection whose closing is cancelled. The closing then tells the thread
    to stop again, and would wait forever for the answer of a thread that has ended, as would the end of the
    event loop.
    """

    _thread: Thread
    _is_told = False

    @property
    def thread(self) -> Thread:
        """The thread that works for it."""
        return self._thread

    def stop(self) -> asyncio.Future[Any] | None:
        """Ends the thread; what to wait for is returned to the first caller alone."""
        if self._is_told:
            return None
        self._is_told = True
        return super().stop()


class SqliteConnections:
    """Opens connections, and ends the threads of all that are left."""

    def __init__(self) -> None:
        self._open: WeakSet[SqliteConnection] = WeakSet()

    def connect(self, database: str, **options: Any) -> SqliteConnection:
        """A connection that opens when it is awaited. ``options``: those of ``sqlite3.connect``."""
        connection = SqliteConnection(partial(sqlite3.connect, database, **options), ROWS_AT_ONCE)
        connection.thread.daemon = True  # as SQLAlchemy has it
        self._open.add(connection)
        return connection

    async def close(self) -> None:
        """Stops every thread and waits for it, for END_LIMIT_S each: what a thread answers to a closed event
        loop is an error.
        """
        for connection in list(self._open):
            if connection.thread.is_alive():
                connection.stop()
                await asyncio.to_thread(connection.thread.join, END_LIMIT_S)
