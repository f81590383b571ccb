"""Leader election: which process runs the scheduled jobs, and the epoch of its writes.

On PostgreSQL, leadership is an advisory lock on a separate connection, which ends with the process. The
server also ends it if a stopped process was silent for a while. A separate thread renews it, because an event
loop that serves requests on a busy machine may stand still for half a minute. The lock alone protects
nothing, because its holder may wake up late; so each commit of the leader's work compares its epoch
(``broker.store.unit_of_work``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import psycopg
from sqlalchemy import Connection, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.domain.basics.errors import LeadershipLost, StoreUnavailable
from broker.store.failures import failures_named
from broker.store.own_loop import OwnLoop
from broker.store.tables import LeaderRow
from broker.store.team_session import TeamSession
from broker.store.writes import table_of

TIMETABLE = "timetable"
SEAT_LOCK = 0x6C65_6164
"""Key of the advisory lock ("lead" in ASCII)."""
SILENCE_S = 10
"""The server ends the leadership of a process that was silent for this long."""
RENEWED_EVERY_S = 1.0
ANSWER_LIMIT_S = 8.0
"""Shorter than SILENCE_S: a leader without an answer gives up before another one can lead."""
STUCK_S = 60.0
"""A process whose event loop did not call ``keep`` for this long gives up its leadership."""


async def find_epoch(session: TeamSession) -> int | None:
    """The current epoch, which does not change until this transaction ends."""
    statement = select(LeaderRow.epoch).where(LeaderRow.work == TIMETABLE)
    return await session.scalar(statement.with_for_update(read=True))


class Leadership(Protocol):
    """Leadership, which at most one process has. All methods raise StoreUnavailable if the database fails."""

    async def take(self) -> int | None:
        """Tries to become the leader. Returns the new epoch; None while another process leads."""
        ...

    async def keep(self) -> None:
        """Confirms leadership; to be called about every second. Raises LeadershipLost if it was lost."""
        ...

    async def tell_passed(self) -> None:
        """Stores that this leader's first pass has ended."""
        ...

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        ...

    async def leave(self) -> None:
        """Gives up leadership. Doing so twice is no error."""
        ...


class SoleLeadership:
    """Leadership for a SQLite file: the process with the file's lock leads."""

    def __init__(self, engine: AsyncEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id

    async def take(self) -> int | None:
        """Begins a new epoch."""
        async with failures_named(), self._engine.begin() as connection:
            return await connection.run_sync(_next_epoch, self._worker_id)

    async def keep(self) -> None:
        """Does nothing, because no other process can lead."""

    async def tell_passed(self) -> None:
        """Stores that this leader's first pass has ended."""
        async with failures_named(), self._engine.begin() as connection:
            await connection.run_sync(_say_passed)

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        async with failures_named(), self._engine.connect() as connection:
            return await connection.run_sync(_read_passed)

    async def leave(self) -> None:
        """Does nothing; the file's lock ends with the store."""


class LockedLeadership:
    """Leadership for a PostgreSQL database.

    ``engine`` makes separate connections in autocommit mode. ``now`` is a monotonic clock in seconds. The
    connection is used only in the event loop of a separate thread.
    """

    def __init__(
        self, engine: AsyncEngine, worker_id: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._now = now
        self._own = OwnLoop("seat")
        self._turn = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._driver: psycopg.AsyncConnection | None = None
        self._epoch: int | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._asked_at = now()
        self._why_lost = "it was not taken"

    async def take(self) -> int | None:
        """Tries to become the leader, and then renews it. Returns the new epoch; None if another leads."""
        self._asked_at = self._now()
        return await self._own.run(self._take())

    async def keep(self) -> None:
        """Confirms leadership. Raises LeadershipLost if another epoch has begun or it was given up."""
        self._asked_at = self._now()
        if self._epoch is None:
            raise LeadershipLost(f"this process lost its leadership: {self._why_lost}")

    async def tell_passed(self) -> None:
        """Stores that this leader's first pass has ended."""
        await self._own.run(self._tell_passed())

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        return await self._own.run(self._has_passed())

    async def leave(self) -> None:
        """Closes the connection, which ends the lock."""
        if self._connection is not None:
            await self._own.run(self._give_up("it was left"))
        await self._own.close()
        self._turn = asyncio.Lock()

    async def _take(self) -> int | None:
        async with self._connected() as connection:
            lock = text("SELECT pg_try_advisory_lock(:key)")
            if not await connection.scalar(lock, {"key": SEAT_LOCK}):
                return None
            self._epoch = await connection.run_sync(_next_epoch, self._worker_id)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return self._epoch

    async def _renew(self) -> None:
        """Renews the lock until leadership is lost."""
        while self._epoch is not None:
            await asyncio.sleep(RENEWED_EVERY_S)
            silent_s = self._now() - self._asked_at
            if silent_s > STUCK_S:
                await self._give_up(f"the event loop of this process stood still for {silent_s:.0f} s")
                return
            with suppress(StoreUnavailable):  # the connection has ended, and so has leadership
                async with self._connected() as connection:
                    epoch = await connection.run_sync(_read_epoch)
                if epoch != self._epoch:
                    await self._give_up(f"epoch {epoch} has begun")

    async def _tell_passed(self) -> None:
        async with self._connected() as connection:
            await connection.run_sync(_say_passed)

    async def _has_passed(self) -> bool:
        async with self._connected() as connection:
            return await connection.run_sync(_read_passed)

    async def _give_up(self, why: str) -> None:
        self._end_renewing()
        async with self._turn:
            await self._disconnect(why)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        """The connection of the lock. Any failure on it closes it, which ends the lock."""
        async with self._turn:
            try:
                async with failures_named(), asyncio.timeout(ANSWER_LIMIT_S):
                    if self._connection is None:
                        self._connection = await self._engine.connect()
                        self._driver = (await self._connection.get_raw_connection()).driver_connection
                        await self._connection.execute(text(f"SET idle_session_timeout = '{SILENCE_S}s'"))
                    yield self._connection
            except BaseException as error:
                await self._disconnect(str(error) or type(error).__name__)
                raise

    def _end_renewing(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None and renewing is not asyncio.current_task():
            renewing.cancel()

    async def _disconnect(self, why: str) -> None:
        self._end_renewing()
        connection, self._connection, self._epoch = self._connection, None, None
        self._why_lost = why
        if connection is not None and self._driver is not None:
            await connection.invalidate()  # so that nothing is sent on a dead connection
            await connection.close()
            await self._driver.close()


def _next_epoch(connection: Connection, worker_id: str) -> int:
    table = table_of(LeaderRow)
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table).values(work=TIMETABLE, epoch=1, worker_id=worker_id, passed=False)
    next_ = {"epoch": table.c.epoch + 1, "worker_id": worker_id, "passed": False}
    followed = statement.on_conflict_do_update(index_elements=["work"], set_=next_).returning(table.c.epoch)
    epoch: int = connection.execute(followed).scalar_one()
    return epoch


def _read_epoch(connection: Connection) -> int | None:
    return connection.scalar(select(LeaderRow.epoch).where(LeaderRow.work == TIMETABLE))


def _say_passed(connection: Connection) -> None:
    table = table_of(LeaderRow)
    connection.execute(update(table).where(table.c.work == TIMETABLE).values(passed=True))


def _read_passed(connection: Connection) -> bool:
    return bool(connection.scalar(select(LeaderRow.passed).where(LeaderRow.work == TIMETABLE)))
