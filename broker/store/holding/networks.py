"""Stored networks of sellers, by provider and region."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from broker.domain.holding.seller_network import SellerNetwork
from broker.store.columns import row_as, values_of
from broker.store.tables import SellerNetworkRow
from broker.store.team_session import TeamSession
from broker.store.writes import upsert_many


class SqlNetworkRepository:
    """Networks that were made for machines, for every team alike."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def find(self, provider: str | None = None) -> tuple[SellerNetwork, ...]:
        """Networks of ``provider`` (None: of all), by provider and region."""
        statement = select(SellerNetworkRow).order_by(SellerNetworkRow.provider, SellerNetworkRow.region)
        if provider is not None:
            statement = statement.where(SellerNetworkRow.provider == provider)
        return tuple(_network(row) for row in await self._session.scalars(statement))

    async def put(self, networks: tuple[SellerNetwork, ...]) -> None:
        """Stores networks; each replaces an earlier one of its provider and region."""
        rows = [{**values_of(one), "sources": list(one.sources)} for one in networks]
        await upsert_many(self._session, SellerNetworkRow, rows)


def _network(row: SellerNetworkRow) -> SellerNetwork:
    return replace(row_as(SellerNetwork, row), sources=tuple(row.sources))
