"""Keys: made, shown once, verified, revoked; and the sessions that the pages make of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from broker.domain.access import require_scope, require_sight, team_filter
from broker.domain.account import ApiKey, AuditEntry, Caller, Scope, Session
from broker.domain.errors import Conflict, FieldProblem, InputError, NotAuthenticated
from broker.domain.page import Page
from broker.key_ports import KeyUnits
from broker.ports import Clock

KEY_PREFIX = "broker_live"
ID_BYTES = 6
SECRET_BYTES = 32
ADMIN_TEAM = "admin"
SESSION_TIME = timedelta(hours=12)


class KeysService:
    """Use cases of keys and sessions. ``random_bytes`` makes secrets."""

    def __init__(
        self,
        units: KeyUnits,
        clock: Clock,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._units = units
        self._clock = clock
        self._random_bytes = random_bytes

    async def create_key(
        self,
        name: str,
        team: str,
        scopes: frozenset[Scope],
        by: Caller | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is shown once and never kept. ``by`` None: the installation."""
        if by is not None:
            require_scope(by, Scope.ADMIN)
        now = self._clock.now()
        if expires_at is not None and expires_at <= now:
            problem = FieldProblem("/expires_at", expires_at.isoformat(), "a time that is still to come")
            raise InputError("key", (problem,))
        key_id = self._random_bytes(ID_BYTES).hex()
        secret = f"{KEY_PREFIX}_{key_id}_{_urlsafe(self._random_bytes(SECRET_BYTES))}"
        key = ApiKey(key_id, name, team, scopes, _sha256(secret), now, expires_at=expires_at)
        await self._store(key, by)
        return key, secret

    async def ensure_admin_key(self, given: str | None = None) -> str:
        """The secret of a key with all scopes: ``given`` if there is one, else a new one."""
        if given is None:
            return (await self.create_key("local admin", ADMIN_TEAM, frozenset(Scope)))[1]
        digest = _sha256(given)
        async with self._units() as uow:
            known = await uow.keys.find_by_hash(digest)
        if known is None:
            now = self._clock.now()
            key = ApiKey(f"env-{digest[:12]}", "admin", ADMIN_TEAM, frozenset(Scope), digest, now)
            with suppress(Conflict):  # another process of this installation has just made it
                await self._store(key, None)
        return given

    async def find_keys(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[ApiKey]:
        """Keys without their secrets, newest first; only the caller's team's unless an administrator asks."""
        async with self._units() as uow:
            return await uow.keys.find_page(team_filter(caller, team), limit, cursor)

    async def has_any(self) -> bool:
        """Whether any key was ever made: without one nobody can get in."""
        async with self._units() as uow:
            return bool((await uow.keys.find_page(None, 1, None)).items)

    async def find_key(self, caller: Caller, key_id: str) -> ApiKey:
        """One; NotFound for another team's."""
        async with self._units() as uow:
            key = await uow.keys.find(key_id)
        require_sight(caller, key.team, "key", key_id)
        return key

    async def revoke(self, caller: Caller, key_id: str) -> None:
        """Ends a key and its sessions, at once and for good; twice is no error.

        Conflict for the key that asks: nobody shuts themselves out by a slip.
        """
        require_scope(caller, Scope.ADMIN)
        key = await self.find_key(caller, key_id)
        if key_id == caller.key_id:
            raise Conflict(f"key {key_id} is the one that asks; revoke it with another administrator's key")
        if key.revoked_at is not None:
            return
        async with self._units() as uow:
            now = self._clock.now()
            await uow.keys.revoke(key_id, now)
            await uow.accounts.add_audit(_entry(key, "key.revoke", now, caller))
            await uow.commit()

    async def verify(self, secret: str | None) -> Caller:
        """Who holds ``secret``; NotAuthenticated for none, an unknown, a revoked or an expired one."""
        if not secret:
            raise NotAuthenticated("a bearer key is needed: Authorization: Bearer broker_live_…")
        return _caller(await self._key_of(_sha256(secret)))

    async def sign_in(self, secret: str) -> str:
        """The token of a new session of the key; as long as it lasts the key itself need not be kept."""
        key = await self._key_of(_sha256(secret))
        token, now = _urlsafe(self._random_bytes(SECRET_BYTES)), self._clock.now()
        async with self._units() as uow:
            await uow.keys.add_session(Session(_sha256(token), key.key_id, now, now + SESSION_TIME))
            await uow.commit()
        return token

    async def find_visitor(self, token: str | None) -> Caller:
        """Who is signed in with ``token``, which may be a key itself; NotAuthenticated."""
        if not token:
            raise NotAuthenticated("nobody is signed in")
        digest = _sha256(token)
        async with self._units() as uow:
            found = await uow.keys.find_session(digest)
        if found is None:
            return _caller(await self._key_of(digest))
        session, key = found
        if session.expires_at <= self._clock.now() or not key.opens(self._clock.now()):
            raise NotAuthenticated("the session is over")
        return _caller(key)

    async def sign_out(self, token: str) -> None:
        """Ends a session; an unknown one is no error."""
        async with self._units() as uow:
            await uow.keys.drop_session(_sha256(token))
            await uow.commit()

    async def _key_of(self, digest: str) -> ApiKey:
        async with self._units() as uow:
            key = await uow.keys.find_by_hash(digest)
        if key is None or not hmac.compare_digest(key.sha256, digest) or not key.opens(self._clock.now()):
            raise NotAuthenticated("the bearer key is unknown, revoked or expired")
        return key

    async def _store(self, key: ApiKey, by: Caller | None) -> None:
        async with self._units() as uow:
            await uow.keys.add(key)
            if by is not None:
                await uow.accounts.bind(by.claim, (key.key_id,))
            await uow.accounts.add_audit(_entry(key, "key.create", key.created_at, by))
            await uow.commit()


def _entry(key: ApiKey, action: str, at: datetime, by: Caller | None) -> AuditEntry:
    return AuditEntry(
        at=at,
        actor="installation" if by is None else by.key_id,
        action=action,
        object_kind="key",
        object_id=key.key_id,
        team=key.team,
        detail=f"{key.name}: {' '.join(sorted(key.scopes))}",
    )


def _caller(key: ApiKey) -> Caller:
    return Caller(key.key_id, key.team, key.scopes)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
