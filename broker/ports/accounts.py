"""Ports of keys: who may act, and who is signed in on the pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.account import ApiKey, Session
from broker.domain.basics.page import Page
from broker.ports.unit_of_work import UnitOfWork


class KeyRepository(Protocol):
    """Keys and sessions, by hashes of what opens them."""

    async def add(self, key: ApiKey) -> None:
        """Stores a key; Conflict when its id or hash is taken."""
        ...

    async def find(self, key_id: str) -> ApiKey:
        """One, revoked or not; NotFound."""
        ...

    async def find_by_hash(self, sha256: str) -> ApiKey | None:
        """The key of that hash, revoked or not."""
        ...

    async def find_page(self, limit: int, cursor: str | None) -> Page[ApiKey]:
        """Newest first."""
        ...

    async def take_turns(self) -> None:
        """Waits for others that took turns, and lets them wait until this transaction ends."""
        ...

    async def find_standing(self, team: str) -> tuple[ApiKey, ...]:
        """Keys of ``team`` that nobody has revoked, oldest first."""
        ...

    async def revoke(self, key_id: str, at: datetime) -> None:
        """Ends a key and its sessions; one that has ended keeps its first instant."""
        ...

    async def add_session(self, session: Session) -> None:
        """Stores a session, and forgets those that were over when it began."""
        ...

    async def find_session(self, sha256: str) -> tuple[Session, ApiKey] | None:
        """The session of that hash, with its key."""
        ...

    async def drop_session(self, sha256: str) -> None:
        """Forgets a session, if there is one."""
        ...


class KeyUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches keys too."""

    keys: KeyRepository


KeyUnits = Callable[[TeamScope], KeyUnitOfWork]
