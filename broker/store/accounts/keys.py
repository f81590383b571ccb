"""Stored API keys and sign-in sessions."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, delete, select, text

from broker.domain.basics.account import ApiKey, Scope, Session
from broker.domain.basics.errors import NotFound
from broker.domain.basics.page import Page
from broker.store.accounts.key_tables import ApiKeyRow, SessionRow
from broker.store.pages import fetch_page
from broker.store.team_session import TeamSession
from broker.store.writes import Values, change, insert_many, insert_new, table_of, update_one

_NEWEST_FIRST = (ApiKeyRow.created_at, ApiKeyRow.key_id)


class SqlKeyRepository:
    """Keys and sessions, found by the SHA-256 of their tokens."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def add(self, key: ApiKey) -> None:
        """Stores a key. Raises Conflict if its id or hash is taken."""
        await insert_new(self._session, ApiKeyRow, _key_values(key), f"key {key.key_id}")

    async def find(self, key_id: str) -> ApiKey:
        """One key, revoked or not. Raises NotFound."""
        row = await self._session.find_row(ApiKeyRow, key_id=key_id)
        if row is None:
            raise NotFound("key", key_id)
        return _key(row)

    async def find_by_hash(self, sha256: str) -> ApiKey | None:
        """The key with this hash, revoked or not."""
        row = await self._session.scalar(select(ApiKeyRow).where(ApiKeyRow.sha256 == sha256))
        return None if row is None else _key(row)

    async def find_page(self, limit: int, cursor: str | None) -> Page[ApiKey]:
        """Newest first."""
        return await fetch_page(self._session, select(ApiKeyRow), _NEWEST_FIRST, limit, cursor, _key)

    async def take_turns(self) -> None:
        """Takes a lock that serialises transactions which change keys; it is held until this one ends.

        Readers do not wait. SQLite needs no lock, because only one process changes keys, at its start.
        """
        if self._session.get_bind().dialect.name == "postgresql":
            name = table_of(ApiKeyRow).name
            await self._session.execute(text(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"))

    async def find_unrevoked(self, team: str) -> tuple[ApiKey, ...]:
        """Keys of ``team`` that are not revoked, oldest first."""
        standing = (ApiKeyRow.team == team, ApiKeyRow.revoked_at.is_(None))
        statement = select(ApiKeyRow).where(*standing).order_by(*_NEWEST_FIRST)
        return tuple(_key(row) for row in await self._session.scalars(statement))

    async def accept(self, invitation: ApiKey, sha256: str) -> bool:
        """Makes an invitation the key with this hash; False if it was accepted or revoked meanwhile."""
        standing = and_(ApiKeyRow.sha256 == invitation.sha256, ApiKeyRow.revoked_at.is_(None))
        return await update_one(self._session, ApiKeyRow, standing, {"sha256": sha256, "invited_until": None})

    async def revoke(self, key_id: str, at: datetime) -> None:
        """Revokes a key and ends its sessions; a key that is already revoked keeps its first time."""
        standing = and_(ApiKeyRow.key_id == key_id, ApiKeyRow.revoked_at.is_(None))
        await update_one(self._session, ApiKeyRow, standing, {"revoked_at": at})
        await change(self._session, delete(SessionRow).where(SessionRow.key_id == key_id))

    async def add_session(self, session: Session) -> None:
        """Stores a session, and deletes expired ones."""
        await change(self._session, delete(SessionRow).where(SessionRow.expires_at <= session.created_at))
        values = {
            "sha256": session.sha256,
            "key_id": session.key_id,
            "created_at": session.created_at,
            "expires_at": session.expires_at,
        }
        await insert_many(self._session, SessionRow, [values])

    async def find_session(self, sha256: str) -> tuple[Session, ApiKey] | None:
        """The session with this hash, and its key."""
        statement = (
            select(SessionRow, ApiKeyRow)
            .join(ApiKeyRow, ApiKeyRow.key_id == SessionRow.key_id)
            .where(SessionRow.sha256 == sha256)
        )
        found = (await self._session.execute(statement)).first()
        if found is None:
            return None
        row, key = found
        return Session(row.sha256, row.key_id, row.created_at, row.expires_at), _key(key)

    async def drop_session(self, sha256: str) -> None:
        """Deletes a session, if it exists."""
        await change(self._session, delete(SessionRow).where(SessionRow.sha256 == sha256))


def _key_values(key: ApiKey) -> Values:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "team": key.team,
        "scopes": sorted(scope.value for scope in key.scopes),
        "sha256": key.sha256,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
        "expires_at": key.expires_at,
        "invited_until": key.invited_until,
    }


def _key(row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        key_id=row.key_id,
        name=row.name,
        team=row.team,
        scopes=frozenset(Scope(word) for word in row.scopes),
        sha256=row.sha256,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        invited_until=row.invited_until,
    )
