"""People's sign-ins and sessions, found by the SHA-256 of their secrets."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, delete, select

from broker.domain.basics.account import Scope
from broker.domain.basics.errors import InputError
from broker.domain.basics.person import PendingSignIn, Person, PersonSession
from broker.store.accounts.person_tables import PendingSignInRow, PersonSessionRow
from broker.store.accounts.sealing import Seal
from broker.store.team_session import TeamSession
from broker.store.writes import UNSYNCHRONIZED, Values, change, insert_many, update_one

MOST_PENDING = 10_000
"""Anybody may begin a sign-in: of more than so many the oldest are forgotten."""
MOST_LISTED = 1000


class SqlPersonRepository:
    """Sign-ins under way and sessions of people. ``seal`` closes what the provider gave."""

    def __init__(self, session: TeamSession, seal: Seal) -> None:
        self._session = session
        self._seal = seal

    async def add_sign_in(self, pending: PendingSignIn, now: datetime) -> None:
        """Stores one, and forgets those that are over, and the oldest of too many."""
        row = PendingSignInRow
        await change(self._session, delete(row).where(row.expires_at <= now))
        newest = select(row.expires_at).order_by(row.expires_at.desc()).offset(MOST_PENDING - 1).limit(1)
        oldest_kept = await self._session.scalar(newest)
        if oldest_kept is not None:
            await change(self._session, delete(row).where(row.expires_at <= oldest_kept))
        values = {
            "state_sha256": pending.state_sha256,
            "nonce": pending.nonce,
            "verifier": pending.verifier,
            "wanted": pending.wanted,
            "expires_at": pending.expires_at,
        }
        await insert_many(self._session, row, [values])

    async def take_sign_in(self, state_sha256: str) -> PendingSignIn | None:
        """Takes one out: of several that try, one gets it."""
        row = PendingSignInRow
        statement = (
            delete(row)
            .where(row.state_sha256 == state_sha256)
            .returning(row.nonce, row.verifier, row.wanted, row.expires_at)
        )
        taken = (await self._session.execute(statement, execution_options=UNSYNCHRONIZED)).first()
        if taken is None:
            return None
        return PendingSignIn(state_sha256, taken.nonce, taken.verifier, taken.wanted, taken.expires_at)

    async def add_person_session(self, session: PersonSession) -> None:
        """Stores a session, and forgets those that were over when it began."""
        row = PersonSessionRow
        await change(self._session, delete(row).where(row.expires_at <= session.created_at))
        values = {
            "sha256": session.sha256,
            "created_at": session.created_at,
            "expires_at": session.expires_at,
            **self._confirmed(session),
        }
        await insert_many(self._session, row, [values])

    async def find_person_session(self, sha256: str) -> PersonSession | None:
        """The session of that hash; None too where what the provider gave cannot be opened any more."""
        row = await self._session.find_row(PersonSessionRow, sha256=sha256)
        if row is None:
            return None
        try:
            id_token, refresh_token = self._opened(row.id_token), self._opened(row.refresh_token)
        except InputError:  # sealed with a key that is no longer given
            return None
        return PersonSession(
            sha256=row.sha256,
            person=Person(row.subject, row.name, row.team, frozenset(Scope(one) for one in row.scopes)),
            created_at=row.created_at,
            expires_at=row.expires_at,
            confirmed_at=row.confirmed_at,
            due_at=row.due_at,
            id_token=id_token,
            refresh_token=refresh_token,
        )

    async def find_person_sessions(self) -> tuple[PersonSession, ...]:
        """The sessions of people, newest first, without what the provider gave."""
        row = PersonSessionRow
        found = await self._session.scalars(select(row).order_by(row.created_at.desc()).limit(MOST_LISTED))
        return tuple(
            PersonSession(
                sha256=one.sha256,
                person=Person(
                    one.subject, one.name, one.team, frozenset(Scope(scope) for scope in one.scopes)
                ),
                created_at=one.created_at,
                expires_at=one.expires_at,
                confirmed_at=one.confirmed_at,
                due_at=one.due_at,
            )
            for one in found
        )

    async def claim_confirmation(self, sha256: str, now: datetime, until: datetime) -> bool:
        """Whether the caller is to ask; it moves the time on, so that nobody else does before ``until``."""
        due = and_(PersonSessionRow.sha256 == sha256, PersonSessionRow.due_at <= now)
        return await update_one(self._session, PersonSessionRow, due, {"due_at": until})

    async def confirm_person_session(self, session: PersonSession) -> None:
        """Writes what the provider said anew; a session that ended meanwhile stays so."""
        this = PersonSessionRow.sha256 == session.sha256
        await update_one(self._session, PersonSessionRow, this, self._confirmed(session))

    async def drop_person_session(self, sha256: str) -> bool:
        """Forgets a session. Returns whether there was one."""
        ended = delete(PersonSessionRow).where(PersonSessionRow.sha256 == sha256)
        return await change(self._session, ended) > 0

    def _confirmed(self, session: PersonSession) -> Values:
        person = session.person
        return {
            "team": person.team,
            "subject": person.subject,
            "name": person.name,
            "scopes": sorted(scope.value for scope in person.scopes),
            "confirmed_at": session.confirmed_at,
            "due_at": session.due_at,
            "id_token": self._closed(session.id_token),
            "refresh_token": self._closed(session.refresh_token),
        }

    def _closed(self, text: str | None) -> str | None:
        return None if text is None else self._seal.close(text)

    def _opened(self, stored: str | None) -> str | None:
        return None if stored is None else self._seal.open(stored)
