"""Who works on this database: processes that are alive, and the rows that each has claimed."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from broker.store.tables import Row, WorkerRow
from broker.store.team_session import TeamSession
from broker.store.writes import column_of, table_of, update_many, upsert_one

ALIVE_FOR = timedelta(seconds=15)
"""How long a worker counts as alive after it last said so."""
FORGOTTEN_AFTER = timedelta(days=1)


def make_worker_id() -> str:
    """A name of this process that no other has, and by which an operator finds it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def from_now(session: TeamSession, span: timedelta) -> ColumnElement[datetime] | datetime:
    """``span`` from now by the clock that all workers share: the database's.

    A SQLite file has one worker, whose own clock serves as well.
    """
    if session.get_bind().dialect.name == "postgresql":
        return func.now() + span
    return datetime.now(UTC) + span


def is_alive(worker: InstrumentedAttribute[str | None]) -> ColumnElement[bool]:
    """Whether another worker of that name is alive. On SQLite none is: the file has one process."""
    return worker.in_(select(WorkerRow.worker_id).where(WorkerRow.alive_until > func.now()))


def is_free(row: type[Row], worker_id: str) -> ColumnElement[bool]:
    """Whether ``worker_id`` may claim a row: no other worker that is alive has a claim whose lease runs."""
    holder, until = column_of(row, "claimed_by"), column_of(row, "claimed_until")
    return or_(holder.is_(None), holder == worker_id, until <= func.now(), ~is_alive(holder))


async def claim_rows(
    session: TeamSession,
    row: type[Row],
    key: InstrumentedAttribute[str],
    wanted: ColumnElement[bool],
    worker_id: str,
    lease: timedelta,
) -> tuple[str, ...]:
    """Claims what is ``wanted`` and free, until ``lease`` has passed; the keys of what was claimed.

    A row that somebody is claiming or writing at this moment is passed over, not waited for.
    """
    free = select(key).where(wanted, is_free(row, worker_id)).order_by(key)
    keys = tuple(await session.scalars(free.with_for_update(skip_locked=True)))
    values = {"claimed_by": worker_id, "claimed_until": from_now(session, lease)}
    await update_many(session, row, key, keys, values)
    return keys


async def take_turn(session: TeamSession, key: int, name: str) -> None:
    """Until this transaction ends, nobody else takes the turn of ``key`` and ``name``.

    On SQLite whoever has written in its transaction is alone already.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(key, func.hashtext(name))))


async def say_alive(session: TeamSession, worker_id: str) -> None:
    """Keeps the claims of ``worker_id`` good for another while, and forgets workers long gone."""
    values = {"worker_id": worker_id, "alive_until": from_now(session, ALIVE_FOR)}
    await upsert_one(session, WorkerRow, values)
    table = table_of(WorkerRow)
    await session.execute(delete(table).where(table.c.alive_until < from_now(session, -FORGOTTEN_AFTER)))


async def say_gone(session: TeamSession, worker_id: str) -> None:
    """Frees every claim of ``worker_id``."""
    table = table_of(WorkerRow)
    await session.execute(delete(table).where(table.c.worker_id == worker_id))
