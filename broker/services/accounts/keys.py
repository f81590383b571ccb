"""API keys: creation, verification, revocation; and sign-in sessions of the pages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from broker.domain.basics.access import EVERY_TEAM, require_holdable, require_scope, scope_of
from broker.domain.basics.account import ApiKey, AuditEntry, Caller, Scope, Session
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotAuthenticated, NotPermitted
from broker.domain.basics.page import Page
from broker.domain.basics.window import instant_words
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory

KEY_PREFIX = "broker_live"
ID_BYTES = 6
SECRET_BYTES = 32
ADMIN_TEAM = "admin"
ADMIN_KEY_SETTING = "BROKER_ADMIN_KEY"
GIVEN = "env-"
"""Prefix of the ids of keys that come from the setting."""
LOCAL_ADMIN = "local admin"
LOCAL_KEY_TIME = timedelta(days=30)
LEAST_LEFT = timedelta(days=1)
"""A local key with less time before it expires is replaced."""
SESSION_TIME = timedelta(hours=12)
CALENDAR_ALONE = frozenset({Scope.CALENDAR_READ})
USED_INVITATION = "this invitation was accepted already, was taken back, or is over: ask for another"


@dataclass(frozen=True, slots=True)
class LocalKey:
    """The administrator's key of this machine. ``is_new``: this call created it."""

    secret: str = field(repr=False)
    expires_at: datetime | None
    is_new: bool


