"""Stored re-optimizations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from sqlalchemy import select

from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.basics.page import Page
from broker.domain.moving.reoptimization import Move, ProposalState, Reoptimization
from broker.domain.workloads.reoptimize_policy import ReoptimizeMode
from broker.store.documents import from_document, to_document
from broker.store.pages import fetch_page
from broker.store.tables import ReoptimizationRow
from broker.store.team_session import TeamSession
from broker.store.writes import Values, insert_new, update_unchanged

_NEWEST_FIRST = (ReoptimizationRow.started_at, ReoptimizationRow.reoptimization_id)


class SqlReoptimizationRepository:
    """Stored re-optimizations."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def add(self, reoptimization: Reoptimization) -> None:
        """Stores one. Raises Conflict if its id is taken."""
        name = f"re-optimization {reoptimization.reoptimization_id}"
        await insert_new(self._session, ReoptimizationRow, _values(reoptimization), name)

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        """Writes it, and returns it with the next version. Raises ConcurrentChange if ``version`` is old."""
        key = ReoptimizationRow.reoptimization_id == reoptimization.reoptimization_id
        name = f"re-optimization {reoptimization.reoptimization_id}"
        await update_unchanged(self._session, ReoptimizationRow, key, _values(reoptimization), name)
        return replace(reoptimization, version=reoptimization.version + 1)

    async def find(self, reoptimization_id: str) -> Reoptimization:
        """One re-optimization. Raises NotFound."""
        row = await self._session.find_row(ReoptimizationRow, reoptimization_id=reoptimization_id)
        if row is None:
            raise NotFound("re-optimization", reoptimization_id)
        return _reoptimization(row)

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        """Those in ``states`` that began at ``since`` (None: ever) or later, newest first."""
        statement = select(ReoptimizationRow).where(ReoptimizationRow.state.in_([s.value for s in states]))
        if since is not None:
            statement = statement.where(ReoptimizationRow.started_at >= since)
        newest = (column.desc() for column in _NEWEST_FIRST)
        rows = await self._session.scalars(
            statement.order_by(*newest).execution_options(populate_existing=True)
        )
        return tuple(_reoptimization(row) for row in rows)

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        """Newest first. ``team`` None: of all teams in scope."""
        statement = select(ReoptimizationRow)
        if team is not None:
            statement = statement.where(ReoptimizationRow.team == team)
        return await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _reoptimization)


def _values(reoptimization: Reoptimization) -> Values:
    before, after = reoptimization.before_usd, reoptimization.after_usd
    return {
        "reoptimization_id": reoptimization.reoptimization_id,
        "team": reoptimization.team,
        "plan_id": reoptimization.plan_id,
        "trigger": reoptimization.trigger,
        "started_at": reoptimization.started_at,
        "state": reoptimization.state.value,
        "before_micro_usd": None if before is None else to_micro_usd(before),
        "after_micro_usd": None if after is None else to_micro_usd(after),
        "new_plan_id": reoptimization.new_plan_id,
        "moves": to_document(reoptimization.moves),
        "reason": reoptimization.reason,
        "mode": reoptimization.mode.value,
        "lapses_at": reoptimization.lapses_at,
        "decided_at": reoptimization.decided_at,
        "decided_by": reoptimization.decided_by,
        "version": reoptimization.version,
        "guard_s": reoptimization.guard_s,
    }


def _reoptimization(row: ReoptimizationRow) -> Reoptimization:
    before, after = row.before_micro_usd, row.after_micro_usd
    return Reoptimization(
        reoptimization_id=row.reoptimization_id,
        team=row.team,
        plan_id=row.plan_id,
        trigger=row.trigger,
        started_at=row.started_at,
        state=ProposalState(row.state),
        before_usd=None if before is None else from_micro_usd(before),
        after_usd=None if after is None else from_micro_usd(after),
        new_plan_id=row.new_plan_id,
        moves=tuple(from_document(Move, move) for move in row.moves),
        reason=row.reason,
        mode=ReoptimizeMode(row.mode or ReoptimizeMode.PROPOSE),
        lapses_at=row.lapses_at,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
        version=row.version,
        guard_s=row.guard_s,
    )
