"""Stored public SSH keys."""

from __future__ import annotations

from sqlalchemy import delete, select

from broker.domain.basics.errors import NotFound
from broker.domain.basics.machines import SshKey
from broker.domain.basics.page import Page
from broker.store.accounts.ssh_key_tables import SshKeyRow
from broker.store.pages import fetch_page
from broker.store.team_session import TeamSession
from broker.store.writes import change, insert_new

_NEWEST_FIRST = (SshKeyRow.created_at, SshKeyRow.key_id)


class SqlSshKeyRepository:
    """Public SSH keys, by team."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def add(self, ssh_key: SshKey) -> None:
        """Stores a key. Raises Conflict if its id is taken."""
        values = {
            "key_id": ssh_key.key_id,
            "team": ssh_key.team,
            "person": ssh_key.person,
            "name": ssh_key.name,
            "public_key": ssh_key.public_key,
            "created_at": ssh_key.created_at,
            "created_by": ssh_key.created_by,
        }
        await insert_new(self._session, SshKeyRow, values, f"SSH key {ssh_key.key_id}")

    async def find(self, key_id: str) -> SshKey:
        """One key. Raises NotFound."""
        row = await self._session.find_row(SshKeyRow, key_id=key_id)
        if row is None:
            raise NotFound("SSH key", key_id)
        return _key(row)

    async def find_page(self, limit: int, cursor: str | None) -> Page[SshKey]:
        """Newest first."""
        return await fetch_page(self._session, select(SshKeyRow), _NEWEST_FIRST, limit, cursor, _key)

    async def find_of_team(self, team: str) -> tuple[SshKey, ...]:
        """Every key of ``team`` and its persons, oldest first."""
        statement = select(SshKeyRow).where(SshKeyRow.team == team).order_by(*_NEWEST_FIRST)
        return tuple(_key(row) for row in await self._session.scalars(statement))

    async def find_of_persons(self) -> tuple[SshKey, ...]:
        """Every key that is one person's, in whatever team it was stored, oldest first."""
        statement = select(SshKeyRow).where(SshKeyRow.person.is_not(None)).order_by(*_NEWEST_FIRST)
        return tuple(_key(row) for row in await self._session.scalars(statement))

    async def remove(self, key_id: str) -> None:
        """Deletes a key, if it exists."""
        await change(self._session, delete(SshKeyRow).where(SshKeyRow.key_id == key_id))


def _key(row: SshKeyRow) -> SshKey:
    return SshKey(
        key_id=row.key_id,
        name=row.name,
        team=row.team,
        public_key=row.public_key,
        created_at=row.created_at,
        created_by=row.created_by,
        person=row.person,
    )