class KeysService:
    """Use cases of keys and sessions. ``random_bytes`` is the source of secrets."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
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
        person: str = "",
        *,
        invited_for: timedelta | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is never stored. ``by`` None: the installation creates it.

        ``person``: whose key it is; keys of one person have their SSH keys in common. ``invited_for``: it is
        an invitation for that long, and the secret is the token that ``accept`` takes.
        InputError for an expiry in the past, and for scopes that a key of all teams may not have.
        """
        if by is not None:
            require_scope(by, Scope.ADMIN)
        require_holdable(team, scopes)
        if expires_at is not None and expires_at <= self._clock.now():
            problem = FieldProblem("/expires_at", instant_words(expires_at), "a time in the future")
            raise InputError("key", (problem,))
        key, secret = self._new_key(name, team, scopes, expires_at)
        key = replace(key, person=person)
        if invited_for is not None:
            secret = _urlsafe(self._random_bytes(SECRET_BYTES))
            key = replace(key, sha256=_sha256(secret), invited_until=key.created_at + invited_for)
        async with self._units(EVERY_TEAM if by is None else scope_of(by)) as uow:
            await uow.keys.add(key)
            if by is not None:
                await uow.accounts.bind(by.claim, (key.key_id,))
            action = "key.create" if invited_for is None else "key.invite"
            await uow.accounts.add_audit(_entry(key, action, key.created_at, by))
            await uow.commit()
        return key, secret

    async def find_invitation(self, token: str) -> ApiKey:
        """The invitation with ``token``. Raises NotAuthenticated if it was accepted, revoked or is over."""
        async with self._units(EVERY_TEAM) as uow:
            found = await uow.keys.find_by_hash(_sha256(token))
        if found is None or not found.can_be_accepted(self._clock.now()):
            raise NotAuthenticated(USED_INVITATION)
        return found

    async def accept(self, token: str) -> tuple[ApiKey, str]:
        """The key of an invitation and its secret. Its token opens nothing any more.

        Raises NotAuthenticated as ``find_invitation`` does, also if two accept it at once.
        """
        found = await self.find_invitation(token)
        secret = self._secret_of(found.key_id)
        key = replace(found, sha256=_sha256(secret), invited_until=None)
        async with self._units(EVERY_TEAM) as uow:
            if not await uow.keys.accept(found, key.sha256):
                raise NotAuthenticated(USED_INVITATION)
            now = self._clock.now()
            await uow.accounts.add_audit(_entry(key, "key.accept", now, _caller(key)))
            await uow.commit()
        return key, secret

    async def create_calendar(self, caller: Caller, name: str, team: str | None) -> tuple[ApiKey, str]:
        """A key that opens the calendars of a team alone, and its secret, which is shown once.

        NotPermitted for another team's, unless an administrator asks.
        """
        require_scope(caller, Scope.PLANS_READ)
        if team not in (None, caller.team):
            require_scope(caller, Scope.ADMIN)
        key, secret = self._new_key(name, team or caller.team, CALENDAR_ALONE, None)
        async with self._units(scope_of(caller)) as uow:
            await uow.keys.add(key)
            await uow.accounts.bind(caller.claim, (key.key_id,))
            await uow.accounts.add_audit(_entry(key, "key.create", key.created_at, caller))
            await uow.commit()
        return key, secret

    async def end_calendar(self, caller: Caller, key_id: str) -> None:
        """Ends a key of a calendar for good; twice is no error.

        NotFound for another team's, Conflict for a key that opens more than calendars, NotPermitted for a key
        of all teams, which decides and changes nothing else.
        """
        require_scope(caller, Scope.PLANS_READ)
        if scope_of(caller).decides_only:
            raise NotPermitted(f"key {caller.key_id} of all teams ends no team's calendar")
        key = await self.find_key(caller, key_id)
        if key.scopes != CALENDAR_ALONE:
            raise Conflict(
                f"key {key_id} is none of a calendar; an administrator ends it by DELETE /v1/keys/{key_id}"
            )
        if key.revoked_at is None:
            async with self._units(scope_of(caller)) as uow:
                now = self._clock.now()
                await uow.keys.revoke(key_id, now)
                await uow.accounts.add_audit(_entry(key, "key.revoke", now, caller))
                await uow.commit()

    async def ensure_admin_key(self, given: str) -> None:
        """Gives the key ``given`` of the setting all scopes, and revokes the setting's earlier keys.

        Raises InputError if the key is revoked or expired, which is final, or is not an administrator's.
        """
        digest, now = _sha256(given), self._clock.now()
        async with self._units(EVERY_TEAM) as uow:
            await uow.keys.take_turns()
            known = await uow.keys.find_by_hash(digest)
            if known is None:
                key_id = f"{GIVEN}{digest[:12]}"
                known = ApiKey(key_id, "admin", ADMIN_TEAM, frozenset(Scope), digest, now)
                await uow.keys.add(known)
                await uow.accounts.add_audit(_entry(known, "key.create", now))
            elif wrong := _why_not(known, now):
                problem = FieldProblem(ADMIN_KEY_SETTING, wrong, "another key; this one cannot be used again")
                raise InputError("settings", (problem,))
            for other in await uow.keys.find_unrevoked(ADMIN_TEAM):
                if other.key_id.startswith(GIVEN) and other.key_id != known.key_id:
                    await _end(uow, other, now, f"replaced by {known.key_id}, the key of {ADMIN_KEY_SETTING}")
            await uow.commit()

    async def find_given_keys(self) -> tuple[ApiKey, ...]:
        """Valid keys that came from the setting, now or at an earlier start, oldest first."""
        async with self._units(EVERY_TEAM) as uow:
            unrevoked = await uow.keys.find_unrevoked(ADMIN_TEAM)
        return tuple(key for key in unrevoked if key.key_id.startswith(GIVEN))

    async def ensure_local_key(
        self, kept: str | None, keep: Callable[[str], None], *, is_private: bool = True
    ) -> LocalKey:
        """An administrator's key for the user of this machine: ``kept``, if it is valid for LEAST_LEFT more.

        Otherwise, or if ``kept`` was not private, it is a new key that is valid for LOCAL_KEY_TIME. ``keep``
        saves its secret before it becomes valid. ``kept`` is then revoked, and so are local keys of earlier
        versions that never expire.
        """
        now = self._clock.now()
        async with self._units(EVERY_TEAM) as uow:
            await uow.keys.take_turns()
            known = None if not kept else await uow.keys.find_by_hash(_sha256(kept))
            if kept and is_private and known is not None and _is_good_for(known, LEAST_LEFT, now):
                return LocalKey(kept, known.expires_at, is_new=False)
            key, secret = self._new_key(LOCAL_ADMIN, ADMIN_TEAM, frozenset(Scope), now + LOCAL_KEY_TIME)
            await uow.keys.add(key)
            await uow.accounts.add_audit(_entry(key, "key.create", now))
            for other in await uow.keys.find_unrevoked(ADMIN_TEAM):
                endless = other.name == LOCAL_ADMIN and other.expires_at is None
                if endless or (known is not None and other.key_id == known.key_id):
                    await _end(uow, other, now, f"replaced by {key.key_id}, this machine's key")
            keep(secret)
            await uow.commit()
        return LocalKey(secret, key.expires_at, is_new=True)

    async def find_keys(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[ApiKey]:
        """Keys without their secrets, newest first; other teams' only for administrators."""
        async with self._units(scope_of(caller, team)) as uow:
            return await uow.keys.find_page(limit, cursor)

    async def has_any(self) -> bool:
        """Whether any key was ever created; without one nobody can sign in."""
        async with self._units(EVERY_TEAM) as uow:
            return bool((await uow.keys.find_page(1, None)).items)

    async def find_key(self, caller: Caller, key_id: str) -> ApiKey:
        """One key. Raises NotFound, also for a key of another team."""
        async with self._units(scope_of(caller)) as uow:
            return await uow.keys.find(key_id)

    async def revoke(self, caller: Caller, key_id: str) -> None:
        """Revokes a key and its sessions, immediately and finally. Revoking it twice is no error.

        Raises Conflict if it is the caller's own key, so that nobody locks themselves out by mistake.
        """
        require_scope(caller, Scope.ADMIN)
        key = await self.find_key(caller, key_id)
        if key_id == caller.key_id:
            raise Conflict(f"key {key_id} cannot revoke itself; use another administrator's key")
        if key.revoked_at is not None:
            return
        async with self._units(scope_of(caller)) as uow:
            now = self._clock.now()
            await uow.keys.revoke(key_id, now)
            await uow.accounts.add_audit(_entry(key, "key.revoke", now, caller))
            await uow.commit()

    async def verify(self, secret: str | None) -> Caller:
        """The caller with the key ``secret``.

        Raises NotAuthenticated if it is missing, unknown, revoked or expired, or a calendar's token.
        """
        if not secret:
            raise NotAuthenticated(
                "the request has no bearer key; send a key in the header Authorization, after the word Bearer"
            )
        return _caller(_no_calendar(await self._key_of(_sha256(secret))))

    async def verify_calendar(self, token: str) -> Caller:
        """The reader of a calendar with the ``token`` of its address.

        Raises NotAuthenticated as ``verify`` does, and NotPermitted for a key that opens more than calendars.
        """
        key = await self._key_of(_sha256(token))
        if key.scopes != CALENDAR_ALONE:
            raise NotPermitted(
                "a key that opens more than a calendar must not stand in an address: make a feed"
            )
        return replace(_caller(key), scopes=frozenset({Scope.PLANS_READ}))

    async def sign_in(self, secret: str) -> str:
        """The token of a new session of the key ``secret``. Raises NotAuthenticated as ``verify`` does."""
        if not secret:
            raise NotAuthenticated("no key was entered; enter an API key to sign in")
        key = _no_calendar(await self._key_of(_sha256(secret)))
        token, now = _urlsafe(self._random_bytes(SECRET_BYTES)), self._clock.now()
        async with self._units(EVERY_TEAM) as uow:
            await uow.keys.add_session(Session(_sha256(token), key.key_id, now, now + SESSION_TIME))
            await uow.commit()
        return token

    async def find_visitor(self, token: str | None) -> Caller:
        """The caller of the session ``token``, which may also be a key. Raises NotAuthenticated."""
        if not token:
            raise NotAuthenticated("you are not signed in")
        digest = _sha256(token)
        async with self._units(EVERY_TEAM) as uow:
            found = await uow.keys.find_session(digest)
        if found is None:
            return _caller(_no_calendar(await self._key_of(digest)))
        session, key = found[0], _no_calendar(found[1])
        if session.expires_at <= self._clock.now() or not key.opens(self._clock.now()):
            raise NotAuthenticated("the session has ended; sign in again")
        return _caller(key)

    async def sign_out(self, token: str) -> None:
        """Ends a session. An unknown session is no error."""
        async with self._units(EVERY_TEAM) as uow:
            await uow.keys.drop_session(_sha256(token))
            await uow.commit()

    async def _key_of(self, digest: str) -> ApiKey:
        async with self._units(EVERY_TEAM) as uow:
            key = await uow.keys.find_by_hash(digest)
        if key is None or not hmac.compare_digest(key.sha256, digest) or not key.opens(self._clock.now()):
            raise NotAuthenticated("the bearer key is unknown, revoked or expired")
        return key

    def _new_key(
        self, name: str, team: str, scopes: frozenset[Scope], expires_at: datetime | None
    ) -> tuple[ApiKey, str]:
        key_id = self._random_bytes(ID_BYTES).hex()
        secret, now = self._secret_of(key_id), self._clock.now()
        return ApiKey(key_id, name, team, scopes, _sha256(secret), now, expires_at=expires_at), secret

    def _secret_of(self, key_id: str) -> str:
        """A new secret of the key ``key_id``."""
        return f"{KEY_PREFIX}_{key_id}_{_urlsafe(self._random_bytes(SECRET_BYTES))}"


async def _end(uow: UnitOfWork, key: ApiKey, at: datetime, why: str) -> None:
    """Revokes a key and its sessions, with the installation as the actor."""
    await uow.keys.revoke(key.key_id, at)
    await uow.accounts.add_audit(_entry(key, "key.revoke", at, why=why))


def _is_good_for(key: ApiKey, least: timedelta, now: datetime) -> bool:
    """Whether it is an administrator's key that is valid for at least ``least`` from ``now``."""
    return Scope.ADMIN in key.scopes and key.opens(now) and key.opens(now + least)


def _why_not(key: ApiKey, now: datetime) -> str | None:
    """Why ``key`` cannot be the key of the setting; None if it can."""
    if key.revoked_at is not None:
        return f"key {key.key_id}, which was replaced or revoked on {key.revoked_at:%Y-%m-%d}"
    if not key.opens(now):
        return f"key {key.key_id}, which has expired"
    if Scope.ADMIN not in key.scopes:
        return f"key {key.key_id} of team {key.team}, which is not an administrator's"
    return None


def _entry(key: ApiKey, action: str, at: datetime, by: Caller | None = None, *, why: str = "") -> AuditEntry:
    return AuditEntry(
        at=at,
        actor="installation" if by is None else by.key_id,
        action=action,
        object_kind="key",
        object_id=key.key_id,
        team=key.team,
        detail=f"{key.name}: {why or ' '.join(sorted(key.scopes))}",
    )


def _no_calendar(key: ApiKey) -> ApiKey:
    """``key``, unless it is a calendar's token, which stands in addresses and so opens nothing else."""
    if key.scopes == CALENDAR_ALONE:
        raise NotAuthenticated("this is the token of a calendar: it opens calendars alone, in their address")
    return key


def _caller(key: ApiKey) -> Caller:
    return Caller(key.key_id, key.team, key.scopes, name=key.name, owner=key.person)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
