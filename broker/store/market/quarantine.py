"""Stored offers in quarantine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select

from broker.domain.basics.errors import NotFound
from broker.domain.market.price_gate import Quarantined
from broker.store.documents import from_document, to_document
from broker.store.tables import QuarantineRow
from broker.store.team_session import TeamSession
from broker.store.writes import Values, delete_many, upsert_many


class SqlQuarantineRepository:
    """Offers in quarantine, by offer id."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        """Entries of ``provider`` (None: all), oldest first."""
        statement = select(QuarantineRow.document).order_by(QuarantineRow.since, QuarantineRow.offer_id)
        if provider is not None:
            statement = statement.where(QuarantineRow.provider == provider)
        documents = await self._session.scalars(statement)
        return tuple(from_document(Quarantined, document) for document in documents)

    async def find_one(self, offer_id: str) -> Quarantined:
        """One entry. Raises NotFound."""
        statement = select(QuarantineRow.document).where(QuarantineRow.offer_id == offer_id)
        document = await self._session.scalar(statement)
        if document is None:
            raise NotFound("quarantined offer", offer_id)
        return from_document(Quarantined, document)

    async def put(self, entry: Quarantined) -> None:
        """Stores an entry; replaces an earlier one of the same offer."""
        await upsert_many(self._session, QuarantineRow, [_values(entry)])

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        """Stores ``entries``, and deletes those of the offers ``gone``."""
        await delete_many(self._session, QuarantineRow, QuarantineRow.offer_id, gone)
        await upsert_many(self._session, QuarantineRow, [_values(entry) for entry in entries])


def _values(entry: Quarantined) -> Values:
    return {
        "offer_id": entry.offer.offer_id,
        "provider": entry.offer.provider,
        "since": entry.since,
        "document": to_document(entry),
    }
