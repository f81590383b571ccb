"""Stored launch attempts. Append-only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select

from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.store.tables import LaunchRow
from broker.store.team_session import TeamSession
from broker.store.writes import insert_or_keep


class SqlLaunchRepository:
    """Our own launch attempts."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        """Appends attempts; only the first attempt of a reservation with each outcome is kept."""
        for attempt in attempts:
            values = {name: getattr(attempt, name) for name in LaunchAttempt.__slots__}
            asks = values.pop("asks_usd_per_node_hour")
            values["asks_per_node_hour_micro_usd"] = None if asks is None else to_micro_usd(asks)
            await insert_or_keep(self._session, LaunchRow, {**values, "outcome": attempt.outcome.value})

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        """Attempts that were ordered at ``since`` or later, oldest first."""
        statement = (
            select(LaunchRow)
            .where(LaunchRow.asked_at >= since)
            .order_by(LaunchRow.asked_at, LaunchRow.reservation_id, LaunchRow.outcome)
        )
        return tuple(_attempt(row) for row in await self._session.scalars(statement))


def _attempt(row: LaunchRow) -> LaunchAttempt:
    asks = row.asks_per_node_hour_micro_usd
    return LaunchAttempt(
        row.reservation_id,
        row.offer_id,
        row.provider,
        row.sku,
        row.region,
        row.asked_at,
        row.due_at,
        LaunchOutcome(row.outcome),
        row.usable_at,
        row.ends_at,
        None if asks is None else from_micro_usd(asks),
    )
