"""Ports of people who sign in at an identity provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.person import PendingSignIn, PersonSession, Tokens
from broker.ports.unit_of_work import UnitOfWork


class IdentityProvider(Protocol):
    """A provider of OpenID Connect. Raises ProviderUnavailable while it does not answer."""

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where a browser is sent to sign in; ``verifier`` is the secret of PKCE."""
        ...

    async def redeem(self, code: str, redirect_uri: str, nonce: str, verifier: str) -> Tokens:
        """The checked tokens for an authorization code. NotAuthenticated."""
        ...

    async def refresh(self, refresh_token: str, subject: str) -> Tokens:
        """New tokens of the same person. NotAuthenticated once the provider refuses."""
        ...

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of an access token that was made for the broker's API. NotAuthenticated."""
        ...

    async def sign_out_url(self, id_token: str | None, back: str) -> str | None:
        """Where a browser ends its session at the provider; None where it has no such address."""
        ...


class PersonRepository(Protocol):
    """Sign-ins under way and sessions of people, found by the SHA-256 of their secrets."""

    async def add_sign_in(self, pending: PendingSignIn, now: datetime) -> None:
        """Stores one, and deletes those that are over, and the oldest of too many."""
        ...

    async def take_sign_in(self, state_sha256: str) -> PendingSignIn | None:
        """Takes one out; None if there is none, or it was taken before."""
        ...

    async def add_person_session(self, session: PersonSession) -> None:
        """Stores a session, and deletes those that were over when it began."""
        ...

    async def find_person_session(self, sha256: str) -> PersonSession | None:
        """One; None if there is none."""
        ...

    async def claim_confirmation(self, sha256: str, now: datetime, until: datetime) -> bool:
        """Whether the caller is to ask the provider; nobody else is told so before ``until``."""
        ...

    async def confirm_person_session(self, session: PersonSession) -> None:
        """Stores what the provider said anew."""
        ...

    async def drop_person_session(self, sha256: str) -> bool:
        """Deletes a session. Returns whether there was one."""
        ...


class PeopleUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of people."""

    people: PersonRepository


PeopleUnits = Callable[[TeamScope], PeopleUnitOfWork]
