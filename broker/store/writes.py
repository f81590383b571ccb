"""The writes that every repository shares: insert once, insert or update, update if unchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, Table, delete, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from broker.domain.basics.errors import ConcurrentChange, Conflict
from broker.store.tables import Row

Values = Mapping[str, Any]
KEYS_PER_STATEMENT = 1000


def table_of(row: type[Row]) -> Table:
    """The table that keeps ``row``."""
    table = row.__table__
    assert isinstance(table, Table)
    return table


async def insert_new(session: AsyncSession, row: type[Row], values: Values, name: str) -> None:
    """Inserts one row; Conflict when its key is taken."""
    try:
        await session.execute(insert(table_of(row)).values(**values))
    except IntegrityError as error:
        raise Conflict(f"{name} exists already") from error


async def insert_many(session: AsyncSession, row: type[Row], many: Sequence[Values]) -> None:
    """Inserts rows in bulk."""
    if many:
        await session.execute(insert(table_of(row)), list(many))


async def insert_or_keep(session: AsyncSession, row: type[Row], values: Values) -> bool:
    """Inserts one row unless its key is taken; whether it was inserted.

    Atomic: where another transaction is inserting the same key, this one waits for its outcome.
    """
    statement = _insert(session, row).values(**values).on_conflict_do_nothing()
    inserted = await session.execute(statement.returning(*table_of(row).primary_key))
    return inserted.first() is not None


async def upsert_many(session: AsyncSession, row: type[Row], many: Sequence[Values]) -> None:
    """Inserts rows in bulk, writing over those whose primary key is there."""
    if not many:
        return
    statement = _insert(session, row)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in many[0] if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced), list(many))


async def add_up_many(
    session: AsyncSession, row: type[Row], many: Sequence[Values], counted: Collection[str]
) -> None:
    """Inserts rows in bulk; where the primary key is there, adds ``counted`` columns to those of its row."""
    if not many:
        return
    statement, table = _insert(session, row), table_of(row)
    keys = [column.name for column in table.primary_key]
    sums = {name: table.c[name] + statement.excluded[name] for name in counted}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), list(many))


async def upsert_one(session: AsyncSession, row: type[Row], values: Values) -> None:
    """Inserts one row, or writes over it; ``values`` may be SQL expressions."""
    statement = _insert(session, row).values(**values)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in values if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced))


async def count_up(session: AsyncSession, row: type[Row], key: Values, column: str) -> None:
    """Adds one to ``column`` of the row at ``key``, which is made with 1 where there is none.

    Whoever counts up next waits until this transaction ends.
    """
    statement = _insert(session, row).values(**key, **{column: 1})
    counted = {column: table_of(row).c[column] + 1}
    await session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=counted))


def batches(keys: Iterable[str]) -> Iterator[list[str]]:
    """``keys`` in parts that one statement takes."""
    rest = iter(keys)
    while part := list(islice(rest, KEYS_PER_STATEMENT)):
        yield part


async def delete_many(
    session: AsyncSession, row: type[Row], key: InstrumentedAttribute[str], keys: Iterable[str]
) -> None:
    """Deletes the rows whose ``key`` is among ``keys``."""
    for part in batches(keys):
        await session.execute(delete(table_of(row)).where(key.in_(part)))


async def update_many(
    session: AsyncSession,
    row: type[Row],
    key: InstrumentedAttribute[str],
    keys: Iterable[str],
    values: Values,
) -> None:
    """Writes the same ``values`` to the rows whose ``key`` is among ``keys``."""
    for part in batches(keys):
        await session.execute(update(table_of(row)).where(key.in_(part)).values(**values))


async def update_unchanged(
    session: AsyncSession, row: type[Row], key: ColumnElement[bool], values: Values, name: str
) -> None:
    """Writes ``values`` and the next version if the version is still ``values["version"]``."""
    table = table_of(row)
    version: int = values["version"]
    statement = (
        update(table).where(key, table.c.version == version).values({**values, "version": version + 1})
    )
    if row_count(await session.execute(statement)) == 0:
        raise ConcurrentChange(f"{name} is not at version {version} any more")


async def update_one(session: AsyncSession, row: type[Row], key: ColumnElement[bool], values: Values) -> bool:
    """Writes ``values`` where ``key`` holds; whether a row was there."""
    return row_count(await session.execute(update(table_of(row)).where(key).values(**values))) > 0


def _insert(session: AsyncSession, row: type[Row]) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what to do on conflict; both dialects say it alike."""
    make = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return make(table_of(row))


def row_count(result: object) -> int:
    """How many rows a statement changed."""
    assert isinstance(result, CursorResult)
    return result.rowcount
