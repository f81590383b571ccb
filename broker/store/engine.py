"""Opens a database: which driver, which settings of a connection, who else may."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import URL, NullPool, event, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound, StoreUnavailable
from broker.store import schema
from broker.store.accounts.sealing import Seal, seal_all, seal_of
from broker.store.failures import PRIMARY_CODE, failures_named
from broker.store.file_lock import FileLock
from broker.store.leader import Leadership, LockedLeadership, SoleLeadership
from broker.store.market.kept_market import KeptMarket
from broker.store.statement_limit import LimitedConnection, answered_within
from broker.store.team_session import TeamSession
from broker.store.unit_of_work import SqlUnitOfWork
from broker.store.workers import make_worker_id, say_alive, say_gone

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
BUSY_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_S = 30
"""The server rolls a transaction back whose process has stopped in the middle of it."""
ANSWER_LIMIT_S = 2.0
FOR_A_WHILE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""Codes of SQLite that say nothing of the next minute."""
REACHING = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
"""A server that is gone without a word is noticed while we connect, wait for it (s) and send to it (ms)."""


class Store:
    """An open database. ``close`` it when done."""

    def __init__(
        self,
        engine: AsyncEngine,
        lock: FileLock | None = None,
        *,
        seal: Seal | None = None,
        read_only: bool = False,
    ) -> None:
        self._engine = engine
        self._lock = lock
        self._read_only = read_only
        self._seal = seal or Seal()
        self._worker_id = make_worker_id()
        self._kept_market = KeptMarket()
        self._is_shared = engine.dialect.name == "postgresql"
        self._seat_engine: AsyncEngine | None = None
        self._question: asyncio.Task[bool] | None = None

    def unit_of_work(self, scope: TeamScope) -> SqlUnitOfWork:
        """A new transaction; this method is a ``broker.ports.unit_of_work.UnitOfWorkFactory``."""
        return SqlUnitOfWork(self._engine, scope, self._worker_id, self._seal, self._kept_market)

    def seat(self) -> Leadership:
        """This process's way to the leader's seat; ``leave`` it before the store is closed."""
        if not self._is_shared:
            return SoleLeadership(self._engine, self._worker_id)
        if self._seat_engine is None:
            self._seat_engine = create_async_engine(
                self._engine.url,
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                connect_args=REACHING,
            )
        return LockedLeadership(self._seat_engine, self._worker_id)

    async def say_alive(self) -> None:
        """Keeps what this process has claimed its own, for some seconds; StoreUnavailable.

        A SQLite file has one process: nobody has to be told.
        """
        if self._is_shared:
            await self._in_session(say_alive)

    async def say_gone(self) -> None:
        """Lets others have what this process has claimed; StoreUnavailable."""
        if self._is_shared:
            await self._in_session(say_gone)

    async def _in_session(self, act: Callable[[TeamSession, str], Awaitable[None]]) -> None:
        async with failures_named(), TeamSession(self._engine, EVERY_TEAM) as session, session.begin():
            await act(session, self._worker_id)

    async def migrate(self) -> None:
        """Brings the schema to the newest revision; safe when several processes start at once.

        Raises StoreTooNew, StoreUnavailable, and Conflict for a store opened to be read.
        """
        if self._read_only:
            raise Conflict("the database was opened to be read; only its broker may migrate it")
        with answered_within(None):
            async with failures_named(), self._engine.begin() as connection:
                await connection.run_sync(schema.upgrade)

    async def seal_secrets(self) -> bool:
        """Brings what is stored under the present key; False where there is none and secrets lie open.

        InputError when they were sealed with another key; StoreUnavailable.
        """

        async def act(session: TeamSession, _worker_id: str) -> None:
            await seal_all(session, self._seal)

        with answered_within(None):
            await self._in_session(act)
        return not self._seal.is_open

    async def revision_is_current(self) -> bool:
        """Whether the schema is the one that this program writes; StoreTooNew, StoreUnavailable."""
        async with failures_named(), self._engine.connect() as connection:
            return await connection.run_sync(schema.is_current)

    async def answers(self) -> bool:
        """Whether the database answers a question now, within ANSWER_LIMIT_S.

        A question that is not answered stays asked: to take it back, the driver waits for the server too.
        """
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask())
        asked, _ = await asyncio.wait({self._question}, timeout=ANSWER_LIMIT_S)
        return any(question.result() for question in asked)

    async def _ask(self) -> bool:
        try:
            async with failures_named(), self._engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except StoreUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Closes every connection and lets others have the file."""
        if self._question is not None:
            self._question.cancel()
        await self._engine.dispose()
        if self._seat_engine is not None:
            await self._seat_engine.dispose()
        if self._lock is not None:
            self._lock.release()


def create_store(url: str, *, exclusive: bool = True, secrets_key: str | None = None) -> Store:
    """The store at ``url``: ``sqlite:///file`` or ``postgresql://…``.

    A SQLite file has one broker: with ``exclusive`` it is created and locked (Conflict when another
    process has it), without it must exist (NotFound) and can only be read, beside a running broker.
    PostgreSQL serves any number. ``secrets_key`` seals secrets; a SQLite file without it has a key in a file
    beside it. Raises InputError for another URL.
    """
    parsed = _parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return Store(_postgresql_engine(parsed), seal=seal_of(secrets_key, None))
    path = Path(parsed.database or "")
    if not exclusive:
        if not path.is_file():
            raise NotFound("database", str(path), "start the broker or poll once first")
        return Store(_sqlite_engine(parsed, read_only=True), read_only=True)
    lock = _take_file(path)
    return Store(_sqlite_engine(parsed, read_only=False), lock, seal=seal_of(secrets_key, path))


def _parse_url(given: str) -> URL:
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise _bad_url(f"{len(given)} characters that are no URL") from error
    shown = f"{url.drivername}://…"  # user, password and query are nobody's business
    if url.drivername not in DRIVERS:
        raise _bad_url(shown)
    url = url.set(drivername=DRIVERS[url.drivername])
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise _bad_url("a SQLite database that is no file")
    return url


def _bad_url(shown: str) -> InputError:
    expected = "sqlite:///path/of/a/file or postgresql://user:password@host/database"
    return InputError("settings", (FieldProblem("/database_url", shown, expected),))


def _take_file(path: Path) -> FileLock:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(path)
    except OSError as error:
        raise _bad_file(path, str(error.strerror)) from error
    try:
        _try_to_write(path)
    except InputError:
        lock.release()
        raise
    return lock


def _try_to_write(path: Path) -> None:
    """InputError where nothing can be written: a broker that only reads would answer and do nothing."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")  # which alone SQLite lets pass
            connection.execute("PRAGMA user_version = 0")
            connection.rollback()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & PRIMARY_CODE not in FOR_A_WHILE:
                raise _bad_file(path, str(error)) from error


def _bad_file(path: Path, why: str) -> InputError:
    expected = "a SQLite file in a folder, both of which can be written"
    return InputError("settings", (FieldProblem("/database_url", f"{str(path)!r} ({why})", expected),))


def _postgresql_engine(url: URL) -> AsyncEngine:
    connect_args = {**REACHING, "async_creator_fn": LimitedConnection.connect}
    engine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=connect_args)

    @event.listens_for(engine.sync_engine, "connect")
    def set_limits(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_S}s'")
        cursor.close()
        connection.commit()

    return engine


def _sqlite_engine(url: URL, *, read_only: bool) -> AsyncEngine:
    # IMMEDIATE: reads see what is committed and open no transaction; the first write takes the
    # writer's place at once, so that it waits for another instead of failing on a stale snapshot.
    engine = create_async_engine(url, hide_parameters=True, connect_args={"isolation_level": "IMMEDIATE"})
    pragmas = [f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON", "synchronous=NORMAL"]
    pragmas.append("query_only=ON" if read_only else "journal_mode=WAL")

    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
