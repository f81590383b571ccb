"""The leader's seat: which process runs the timetable, and the epoch that its writes are made in.

On PostgreSQL the seat is an advisory lock on a connection of its own, which ends with the process; the
server ends it too when a stopped process has said nothing for a while. The lock alone guards nothing, as its
holder may wake up late: every commit of the leader's work compares its epoch (``broker.store.unit_of_work``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import psycopg
from sqlalchemy import select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from broker.domain.errors import LeadershipLost
from broker.store.failures import failures_named
from broker.store.tables import LeaderRow
from broker.store.writes import table_of

TIMETABLE = "timetable"
SEAT_LOCK = 0x6C65_6164
"""Key of the advisory lock ("lead" in ASCII)."""
SILENCE_S = 10
"""The server ends the seat of a process that was silent for this long."""
ANSWER_LIMIT_S = 5.0


async def find_epoch(session: AsyncSession) -> int | None:
    """The epoch that stands, which no other can follow until this transaction ends."""
    statement = select(LeaderRow.epoch).where(LeaderRow.work == TIMETABLE)
    return await session.scalar(statement.with_for_update(read=True))


class Seat(Protocol):
    """One process has it at a time. Every method raises StoreUnavailable when the database fails."""

    async def take(self) -> int | None:
        """The epoch that begins with us; None while another leads."""
        ...

    async def keep(self) -> None:
        """To be called every second or so; LeadershipLost when it is not ours any more."""
        ...

    async def tell_passed(self) -> None:
        """Says that our first pass has ended."""
        ...

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        ...

    async def leave(self) -> None:
        """Lets others have it; twice is no error."""
        ...


class SoleSeat:
    """The seat of a SQLite file: whoever has the file's lock leads."""

    def __init__(self, engine: AsyncEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id

    async def take(self) -> int | None:
        """The epoch that begins with us."""
        async with failures_named(), self._engine.begin() as connection:
            return await _next_epoch(connection, self._worker_id)

    async def keep(self) -> None:
        """Nobody else can have it."""

    async def tell_passed(self) -> None:
        """Says that our first pass has ended."""
        async with failures_named(), self._engine.begin() as connection:
            await _say_passed(connection)

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        async with failures_named(), self._engine.connect() as connection:
            return await _read_passed(connection)

    async def leave(self) -> None:
        """The file's lock ends with the store."""


class LockedSeat:
    """The seat of a PostgreSQL database. ``engine`` makes connections of its own, in autocommit."""

    def __init__(self, engine: AsyncEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._connection: AsyncConnection | None = None
        self._driver: psycopg.AsyncConnection | None = None
        self._epoch: int | None = None

    async def take(self) -> int | None:
        """The epoch that begins with us; None while another leads."""
        async with self._connected() as connection:
            lock = text("SELECT pg_try_advisory_lock(:key)")
            if not await connection.scalar(lock, {"key": SEAT_LOCK}):
                return None
            self._epoch = await _next_epoch(connection, self._worker_id)
        return self._epoch

    async def keep(self) -> None:
        """Tells the server that we live; LeadershipLost when another epoch has begun."""
        async with self._connected() as connection:
            epoch = await connection.scalar(select(LeaderRow.epoch).where(LeaderRow.work == TIMETABLE))
        if self._epoch is None or epoch != self._epoch:
            await self.leave()
            raise LeadershipLost(f"epoch {epoch} has begun")

    async def tell_passed(self) -> None:
        """Says that our first pass has ended."""
        async with self._connected() as connection:
            await _say_passed(connection)

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        async with self._connected() as connection:
            return await _read_passed(connection)

    async def leave(self) -> None:
        """Ends the connection, and the lock with it."""
        connection, self._connection, self._epoch = self._connection, None, None
        if connection is not None and self._driver is not None:
            await connection.invalidate()  # so that nothing is sent over what may be dead
            await connection.close()
            await self._driver.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        """The seat's connection; whatever fails on it ends it, and the lock with it."""
        try:
            async with failures_named(), asyncio.timeout(ANSWER_LIMIT_S):
                if self._connection is None:
                    self._connection = await self._engine.connect()
                    self._driver = (await self._connection.get_raw_connection()).driver_connection
                    await self._connection.execute(text(f"SET idle_session_timeout = '{SILENCE_S}s'"))
                yield self._connection
        except BaseException:
            await self.leave()
            raise


async def _next_epoch(connection: AsyncConnection, worker_id: str) -> int:
    table = table_of(LeaderRow)
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table).values(work=TIMETABLE, epoch=1, worker_id=worker_id, passed=False)
    next_ = {"epoch": table.c.epoch + 1, "worker_id": worker_id, "passed": False}
    followed = statement.on_conflict_do_update(index_elements=["work"], set_=next_).returning(table.c.epoch)
    epoch: int = (await connection.execute(followed)).scalar_one()
    return epoch


async def _say_passed(connection: AsyncConnection) -> None:
    table = table_of(LeaderRow)
    await connection.execute(update(table).where(table.c.work == TIMETABLE).values(passed=True))


async def _read_passed(connection: AsyncConnection) -> bool:
    return bool(await connection.scalar(select(LeaderRow.passed).where(LeaderRow.work == TIMETABLE)))
