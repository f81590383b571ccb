"""People: signed in at an identity provider, confirmed by it every few minutes, and signed out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.claims import ClaimRules, person_of
from broker.domain.basics.errors import NotAuthenticated, NotFound, NotPermitted, ProviderUnavailable
from broker.domain.basics.person import PendingSignIn, Person, PersonSession, Tokens
from broker.ports.people import IdentityProvider
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory

PERSON_PREFIX = "person_"
"""How tokens of these sessions begin: no key does."""
SECRET_BYTES = 32
SIGN_IN_TIME = timedelta(minutes=10)
LONGEST_SESSION = timedelta(hours=12)
ASKING_TIME = timedelta(seconds=30)
"""How long one process asks the provider about a session while others wait with asking."""


@dataclass(frozen=True, slots=True)
class BegunSignIn:
    """Where to send the browser, and the secret that it has to keep until it comes back."""

    url: str
    state: str = field(repr=False)


class PeopleService:
    """Use cases of people. ``provider`` None: nobody signs in but with a key."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        provider: IdentityProvider | None = None,
        rules: ClaimRules | None = None,
        *,
        confirm_every: timedelta = timedelta(minutes=10),
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._units = units
        self._clock = clock
        self._provider = provider
        self._rules = rules or ClaimRules()
        self._confirm_every = confirm_every
        self._random_bytes = random_bytes

    @property
    def is_offered(self) -> bool:
        """Whether there is an identity provider."""
        return self._provider is not None

    async def begin(self, wanted: str, redirect_uri: str) -> BegunSignIn:
        """Begins a sign-in that ends on the page ``wanted``. NotAuthenticated, ProviderUnavailable."""
        state, nonce, verifier = (self._secret() for _ in range(3))
        url = await self._known().authorization_url(redirect_uri, state, nonce, verifier)
        now = self._clock.now()
        pending = PendingSignIn(_sha256(state), nonce, verifier, wanted, now + SIGN_IN_TIME)
        async with self._units(EVERY_TEAM) as uow:
            await uow.people.add_sign_in(pending, now)
            await uow.commit()
        return BegunSignIn(url, state)

    async def finish(self, state: str, kept_state: str, code: str, redirect_uri: str) -> tuple[str, str]:
        """The token of a new session, and the page that was wanted.

        ``kept_state`` is what the browser kept since ``begin``. NotAuthenticated for a state that is unknown,
        over, another browser's or used before, and for tokens that do not stand up to the checks;
        NotPermitted for somebody whose claims give nothing here.
        """
        provider = self._known()
        if not hmac.compare_digest(state.encode(), kept_state.encode()):
            raise NotAuthenticated(
                "this sign-in was not begun by this browser, or was used already: begin anew"
            )
        async with self._units(EVERY_TEAM) as uow:
            pending = await uow.people.take_sign_in(_sha256(state))
            await uow.commit()
        if pending is None or pending.expires_at <= self._clock.now():
            raise NotAuthenticated("this sign-in took too long or was used already: begin anew")
        tokens = await provider.redeem(code, redirect_uri, pending.nonce, pending.verifier)
        person = person_of(tokens.claims or {}, self._rules)
        token, now = PERSON_PREFIX + self._secret(), self._clock.now()
        session = PersonSession(
            sha256=_sha256(token),
            person=person,
            created_at=now,
            expires_at=now + LONGEST_SESSION if tokens.refresh_token else self._end(tokens, now),
            confirmed_at=now,
            due_at=now + self._confirm_every,
            id_token=tokens.id_token,
            refresh_token=tokens.refresh_token,
        )
        async with self._units(EVERY_TEAM) as uow:
            await uow.people.add_person_session(session)
            await uow.accounts.add_audit(_entry(person, "person.sign_in", now))
            await uow.commit()
        return token, pending.wanted

    async def find_visitor(self, token: str) -> Caller:
        """Who is signed in with ``token``; NotAuthenticated.

        Where it is time, the provider is asked whether the person is still there, and what they may do now.
        """
        session, now = await self._session(token), self._clock.now()
        if session is None or session.expires_at <= now or not self.is_offered:
            raise NotAuthenticated("the session is over")
        if session.refresh_token is None or now < session.due_at:
            return session.person.as_caller()
        return (await self._confirmed(session, now)).person.as_caller()

    async def verify(self, token: str) -> Caller:
        """Who an access token of the provider speaks for. NotAuthenticated, NotPermitted."""
        return person_of(await self._known().verify(token), self._rules).as_caller()

    async def sign_out(self, token: str, back: str) -> str | None:
        """Ends a session. Where the browser has to go to end it at the provider too; None: nowhere."""
        session = await self._session(token)
        if session is None or self._provider is None:
            return None
        await self._drop(session, "person.sign_out", "")
        try:
            return await self._provider.sign_out_url(session.id_token, back)
        except ProviderUnavailable:
            return None

    async def find_sessions(self, caller: Caller) -> tuple[PersonSession, ...]:
        """The sessions of people that are not over, newest first; for administrators."""
        require_scope(caller, Scope.ADMIN)
        now = self._clock.now()
        async with self._units(scope_of(caller)) as uow:
            found = await uow.people.find_person_sessions()
        return tuple(session for session in found if now < session.expires_at)

    async def end_sessions(self, caller: Caller, subject: str) -> None:
        """Ends the sessions of a person; for administrators. Raises NotFound where there is none."""
        mine = [one for one in await self.find_sessions(caller) if one.person.subject == subject]
        if not mine:
            raise NotFound("person", subject)
        async with self._units(scope_of(caller)) as uow:
            for session in mine:
                await uow.people.drop_person_session(session.sha256)
            entry = _entry(
                mine[0].person, "person.session_end", self._clock.now(), "ended by an administrator"
            )
            await uow.accounts.add_audit(replace(entry, actor=caller.key_id))
            await uow.commit()

    async def _confirmed(self, session: PersonSession, now: datetime) -> PersonSession:
        """The session as the provider knows it now. One of several requests asks, the others do not wait."""
        async with self._units(EVERY_TEAM) as uow:
            mine = await uow.people.claim_confirmation(session.sha256, now, now + ASKING_TIME)
            await uow.commit()
        if mine:
            try:
                return await self._ask(session)
            except ProviderUnavailable:
                pass
            except (NotAuthenticated, NotPermitted) as error:
                await self._drop(session, "person.session_end", str(error))
                raise NotAuthenticated(f"the identity provider ended the session: {error}") from error
        if now >= session.confirmed_at + 2 * self._confirm_every:
            raise NotAuthenticated("the identity provider does not answer, so the session cannot go on")
        return session

    async def _ask(self, session: PersonSession) -> PersonSession:
        tokens = await self._known().refresh(session.refresh_token or "", session.person.subject)
        now = self._clock.now()
        found = replace(
            session,
            person=session.person if tokens.claims is None else person_of(tokens.claims, self._rules),
            confirmed_at=now,
            due_at=now + self._confirm_every,
            refresh_token=tokens.refresh_token or session.refresh_token,
            id_token=tokens.id_token or session.id_token,
        )
        async with self._units(EVERY_TEAM) as uow:
            await uow.people.confirm_person_session(found)
            await uow.commit()
        return found

    async def _session(self, token: str) -> PersonSession | None:
        async with self._units(EVERY_TEAM) as uow:
            return await uow.people.find_person_session(_sha256(token))

    async def _drop(self, session: PersonSession, action: str, why: str) -> None:
        async with self._units(EVERY_TEAM) as uow:
            if await uow.people.drop_person_session(session.sha256):
                entry = _entry(session.person, action, self._clock.now(), why)
                await uow.accounts.add_audit(entry)
            await uow.commit()

    def _end(self, tokens: Tokens, now: datetime) -> datetime:
        """When a session ends that cannot be confirmed: with its ID token."""
        longest = now + LONGEST_SESSION
        return longest if tokens.expires_at is None else min(tokens.expires_at, longest)

    def _known(self) -> IdentityProvider:
        if self._provider is None:
            raise NotAuthenticated("no identity provider is configured here: use a key")
        return self._provider

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def _entry(person: Person, action: str, at: datetime, why: str = "") -> AuditEntry:
    """What the audit trail tells of a session: who, and their scopes or why it ended."""
    detail = why or " ".join(sorted(person.scopes))
    return AuditEntry(at, person.actor, action, "person", person.subject, person.team, detail)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
