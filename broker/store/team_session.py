"""The session that keeps to its teams: every statement of it, in one place.

Each ORM statement gets the condition that rows are of the scope's team, wherever a table of teams stands
in it: reads, updates, deletes, subqueries, aliases. What cannot get it (a statement on the bare table, an
insert whose values were not looked at) is refused. So a repository cannot forget the team.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import ClauseElement, Column, Table, event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql import visitors
from sqlalchemy.sql.base import ExecutableOption

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import NotFound
from broker.store.tables import Row

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
    """One transaction in which there are the rows of ``scope`` only."""

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
        """The row of that key as it stands. ``get`` names the bare table, which would be refused."""
        statement = select(row).filter_by(**key)
        found: R | None = await self.scalar(statement.execution_options(populate_existing=True))
        return found

    async def checked(self, row: type[Row], many: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Execution options of an insert of ``many``, which are of the scope.

        NotFound for a team that is not there, and for a part of something that is not.
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
    """The synchronous half, whose statements ``_keep_to_team`` sees."""


def of_every_team(why: str) -> Mapping[str, Any]:
    """Execution options of a read that has to count the rows of every team; ``why``: the reason, in words."""
    return {_ALL_TEAMS_ASKED: why}


@cache
def team_rows() -> frozenset[type[Row]]:
    """Rows that have a team. Asked for once every module of tables is there, as a session is."""
    return frozenset(row for row in _rows() if "team" in row.__table__.c)


def _rows() -> list[Any]:
    """Every kind of row; in the same order each time, as statements are kept compiled by what they say."""
    return sorted((mapper.class_ for mapper in Row.registry.mappers), key=lambda row: str(row.__tablename__))


@cache
def _guarded_tables() -> Mapping[str, bool]:
    """Names of the tables that tell of teams' things, and whether they are the installation's."""
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
    if scope.team is None or _ALL_TEAMS_ASKED in options:
        return
    if asked.is_insert and _VALUES_SEEN in options:
        return
    _require_filterable(asked)
    if asked.is_orm_statement:
        asked.statement = asked.statement.options(*_conditions(scope.team))


def _require_filterable(asked: ORMExecuteState) -> None:
    """RuntimeError for a statement to which the condition cannot be added: it names a table, not its rows."""
    guarded = _guarded_tables()
    for element in visitors.iterate(cast("ClauseElement", asked.statement)):
        table = getattr(element, "table", element)
        if not isinstance(table, Table) or table.name not in guarded:
            continue
        # A column of mapped rows is a copy that says so; the table's own is bare.
        is_bare = isinstance(element, Column) and table.c.get(element.key) is element
        if is_bare or asked.is_insert or not asked.is_orm_statement or guarded[table.name]:
            raise RuntimeError(_NOT_KEPT.format(table.name))
