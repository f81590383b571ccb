"""Accounts: API keys, sessions, scopes, the audit trail, and stored answers to idempotent requests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from broker.domain.basics.webhook import ALL_TEAMS


class Scope(StrEnum):
    """What a key may do; ``admin`` may do everything, for every team.

    ``calendar:read`` alone is the scope of a feed's token, which opens calendars and nothing else.
    """

    PLANS_READ = "plans:read"
    PLANS_WRITE = "plans:write"
    RESERVATIONS_WRITE = "reservations:write"
    SPEND_READ = "spend:read"
    SPEND_APPROVE = "spend:approve"
    CALENDAR_READ = "calendar:read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key; only its SHA-256 is stored. ``expires_at`` None means valid until revoked.

    With ``invited_until`` it is an invitation: ``sha256`` is that of the link's token, which opens nothing
    but can be exchanged for the key until then.
    """

    key_id: str
    name: str
    team: str
    scopes: frozenset[Scope]
    sha256: str
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    invited_until: datetime | None = None

    def opens(self, now: datetime) -> bool:
        """Whether the key is valid at ``now``: no invitation, and neither revoked nor expired."""
        return self.invited_until is None and self._stands(now)

    def can_be_accepted(self, now: datetime) -> bool:
        """Whether it is an invitation that can be exchanged for its key at ``now``."""
        return self.invited_until is not None and now < self.invited_until and self._stands(now)

    def _stands(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser session that was opened with a key. Only the SHA-256 of its token is stored."""

    sha256: str
    key_id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An ``Idempotency-Key`` of a team on one route. Ids that the request creates are recorded under it."""

    team: str
    key: str
    route: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a use case: the key, its team and its scopes.

    ``claim`` is the idempotency key of the request, if it has one.
    """

    key_id: str
    team: str
    scopes: frozenset[Scope]
    claim: IdempotencyKey | None = None
    name: str = ""

    @property
    def called(self) -> str:
        """The key's name, or its id if it has no name."""
        return self.name or self.key_id

    def may(self, scope: Scope) -> bool:
        """Whether the caller has ``scope``."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def sees_every_team(self) -> bool:
        """Whether the caller is an administrator, or has the role over all teams."""
        return Scope.ADMIN in self.scopes or self.team == ALL_TEAMS

    def sees(self, team: str) -> bool:
        """Whether the caller may see objects of ``team``."""
        return self.sees_every_team or team == self.team


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which object, when and why.

    ``actor_name`` is the name of the key ``actor``, looked up when the entry is read; empty for others.
    """

    at: datetime
    actor: str
    action: str
    object_kind: str
    object_id: str
    team: str
    detail: str = ""
    provider_request_id: str | None = None
    actor_name: str = ""


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    """The first answer to an idempotency key. ``status`` is None while the request is still running."""

    team: str
    key: str
    route: str
    body_sha256: str
    created_at: datetime
    status: int | None = None
    body: str | None = None
    headers: str | None = None
