"""Deletion of old rows in small batches, because SQLite has one writer for which others wait."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, func, select, tuple_

from broker.domain.basics.webhook import DeliveryState
from broker.store.accounts.webhook_tables import DeliveryRow
from broker.store.tables import AuditRow, OfferChangeRow, OfferRow, RememberedAnswerRow, RoundRow, Row
from broker.store.team_session import TeamSession
from broker.store.writes import row_count, table_of

_OVER = tuple(state.value for state in DeliveryState if state is not DeliveryState.PENDING)


class SqlRetentionRepository:
    """Each method removes at most ``limit`` rows older than ``before``, and returns their number."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def forget_answers(self, before: datetime, limit: int) -> int:
        """Removes stored answers with their idempotency keys, which are forgotten then."""
        return await self._forget(RememberedAnswerRow, RememberedAnswerRow.created_at < before, limit)

    async def forget_deliveries(self, before: datetime, limit: int) -> int:
        """Removes finished deliveries, whose ``next_at`` is the end of the last attempt."""
        over = and_(DeliveryRow.state.in_(_OVER), DeliveryRow.next_at < before)
        return await self._forget(DeliveryRow, over, limit)

    async def forget_audit(self, before: datetime, limit: int) -> int:
        """Deletes audit entries."""
        return await self._forget(AuditRow, AuditRow.at < before, limit)

    async def forget_rounds(self, before: datetime, limit: int) -> int:
        """Removes poll rounds and their changes, except each provider's newest and those that offers name."""
        newest = select(func.max(RoundRow.round_id)).group_by(RoundRow.provider)
        named = select(OfferRow.round_id)
        old = and_(
            RoundRow.started_at < before, RoundRow.round_id.not_in(newest), RoundRow.round_id.not_in(named)
        )
        first = select(RoundRow.round_id).where(old).order_by(RoundRow.started_at).limit(limit)
        gone = (await self._session.scalars(first)).all()
        for row in (OfferChangeRow, RoundRow):
            table = table_of(row)
            await self._session.execute(delete(table).where(table.c.round_id.in_(gone)))
        return len(gone)

    async def _forget(self, row: type[Row], old: ColumnElement[bool], limit: int) -> int:
        table = table_of(row)
        key = tuple_(*table.primary_key)
        some = select(*table.primary_key).where(old).limit(limit)
        return row_count(await self._session.execute(delete(table).where(key.in_(some))))
