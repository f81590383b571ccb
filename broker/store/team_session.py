"""A database session that filters every statement by team.

Each ORM statement gets the condition that rows belong to the team of its scope, wherever it uses a table
with a team: reads, updates, deletes, subqueries and aliases. Statements to which the condition cannot be
added are refused: SQL text, statements on a bare table, and inserts whose values were not checked. A
repository therefore cannot forget the team.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import ClauseElement, Column, Select, Table, TextClause, TextualSelect, event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql import visitors
from sqlalchemy.sql.base import ExecutableOption

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import NotFound
from broker.store.tables import DELETE, INSERT, UPDATE, Row

R = TypeVar("R", bound=Row)
_SCOPE = "team_scope"
_ALL_TEAMS_ASKED = "every_team"
_VALUES_SEEN = "team_values_seen"
_NOT_KEPT = (
    "a unit of work of one team uses {} in a way that cannot be kept to it:"
    " name mapped rows, insert with broker.store.writes, or open the unit of work for EVERY_TEAM"
)
MOST_TEAMS = 4_096


class TeamSession(AsyncSession):
    """One transaction that sees only rows of ``scope``."""

    def __init__(self, engine: AsyncEngine, scope: TeamScope) -> None:
        super().__init__(
            engine,
            sync_session_class=_Scoped,
            expire_on_commit=False,
            autoflush=False,
            info={_SCOPE: scope},
        )
        self.scope = scope

    async def find_row(self, row: type[R], **key: object) -> R | None:
        """The current row with this key. ``get`` would name the bare table, which is refused."""
        statement = select(row).filter_by(**key)
        found: R | None = await self.scalar(statement.execution_options(populate_existing=True))
        return found

    async def checked(self, row: type[Row], many: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Checks that the values ``many`` belong to the scope; returns the execution options of their insert.

        Raises NotFound for another team, and for a child of a row that the scope does not have.
        """
        if self.scope.team is not None:
            if row.is_the_installations:
                raise RuntimeError(_NOT_KEPT.format(row.__tablename__))
            if row in team_rows():
                for values in many:
                    self.scope.require(values["team"])
            elif row.owner is not None:
                await self._require_owners(*row.owner, {values[row.owner[0]] for values in many})
        return {_VALUES_SEEN: True}

    async def _require_owners(self, key: str, owner: type[Row], names: set[str]) -> None:
        column = getattr(owner, key)
        missing = names.difference(await self.scalars(select(column).where(column.in_(names))))
        if missing:
            raise NotFound(key, min(missing))


class _Scoped(Session):
    """The synchronous session under a ``TeamSession``. ``_keep_to_team`` listens to its statements."""


def of_every_team(why: str) -> Mapping[str, Any]:
    """Execution options of a read over every team, for the reason ``why``."""
    return {_ALL_TEAMS_ASKED: why}


@cache
def team_rows() -> frozenset[type[Row]]:
    """Row classes with a team. Call it after all modules of tables are imported: the result is cached."""
    return frozenset(row for row in _rows() if "team" in row.__table__.c)


def _rows() -> list[Any]:
    """Every row class, in a fixed order, so that equal statements share their compiled form."""
    return sorted((mapper.class_ for mapper in Row.registry.mappers), key=lambda row: str(row.__tablename__))


@cache
def _guarded_tables() -> Mapping[str, bool]:
    """Names of the tables with data of teams, and whether only the installation may use them."""
    owned = {row for row in _rows() if row.owner is not None or row.is_the_installations}
    return {row.__tablename__: row.is_the_installations for row in team_rows() | owned}


@lru_cache(MOST_TEAMS)
def _conditions(team: str) -> tuple[ExecutableOption, ...]:
    conditions = []
    for row in _rows():
        if row in team_rows():
            conditions.append(with_loader_criteria(row, row.team == team, include_aliases=True))
        elif row.owner is not None:
            key, owner = row.owner
            owners = owner.__table__.c
            is_own = getattr(row, key).in_(select(owners[key]).where(owners.team == team))
            conditions.append(with_loader_criteria(row, is_own, include_aliases=True))
    return tuple(conditions)


@event.listens_for(_Scoped, "do_orm_execute")
def _keep_to_team(asked: ORMExecuteState) -> None:
    scope: TeamScope = asked.session.info[_SCOPE]
    options = asked.execution_options
    if scope.decides_only:
        _require_decision(asked)
    if scope.team is None or _ALL_TEAMS_ASKED in options:
        return
    if asked.is_insert and _VALUES_SEEN in options:
        return
    _require_filterable(asked)
    if asked.is_orm_statement:
        asked.statement = asked.statement.options(*_conditions(scope.team))


def _require_decision(asked: ORMExecuteState) -> None:
    """Raises NotPermitted for a write of anything but decisions."""
    if asked.is_select:
        return
    kinds = {INSERT: asked.is_insert, UPDATE: asked.is_update, DELETE: asked.is_delete}
    written = {kind for kind, is_this in kinds.items() if is_this}
    table = getattr(asked.statement, "table", None)
    if not written or not isinstance(table, Table) or not written <= _decisions_may()[table.name]:
        asked.session.info[_SCOPE].require_writing()


@cache
def _decisions_may() -> Mapping[str, frozenset[str]]:
    return {str(row.__tablename__): row.decisions_may for row in _rows()}


def _require_filterable(asked: ORMExecuteState) -> None:
    """Raises RuntimeError for a statement to which no condition can be added: SQL text or a bare table."""
    guarded = _guarded_tables()
    if isinstance(asked.statement, TextClause | TextualSelect):
        raise RuntimeError(_NOT_KEPT.format("SQL text"))
    for element in visitors.iterate(cast("ClauseElement", asked.statement)):
        if isinstance(element, Select):
            _require_no_bare_source(element)
        table = getattr(element, "table", element)
        if not isinstance(table, Table) or table.name not in guarded:
            continue
        # A column of mapped rows is a copy that says so; the table's own is bare.
        is_bare = isinstance(element, Column) and table.c.get(element.key) is element
        if is_bare or asked.is_insert or not asked.is_orm_statement or guarded[table.name]:
            raise RuntimeError(_NOT_KEPT.format(table.name))


def _require_no_bare_source(query: Select[Any]) -> None:
    """Raises RuntimeError for a bare table in ``select_from``; a mapped class there is an annotated copy."""
    for source in query._from_obj:  # noqa: SLF001  SQLAlchemy has no public name for it before compilation
        if not isinstance(source, Table) or source.name not in _guarded_tables():
            continue
        if Row.metadata.tables[source.name] is source:
            raise RuntimeError(_NOT_KEPT.format(source.name))
