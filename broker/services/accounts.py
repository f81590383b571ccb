"""Accounts: keys, remembered answers, and the audit trail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from broker.domain.access import require_scope, team_filter
from broker.domain.account import ApiKey, AuditEntry, Caller, RememberedAnswer, RequestClaim, Scope
from broker.domain.errors import (
    BrokerError,
    Conflict,
    IdempotencyMismatch,
    NotAuthenticated,
    ProviderError,
    StillAtWork,
)
from broker.domain.page import Page
from broker.ports import Clock, UnitOfWorkFactory

KEY_PREFIX = "broker_live"
ID_BYTES = 6
SECRET_BYTES = 32
ADMIN_TEAM = "admin"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answered: status, body and headers as they went out (JSON texts)."""

    status: int
    body: str
    headers: str = "{}"
    replayed: bool = False


Retell = Callable[[tuple[str, ...]], Awaitable[Answer]]
"""The answer that a request would have got, from the ids of what it stored."""


class AccountsService:
    """Use cases of keys. ``random_bytes`` makes secrets."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        clock: Clock,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._uow_factory = uow_factory
        self._clock = clock
        self._random_bytes = random_bytes

    async def create_key(
        self, name: str, team: str, scopes: frozenset[Scope], by: Caller | None = None
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is shown once and never kept. ``by`` None: the installation."""
        if by is not None:
            require_scope(by, Scope.ADMIN)
        key_id = self._random_bytes(ID_BYTES).hex()
        secret = f"{KEY_PREFIX}_{key_id}_{_urlsafe(self._random_bytes(SECRET_BYTES))}"
        key = ApiKey(key_id, name, team, scopes, _sha256(secret), self._clock.now())
        await self._store(key, by.key_id if by is not None else "installation")
        return key, secret

    async def ensure_admin_key(self, given: str | None = None) -> str:
        """The secret of a key with all scopes: ``given`` if there is one, else a new one."""
        if given is None:
            return (await self.create_key("local admin", ADMIN_TEAM, frozenset(Scope)))[1]
        digest = _sha256(given)
        async with self._uow_factory() as uow:
            known = await uow.accounts.find_key(digest)
        if known is None:
            key = ApiKey(
                f"env-{digest[:12]}", "admin", ADMIN_TEAM, frozenset(Scope), digest, self._clock.now()
            )
            with suppress(Conflict):  # another process of this installation has just made it
                await self._store(key, "installation")
        return given

    async def _store(self, key: ApiKey, actor: str) -> None:
        entry = AuditEntry(
            at=self._clock.now(),
            actor=actor,
            action="key.create",
            object_kind="key",
            object_id=key.key_id,
            team=key.team,
            detail=f"{key.name}: {' '.join(sorted(key.scopes))}",
        )
        async with self._uow_factory() as uow:
            await uow.accounts.add_key(key)
            await uow.accounts.add_audit(entry)
            await uow.commit()

    async def verify(self, secret: str | None) -> Caller:
        """Who holds ``secret``; NotAuthenticated for none, an unknown or a revoked one."""
        if not secret:
            raise NotAuthenticated("a bearer key is needed: Authorization: Bearer broker_live_…")
        digest = _sha256(secret)
        async with self._uow_factory() as uow:
            key = await uow.accounts.find_key(digest)
        if key is None or not hmac.compare_digest(key.sha256, digest) or key.revoked_at is not None:
            raise NotAuthenticated("the bearer key is unknown or revoked")
        return Caller(key.key_id, key.team, key.scopes)

    async def once(
        self,
        caller: Caller,
        key: str | None,
        route: str,
        body: bytes,
        act: Callable[[], Awaitable[Answer]],
        again: Retell | None = None,
    ) -> Answer:
        """``act``'s answer, or the remembered one when ``key`` came before with the same ``body``.

        Raises IdempotencyMismatch for another body, StillAtWork while the first is still at work. A
        failure of a meant kind gives the key back; after any other the key stays taken, because
        nobody knows what has happened. What was begun and not answered, by a process that died or a
        failure in the middle, is taken over: ``again`` answers from the ids that were stored under the
        key; if there are none, ``act`` begins anew.
        """
        if key is None:
            return await act()
        claim = RememberedAnswer(caller.team, key, route, hashlib.sha256(body).hexdigest(), self._clock.now())
        effects: tuple[str, ...] | None = ()
        async with self._uow_factory() as uow:
            standing = await uow.accounts.remember(claim)
            if standing is not None and _is_unanswered(standing, claim):
                effects = await uow.accounts.take_over(RequestClaim(caller.team, key, route))
            await uow.commit()
        if standing is not None and standing.status is not None:
            return Answer(standing.status, standing.body or "", standing.headers or "{}", replayed=True)
        if effects is None:
            raise StillAtWork(f"the first request under the idempotency key {key!r} is still at work")
        try:
            answer = await again(effects) if again is not None and effects else await act()
        except BrokerError as error:
            async with self._uow_factory() as uow:
                if isinstance(error, ProviderError):  # what was stored is undone
                    await uow.accounts.forget(caller.team, key, route)
                else:
                    await uow.accounts.let_go(RequestClaim(caller.team, key, route))
                await uow.commit()
            raise
        done = replace(claim, status=answer.status, body=answer.body, headers=answer.headers)
        async with self._uow_factory() as uow:
            await uow.accounts.complete(done)
            await uow.commit()
        return answer

    async def find_audit(
        self,
        caller: Caller,
        limit: int = 50,
        cursor: str | None = None,
        *,
        object_id: str | None = None,
        team: str | None = None,
    ) -> Page[AuditEntry]:
        """Who did what, newest first; only the caller's team unless an administrator asks."""
        async with self._uow_factory() as uow:
            return await uow.accounts.find_audit(team_filter(caller, team), limit, cursor, object_id)


def _is_unanswered(standing: RememberedAnswer, claim: RememberedAnswer) -> bool:
    """Whether the first request has no answer yet; IdempotencyMismatch when it was another one."""
    if standing.body_sha256 != claim.body_sha256:
        raise IdempotencyMismatch(f"the idempotency key {claim.key!r} was used with another body")
    return standing.status is None


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
