"""Who acts: keys, sessions, scopes, the audit trail, and remembered answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    """What a key may do; ``admin`` may do everything, for every team."""

    PLANS_READ = "plans:read"
    PLANS_WRITE = "plans:write"
    RESERVATIONS_WRITE = "reservations:write"
    SPEND_READ = "spend:read"
    SPEND_APPROVE = "spend:approve"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key: only its SHA-256 is kept. ``expires_at`` None: it lasts until it is revoked."""

    key_id: str
    name: str
    team: str
    scopes: frozenset[Scope]
    sha256: str
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None

    def opens(self, now: datetime) -> bool:
        """Whether it may be used at ``now``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Session:
    """A sign-in on the pages with a key: only the SHA-256 of its token is kept."""

    sha256: str
    key_id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """One request under an ``Idempotency-Key``: everything that it stores is stored under this name."""

    team: str
    key: str
    route: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key, its team and scopes; ``claim``: under which idempotency key, if any."""

    key_id: str
    team: str
    scopes: frozenset[Scope]
    claim: IdempotencyKey | None = None
    name: str = ""

    @property
    def called(self) -> str:
        """What people know the key by."""
        return self.name or self.key_id

    def may(self, scope: Scope) -> bool:
        """Whether the caller has ``scope``."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, team: str) -> bool:
        """Whether objects of ``team`` exist for this caller."""
        return Scope.ADMIN in self.scopes or team == self.team


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which object, when and why."""

    at: datetime
    actor: str
    action: str
    object_kind: str
    object_id: str
    team: str
    detail: str = ""
    provider_request_id: str | None = None


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    """The first answer under an idempotency key; ``status`` None: still being made."""

    team: str
    key: str
    route: str
    body_sha256: str
    created_at: datetime
    status: int | None = None
    body: str | None = None
    headers: str | None = None
