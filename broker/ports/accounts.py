"""Ports of API keys and browser sessions, and of the deletion of old rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.account import ApiKey, Session
from broker.domain.basics.page import Page
from broker.ports.unit_of_work import UnitOfWork


class KeyRepository(Protocol):
    """Keys and sessions, found by the SHA-256 of their tokens."""

    async def add(self, key: ApiKey) -> None:
        """Stores a key. Raises Conflict if its id or hash is taken."""
        ...

    async def find(self, key_id: str) -> ApiKey:
        """One key, revoked or not. Raises NotFound."""
        ...

    async def find_by_hash(self, sha256: str) -> ApiKey | None:
        """The key with this hash, revoked or not; None if there is none."""
        ...

    async def find_page(self, limit: int, cursor: str | None) -> Page[ApiKey]:
        """Newest first."""
        ...

    async def take_turns(self) -> None:
        """Takes a lock that serialises transactions which change keys; it is held until this one ends."""
        ...

    async def find_unrevoked(self, team: str) -> tuple[ApiKey, ...]:
        """Keys of ``team`` that are not revoked, oldest first."""
        ...

    async def revoke(self, key_id: str, at: datetime) -> None:
        """Revokes a key and ends its sessions; a key that is already revoked keeps its first time."""
        ...

    async def add_session(self, session: Session) -> None:
        """Stores a session, and deletes sessions that had expired when it began."""
        ...

    async def find_session(self, sha256: str) -> tuple[Session, ApiKey] | None:
        """The session with this hash, and its key; None if there is none."""
        ...

    async def drop_session(self, sha256: str) -> None:
        """Deletes a session, if there is one."""
        ...


class KeyUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of keys."""

    keys: KeyRepository


KeyUnits = Callable[[TeamScope], KeyUnitOfWork]


class RetentionRepository(Protocol):
    """Each method removes at most ``limit`` rows older than ``before``, and returns their number."""

    async def forget_answers(self, before: datetime, limit: int) -> int:
        """Removes stored answers with their idempotency keys, which are forgotten then."""
        ...

    async def forget_deliveries(self, before: datetime, limit: int) -> int:
        """Removes finished deliveries to webhooks, by the time of their last attempt."""
        ...

    async def forget_audit(self, before: datetime, limit: int) -> int:
        """Removes entries of the audit trail."""
        ...

    async def forget_rounds(self, before: datetime, limit: int) -> int:
        """Removes poll rounds and their changes, except each provider's newest and those that offers name."""
        ...


class RetentionUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of retention."""

    retention: RetentionRepository


RetentionUnits = Callable[[TeamScope], RetentionUnitOfWork]
