"""The leader's seat: which process runs the timetable, and the epoch that its writes are made in.

On PostgreSQL the seat is an advisory lock on a connection of its own, which ends with the process; the
server ends it too when a stopped process has said nothing for a while. A thread of its own says so, because
an event loop that serves requests beside busy processes may stand still for half a minute. The lock alone
guards nothing, as its holder may wake up late: every commit of the leader's work compares its epoch
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
"""The server ends the seat of a process that was silent for this long."""
RENEWED_EVERY_S = 1.0
ANSWER_LIMIT_S = 8.0
"""Shorter than the silence: who gets no answer stands down before another can lead."""
STUCK_S = 60.0
"""A process whose event loop has not asked for its seat for this long gives it up: it leads nothing."""


async def find_epoch(session: TeamSession) -> int | None:
    """The epoch that stands, which no other can follow until this transaction ends."""
    statement = select(LeaderRow.epoch).where(LeaderRow.work == TIMETABLE)
    return await session.scalar(statement.with_for_update(read=True))


class Leadership(Protocol):
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


class SoleLeadership:
    """The seat of a SQLite file: whoever has the file's lock leads."""

    def __init__(self, engine: AsyncEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id

    async def take(self) -> int | None:
        """The epoch that begins with us."""
        async with failures_named(), self._engine.begin() as connection:
            return await connection.run_sync(_next_epoch, self._worker_id)

    async def keep(self) -> None:
        """Nobody else can have it."""

    async def tell_passed(self) -> None:
        """Says that our first pass has ended."""
        async with failures_named(), self._engine.begin() as connection:
            await connection.run_sync(_say_passed)

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        async with failures_named(), self._engine.connect() as connection:
            return await connection.run_sync(_read_passed)

    async def leave(self) -> None:
        """The file's lock ends with the store."""


class LockedLeadership:
    """The seat of a PostgreSQL database. ``engine`` makes connections of its own, in autocommit; ``now``:
    seconds that only grow.

    All that touches the connection runs in the loop of the seat's own thread.
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
        """The epoch that begins with us; None while another leads. From then on it is renewed."""
        self._asked_at = self._now()
        return await self._own.run(self._take())

    async def keep(self) -> None:
        """Says that we still lead; LeadershipLost when another epoch has begun or the seat was given up."""
        self._asked_at = self._now()
        if self._epoch is None:
            raise LeadershipLost(f"the leader's seat is lost: {self._why_lost}")

    async def tell_passed(self) -> None:
        """Says that our first pass has ended."""
        await self._own.run(self._tell_passed())

    async def has_passed(self) -> bool:
        """Whether the leader's first pass has ended."""
        return await self._own.run(self._has_passed())

    async def leave(self) -> None:
        """Ends the connection, and the lock with it."""
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
        """Tells the server that we live, until the seat is lost."""
        while self._epoch is not None:
            await asyncio.sleep(RENEWED_EVERY_S)
            silent_s = self._now() - self._asked_at
            if silent_s > STUCK_S:
                await self._give_up(f"the event loop of this process stood still for {silent_s:.0f} s")
                return
            with suppress(StoreUnavailable):  # then the connection has ended, and the seat with it
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
        """The seat's connection; whatever fails on it ends it, and the lock with it."""
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
            await connection.invalidate()  # so that nothing is sent over what may be dead
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
