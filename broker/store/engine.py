"""Opens a database: its driver, the settings of its connections, and its lock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, NullPool, event, func, make_url, select, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound, StoreUnavailable
from broker.store import schema
from broker.store.accounts.sealing import Seal, seal_all, seal_of
from broker.store.documents import to_json
from broker.store.failures import PRIMARY_CODE, failures_named
from broker.store.file_lock import FileLock, holder_of
from broker.store.leader import Leadership, LockedLeadership, SoleLeadership
from broker.store.market.kept_market import KeptMarket
from broker.store.sqlite_connection import SqliteConnections
from broker.store.statement_limit import LimitedConnection, answered_within
from broker.store.tables import LeaderRow
from broker.store.team_session import TeamSession
from broker.store.unit_of_work import SqlUnitOfWork
from broker.store.workers import is_alive, make_worker_id, say_alive, say_gone

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
BUSY_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_S = 30
"""The server rolls back a transaction whose process stopped in the middle of it."""
ANSWER_LIMIT_S = 2.0
RETURN_LIMIT_S = 5.0
"""How long a closing store waits for connections whose users were cancelled, if a server has to answer.

A file always answers, but on a busy machine later than that: there it waits for BUSY_TIMEOUT_MS."""
FOR_A_WHILE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""Codes of temporary SQLite errors."""
REACHING = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
"""Limits that detect a dead server while connecting, waiting (s) and sending (ms)."""


