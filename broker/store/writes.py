"""The writes that every repository shares: insert once, insert or update, update if unchanged."""

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
Upsert = sqlite.Insert | postgresql.Insert
KEYS_PER_STATEMENT = 1000
UNSYNCHRONIZED = MappingProxyType({"synchronize_session": False})
"""What is read is read anew, so that no session has to follow what a statement changes."""


def table_of(row: type[Row]) -> Table:
    """The table that keeps ``row``."""
    table = row.__table__
    assert isinstance(table, Table)
    return table


def column_of(row: type[Row], name: str) -> InstrumentedAttribute[Any]:
    """A column of ``row`` by its name."""
    column = getattr(row, name)
    assert isinstance(column, InstrumentedAttribute)
    return column


async def insert_new(session: TeamSession, row: type[Row], values: Values, name: str) -> None:
    """Inserts one row; Conflict when its key is taken."""
    try:
        options = await session.checked(row, [values])
        await session.execute(insert(table_of(row)).values(**values), execution_options=options)
    except IntegrityError as error:
        raise Conflict(f"{name} exists already") from error


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
    """Inserts one row unless its key is taken; whether it was inserted.

    Atomic: where another transaction is inserting the same key, this one waits for its outcome.
    """
    statement = (await _insert(session, row, [values])).values(**values).on_conflict_do_nothing()
    inserted = await session.execute(statement.returning(*table_of(row).primary_key))
    return inserted.first() is not None


async def upsert_many(session: TeamSession, row: type[Row], many: Sequence[Values]) -> None:
    """Inserts rows in bulk, writing over those whose primary key is there."""
    if not many:
        return
    statement = await _upsert(session, row, many)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in many[0] if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced), list(many))


async def add_up_many(
    session: TeamSession, row: type[Row], many: Sequence[Values], counted: Collection[str]
) -> None:
    """Inserts rows in bulk; where the primary key is there, adds ``counted`` columns to those of its row."""
    if not many:
        return
    statement, table = await _upsert(session, row, many), table_of(row)
    keys = [column.name for column in table.primary_key]
    sums = {name: table.c[name] + statement.excluded[name] for name in counted}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), list(many))


async def upsert_one(session: TeamSession, row: type[Row], values: Values) -> None:
    """Inserts one row, or writes over it; ``values`` may be SQL expressions."""
    statement = (await _upsert(session, row, [values])).values(**values)
    keys = [column.name for column in table_of(row).primary_key]
    replaced = {name: statement.excluded[name] for name in values if name not in keys}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced))


async def count_up(session: TeamSession, row: type[Row], key: Values, column: str) -> None:
    """Adds one to ``column`` of the row at ``key``, which is made with 1 where there is none.

    Whoever counts up next waits until this transaction ends.
    """
    values = {**key, column: 1}
    statement = (await _upsert(session, row, [values])).values(**values)
    counted = {column: table_of(row).c[column] + 1}
    await session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=counted))


def batches(keys: Iterable[str]) -> Iterator[list[str]]:
    """``keys`` in parts that one statement takes."""
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
        raise ConcurrentChange(f"{name} is not at version {version} any more")


async def update_one(session: TeamSession, row: type[Row], key: ColumnElement[bool], values: Values) -> bool:
    """Writes ``values`` where ``key`` holds; whether a row was there."""
    return await change(session, update(row).where(key).values(**values)) > 0


async def change(session: TeamSession, statement: Update | Delete) -> int:
    """Updates or deletes; how many rows."""
    return row_count(await session.execute(statement, execution_options=UNSYNCHRONIZED))


async def _upsert(
    session: TeamSession, row: type[Row], many: Sequence[Values]
) -> sqlite.Insert | postgresql.Insert:
    """An insert that may write over a row: only the installation may, where that may be another team's."""
    is_of_a_team = row.owner is not None or (row in team_rows() and "team" not in table_of(row).primary_key)
    if session.scope.team is not None and is_of_a_team:
        raise RuntimeError(f"{table_of(row).name} is written over by units of work for EVERY_TEAM alone")
    return await _insert(session, row, many)


async def _insert(
    session: TeamSession, row: type[Row], many: Sequence[Values]
) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what to do on conflict; both dialects say it alike."""
    make = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return make(table_of(row)).execution_options(**await session.checked(row, many))


def row_count(result: object) -> int:
    """How many rows a statement changed."""
    assert isinstance(result, CursorResult)
    return result.rowcount
