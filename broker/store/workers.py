"""Workers: the live processes of this database, and the rows that each has claimed."""

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
"""How long a worker counts as alive after its last heartbeat."""
FORGOTTEN_AFTER = timedelta(days=1)


def make_worker_id() -> str:
    """A unique name of this process by which an operator can find it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def from_now(session: TeamSession, span: timedelta) -> ColumnElement[datetime] | datetime:
    """``span`` from now by the database's clock, which all workers share.

    A SQLite file has only one worker, so its own clock is used.
    """
    if session.get_bind().dialect.name == "postgresql":
        return func.now() + span
    return datetime.now(UTC) + span


def is_alive(worker: InstrumentedAttribute[str | None]) -> ColumnElement[bool]:
    """Whether another worker of that name is alive; never on SQLite, which has only one process."""
    return worker.in_(select(WorkerRow.worker_id).where(WorkerRow.alive_until > func.now()))


def is_free(row: type[Row], worker_id: str) -> ColumnElement[bool]:
    """Whether ``worker_id`` may claim a row, because no other live worker has an unexpired claim."""
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
    """Claims the free rows among ``wanted`` for ``lease``, and returns their keys.

    Rows that another transaction is claiming or writing are skipped.
    """
    free = select(key).where(wanted, is_free(row, worker_id)).order_by(key)
    keys = tuple(await session.scalars(free.with_for_update(skip_locked=True)))
    values = {"claimed_by": worker_id, "claimed_until": from_now(session, lease)}
    await update_many(session, row, key, keys, values)
    return keys


async def take_turn(session: TeamSession, key: int, name: str) -> None:
    """Locks ``key`` and ``name`` until this transaction ends.

    SQLite needs no lock, because only one transaction can write.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(key, func.hashtext(name))))


async def say_alive(session: TeamSession, worker_id: str) -> None:
    """Writes the heartbeat of ``worker_id``, which extends its claims. Deletes workers that died long ago."""
    values = {"worker_id": worker_id, "alive_until": from_now(session, ALIVE_FOR)}
    await upsert_one(session, WorkerRow, values)
    table = table_of(WorkerRow)
    await session.execute(delete(table).where(table.c.alive_until < from_now(session, -FORGOTTEN_AFTER)))


async def say_gone(session: TeamSession, worker_id: str) -> None:
    """Frees all claims of ``worker_id``."""
    table = table_of(WorkerRow)
    await session.execute(delete(table).where(table.c.worker_id == worker_id))