class Store:
    """An open database. Call ``close`` at the end."""

    def __init__(
        self,
        engine: AsyncEngine,
        lock: FileLock | None = None,
        *,
        seal: Seal | None = None,
        read_only: bool = False,
        connections: SqliteConnections | None = None,
    ) -> None:
        self._engine = engine
        self._connections = connections
        self._lock = lock
        self._read_only = read_only
        self._seal = seal or Seal()
        self._worker_id = make_worker_id()
        self._kept_market = KeptMarket()
        self._is_shared = engine.dialect.name == "postgresql"
        self._seat_engine: AsyncEngine | None = None
        self._question: asyncio.Task[bool] | None = None
        self._returning: set[asyncio.Task[None]] = set()

    def unit_of_work(self, scope: TeamScope) -> SqlUnitOfWork:
        """A new transaction; this method is a ``broker.ports.unit_of_work.UnitOfWorkFactory``."""
        return SqlUnitOfWork(
            self._engine, scope, self._worker_id, self._seal, self._kept_market, self._returning
        )

    def seat(self) -> Leadership:
        """This process's access to leadership. Call its ``leave`` before the store is closed."""
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
        """Writes the heartbeat that keeps this process's claims for some seconds. Raises StoreUnavailable.

        SQLite needs none, because the file has only one process.
        """
        if self._is_shared:
            await self._in_session(say_alive)

    async def say_gone(self) -> None:
        """Frees all claims of this process. Raises StoreUnavailable."""
        if self._is_shared:
            await self._in_session(say_gone)

    async def _in_session(self, act: Callable[[TeamSession, str], Awaitable[None]]) -> None:
        async with failures_named(), TeamSession(self._engine, EVERY_TEAM) as session, session.begin():
            await act(session, self._worker_id)

    async def migrate(self) -> None:
        """Migrates the schema to the newest revision. Several processes may do so at once.

        Raises StoreTooNew, StoreUnavailable, and Conflict for a read-only store or too old a revision.
        """
        if self._read_only:
            raise Conflict("the database was opened read-only; only its broker may migrate it")
        with answered_within(None):
            async with failures_named(), self._engine.begin() as connection:
                await connection.run_sync(schema.upgrade)

    async def seal_secrets(self) -> bool:
        """Encrypts stored secrets with the current key; False if there is no key, so that they are plain
        text.

        Raises InputError if they were encrypted with another key, and StoreUnavailable.
        """

        async def act(session: TeamSession, _worker_id: str) -> None:
            await seal_all(session, self._seal)

        with answered_within(None):
            await self._in_session(act)
        return not self._seal.is_open

    async def revision_is_current(self) -> bool:
        """Whether the schema is at the revision of this program.

        Raises StoreTooNew, StoreUnavailable, and Conflict for a revision that is too old.
        """
        async with failures_named(), self._engine.connect() as connection:
            return await connection.run_sync(schema.is_current)

    async def told_time(self) -> datetime | None:
        """The time of the database's server; None for a SQLite file. Raises StoreUnavailable."""
        if not self._is_shared:
            return None
        async with failures_named(), self._engine.connect() as connection:
            found: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
        return found

    async def find_leader(self) -> str | None:
        """The process that leads the timetable now; None if none does. Raises StoreUnavailable."""
        if not self._is_shared:
            return holder_of(Path(self._engine.url.database or ""))
        leader = select(LeaderRow.worker_id).where(is_alive(LeaderRow.worker_id))
        async with failures_named(), TeamSession(self._engine, EVERY_TEAM) as session:
            found: str | None = await session.scalar(leader)
        return found

    async def answers(self) -> bool:
        """Whether the database answers a query within ANSWER_LIMIT_S.

        A query without an answer is not cancelled, because the driver would wait for the server for that too.
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
        """Closes all connections, and releases the lock of the file."""
        if self._question is not None:
            self._question.cancel()
        loop = asyncio.get_running_loop()
        returning = [task for task in self._returning if task.get_loop() is loop]
        if returning:
            limit_s = RETURN_LIMIT_S if self._is_shared else BUSY_TIMEOUT_MS / 1000
            await asyncio.wait(returning, timeout=limit_s)
        await self._engine.dispose()
        if self._connections is not None:
            await self._connections.close()
        if self._seat_engine is not None:
            await self._seat_engine.dispose()
        if self._lock is not None:
            self._lock.release()


def create_store(url: str, *, exclusive: bool = True, secrets_key: str | None = None) -> Store:
    """The store at ``url``: ``sqlite:///file`` or ``postgresql://…``.

    A SQLite file has one broker. With ``exclusive`` it is created if necessary and locked; Conflict if
    another process has it. Without, it is read-only and may be used beside a running broker; NotFound if it
    does not exist. PostgreSQL serves any number of brokers. ``secrets_key`` encrypts secrets; for a SQLite
    file without it, the key is in a file beside the database. Raises InputError for any other URL.
    """
    parsed = _parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return Store(_postgresql_engine(parsed), seal=seal_of(secrets_key, None))
    path, connections = Path(parsed.database or ""), SqliteConnections()
    if not exclusive:
        if not path.is_file():
            raise NotFound("database", str(path), "start the broker or poll once first")
        engine = _sqlite_engine(parsed, connections, read_only=True)
        return Store(engine, read_only=True, connections=connections)
    lock = _take_file(path)
    engine = _sqlite_engine(parsed, connections, read_only=False)
    return Store(engine, lock, seal=seal_of(secrets_key, path), connections=connections)


def _parse_url(given: str) -> URL:
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise _bad_url(f"{len(given)} characters that are not a URL") from error
    shown = f"{url.drivername}://…"  # user, password and query may be secret
    if url.drivername not in DRIVERS:
        raise _bad_url(shown)
    url = url.set(drivername=DRIVERS[url.drivername])
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise _bad_url("a SQLite URL without a file")
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
    """Raises InputError if the file cannot be written: a broker could then answer, but do nothing."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")  # SQLite allows this even on a read-only file
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
    engine = create_async_engine(
        url, pool_pre_ping=True, hide_parameters=True, json_serializer=to_json, connect_args=connect_args
    )

    @event.listens_for(engine.sync_engine, "connect")
    def set_limits(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_S}s'")
        cursor.close()
        connection.commit()

    return engine


def _sqlite_engine(url: URL, connections: SqliteConnections, *, read_only: bool) -> AsyncEngine:
    # IMMEDIATE: reads see what is committed and open no transaction. The first write takes the write
    # lock at once, so that it waits for another writer instead of failing because of an old snapshot.
    connect_args = {"isolation_level": "IMMEDIATE", "async_creator_fn": connections.connect}
    engine = create_async_engine(
        url, hide_parameters=True, json_serializer=to_json, connect_args=connect_args
    )
    pragmas = [f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON", "synchronous=NORMAL"]
    pragmas.append("query_only=ON" if read_only else "journal_mode=WAL")

    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
