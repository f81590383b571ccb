"""People whom an identity provider vouches for: who they are here, and what may be asked of their session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.domain.basics.account import Caller, Scope

_ACTOR = re.compile(r".* \((?P<subject>.+)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody as the provider's claims describe them. ``name`` is an e-mail address or another label.

    ``subject`` is the provider's own name for them, which never changes.
    """

    subject: str
    name: str
    team: str
    scopes: frozenset[Scope]

    @property
    def actor(self) -> str:
        """How they are named in the history: the label that people know, and the subject."""
        return f"{self.name} ({self.subject})"

    def as_caller(self) -> Caller:
        """The caller of a use case."""
        return Caller(self.actor, self.team, self.scopes, name=self.name)


def is_same_actor(one: str, other: str) -> bool:
    """Whether two actors of the history are one key or person. A person may have changed the label."""
    return _identity(one) == _identity(other)


def _identity(actor: str) -> str:
    found = _ACTOR.fullmatch(actor)
    return actor if found is None else f"({found['subject']})"


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the provider gave for a code or a refresh token. ``claims`` are those of a checked ID token.

    ``claims`` None: it gave no new ID token, so the former claims stand.
    """

    claims: Mapping[str, Any] | None
    expires_at: datetime | None
    id_token: str | None = field(default=None, repr=False)
    refresh_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that was sent to the provider and has not come back. It is taken once.

    ``verifier`` is the secret of PKCE; ``wanted``: the page to show then.
    """

    state_sha256: str
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    wanted: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class PersonSession:
    """A browser session of a person. Only the SHA-256 of its token is stored.

    The provider confirmed it last at ``confirmed_at`` and is asked again from ``due_at`` on, if there is a
    refresh token.
    """

    sha256: str
    person: Person
    created_at: datetime
    expires_at: datetime
    confirmed_at: datetime
    due_at: datetime
    id_token: str | None = field(default=None, repr=False)
    refresh_token: str | None = field(default=None, repr=False)
