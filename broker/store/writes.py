"""Writes that all repositories share: insert once, insert or update, update if unchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, Delete, Table, Update, delete, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute

from broker.domain.basics.errors import ConcurrentChange, Conflict
from broker.store.tables import Row
from broker.store.team_session import TeamSession, team_rows

Values = Mapping[str, Any]
KEYS_PER_STATEMENT = 1000
UNSYNCHRONIZED = MappingProxyType({"synchronize_session": False})
"""Sessions need not follow changes of a statement, because repositories always read again."""


def table_of(row: type[Row]) -> Table:
    """The table of ``row``."""
    table = row.__table__
    assert isinstance(table, Table)
    return table


def column_of(row: type[Row], name: str) -> InstrumentedAttribute[Any]:
    """A column of ``row`` by its name."""
    column = getattr(row, name)
    assert isinstance(column, InstrumentedAttribute)
    return column


async def insert_new(session: TeamSession, row: type[Row], values: Values, name: str) -> None:
    """Inserts one row. Raises Conflict if its key is taken."""
    try:
        options = await session.checked(row, [values])
        await session.execute(insert(table_of(row)).values(**values), execution_options=options)
    except IntegrityError as error:
        raise Conflict(f"{name} already exists") from error


async def insert_many(session: TeamSession, row: type[Row], many: Sequence[Values]) -> None:
    """Inserts rows in bulk."""
    if many:
        options = await session.checked(row, many)
        await session.execute(insert(table_of(row)), list(many), execution_options=options)


async def insert_numbered(session: TeamSession, row: type[Row], values: Values, number: str) -> int:
    """Inserts one row whose key the database draws; that key, which the column ``number`` has."""
    options = await session.checked(row, [values])
    statement = insert(table_of(row)).values(**values).returning(column_of(row, number))
    return int((await session.execute(statement, execution_options=options)).scalar_one())


async def insert_or_keep(session: TeamSession, row: type[Row], values: Values) -> bool:
    """Inserts one row unless its key is taken; returns whether it was inserted.

    If another transaction is inserting the same key, it waits for the outcome.
    """
    statement = (await _insert(session, row, [values])).values(**values).on_conflict_do_nothing()
    inserted = await session.execute(statement.returning(*table_of(row).primary_key))
    return inserted.first() is not None


async def upsert_many(session: TeamSession, row: type[Row], many: Sequence[Values]) -> None:
    """Inserts rows in bulk, and overwrites rows with the same primary key."""
    if not many:
        return
    statement = await _upsert(session, row, many)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in many[0] if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced), list(many))


async def add_up_many(
    session: TeamSession, row: type[Row], many: Sequence[Values], counted: Collection[str]
) -> None:
    """Inserts rows in bulk, and adds the ``counted`` columns to rows with the same primary key."""
    if not many:
        return
    statement, table = await _upsert(session, row, many), table_of(row)
    keys = [column.name for column in table.primary_key]
    sums = {name: table.c[name] + statement.excluded[name] for name in counted}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), list(many))


async def upsert_one(session: TeamSession, row: type[Row], values: Values) -> None:
    """Inserts or overwrites one row; ``values`` may be SQL expressions."""
    statement = (await _upsert(session, row, [values])).values(**values)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in values if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced))


async def count_up(session: TeamSession, row: type[Row], key: Values, column: str) -> None:
    """Increments ``column`` of the row at ``key``; inserts the row with 1 if there is none.

    The next increment waits until this transaction ends.
    """
    values = {**key, column: 1}
    statement = (await _upsert(session, row, [values])).values(**values)
    counted = {column: table_of(row).c[column] + 1}
    await session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=counted))


def batches(keys: Iterable[str]) -> Iterator[list[str]]:
    """``keys`` in batches that fit into one statement."""
    rest = iter(keys)
    while part := list(islice(rest, KEYS_PER_STATEMENT)):
        yield part


async def delete_many(
    session: TeamSession, row: type[Row], key: InstrumentedAttribute[str], keys: Iterable[str]
) -> None:
    """Deletes the rows whose ``key`` is among ``keys``."""
    for part in batches(keys):
        await session.execute(delete(row).where(key.in_(part)), execution_options=UNSYNCHRONIZED)


async def update_many(
    session: TeamSession,
    row: type[Row],
    key: InstrumentedAttribute[str],
    keys: Iterable[str],
    values: Values,
) -> None:
    """Writes the same ``values`` to the rows whose ``key`` is among ``keys``."""
    for part in batches(keys):
        statement = update(row).where(key.in_(part)).values(**values)
        await session.execute(statement, execution_options=UNSYNCHRONIZED)


async def update_unchanged(
    session: TeamSession, row: type[Row], key: ColumnElement[bool], values: Values, name: str
) -> None:
    """Writes ``values`` and the next version if the version is still ``values["version"]``."""
    if row in team_rows():
        session.scope.require(values["team"])
    version: int = values["version"]
    same = key, column_of(row, "version") == version
    changed = update(row).where(*same).values({**values, "version": version + 1})
    if await change(session, changed) == 0:
        raise ConcurrentChange(f"{name} is not at version {version} any more; read it again and retry")


async def update_one(session: TeamSession, row: type[Row], key: ColumnElement[bool], values: Values) -> bool:
    """Writes ``values`` to the row with ``key``; False if there is none."""
    return await change(session, update(row).where(key).values(**values)) > 0


async def change(session: TeamSession, statement: Update | Delete) -> int:
    """Executes an update or a delete, and returns the number of rows."""
    return row_count(await session.execute(statement, execution_options=UNSYNCHRONIZED))


async def _upsert(
    session: TeamSession, row: type[Row], many: Sequence[Values]
) -> sqlite.Insert | postgresql.Insert:
    """An insert that may overwrite a row, which might be of another team, so it needs EVERY_TEAM."""
    is_of_a_team = row.owner is not None or (row in team_rows() and "team" not in table_of(row).primary_key)
    if session.scope.team is not None and is_of_a_team:
        raise RuntimeError(f"only units of work for EVERY_TEAM may overwrite rows of {table_of(row).name}")
    return await _insert(session, row, many)


async def _insert(
    session: TeamSession, row: type[Row], many: Sequence[Values]
) -> sqlite.Insert | postgresql.Insert:
    """An insert that supports ON CONFLICT, which both dialects have."""
    make = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return make(table_of(row)).execution_options(**await session.checked(row, many))


def row_count(result: object) -> int:
    """Number of rows that a statement changed."""
    assert isinstance(result, CursorResult)
    return result.rowcount
