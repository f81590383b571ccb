"""Remembered answers, the audit trail, and the installation's own id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import ColumnElement, and_, delete, or_, select, update

from broker.domain.basics.account import AuditEntry, IdempotencyKey, RememberedAnswer
from broker.domain.basics.errors import ConcurrentChange, NotFound
from broker.domain.basics.page import Page
from broker.store.accounts.sealing import Seal
from broker.store.accounts.webhook_tables import OutboxRow, outbox_values
from broker.store.pages import fetch_page
from broker.store.tables import AuditRow, MetaRow, RememberedAnswerRow
from broker.store.team_session import TeamSession
from broker.store.workers import is_alive
from broker.store.writes import UNSYNCHRONIZED, Values, change, insert_many, insert_or_keep, update_one

INSTALL_ID = "install_id"
"""Name of the installation's id in ``meta``; the first migration draws it."""

_NEWEST_FIRST = (AuditRow.at, AuditRow.audit_id)


class SqlAccountRepository:
    """What was answered and who acted; fulfils ``broker.ports.unit_of_work.AccountRepository``."""

    def __init__(self, session: TeamSession, worker_id: str, seal: Seal) -> None:
        self._session = session
        self._worker_id = worker_id
        self._seal = seal

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        """Claims (team, key, route): None when claimed now, else what stands there already.

        A claim that is given back between the two looks is tried for again.
        """
        statement = (
            select(RememberedAnswerRow)
            .where(_claim(answer.team, answer.key, answer.route))
            .execution_options(populate_existing=True)
        )
        claimed = {**_answer_values(answer), "claimed_by": self._worker_id, "effects": None}
        while not await insert_or_keep(self._session, RememberedAnswerRow, claimed):
            row = await self._session.scalar(statement)
            if row is not None:
                return replace(_answer(row), body=None if row.body is None else self._seal.open(row.body))
        return None

    async def complete(self, answer: RememberedAnswer) -> None:
        """Fills in status and body of a claimed answer; NotFound when nobody claimed it.

        The answer of who has taken the claim over meanwhile counts, not this one.
        """
        claim = _claim(answer.team, answer.key, answer.route)
        # Some answers show a secret once, so all are sealed.
        body = None if answer.body is None else self._seal.close(answer.body)
        values = {"status": answer.status, "body": body, "headers": answer.headers}
        if await update_one(self._session, RememberedAnswerRow, and_(claim, self._is_mine()), values):
            return
        if await self._session.scalar(select(RememberedAnswerRow.key).where(claim)) is None:
            raise NotFound("idempotency key", answer.key)

    async def forget(self, team: str, key: str, route: str) -> None:
        """Gives a claim back after a failure that had no effect."""
        given_back = delete(RememberedAnswerRow).where(_claim(team, key, route), self._is_mine())
        await change(self._session, given_back)

    async def let_go(self, claim: IdempotencyKey) -> None:
        """Gives a claim back: forgotten when nothing was stored under it, else free to be taken over."""
        row = RememberedAnswerRow
        mine = and_(_claim(claim.team, claim.key, claim.route), self._is_mine())
        await change(self._session, delete(row).where(mine, row.effects.is_(None)))
        await update_one(self._session, row, mine, {"claimed_by": None})

    async def take_over(self, claim: IdempotencyKey) -> tuple[str, ...] | None:
        """Takes an unanswered claim that was let go or whose process died: the ids stored under it; None
        while it is at work."""
        row = RememberedAnswerRow
        holder = row.claimed_by
        left = or_(holder.is_(None), and_(holder != self._worker_id, ~is_alive(holder)))
        statement = (
            update(row)
            .where(_claim(claim.team, claim.key, claim.route), row.status.is_(None), left)
            .values(claimed_by=self._worker_id)
            .returning(row.effects)
        )
        taken = (await self._session.execute(statement, execution_options=UNSYNCHRONIZED)).first()
        return None if taken is None else tuple(taken.effects or ())

    async def bind(self, claim: IdempotencyKey | None, effects: Iterable[str]) -> None:
        """Notes ids stored under ``claim``, in the transaction that stores them; ConcurrentChange."""
        if claim is None:
            return
        mine = and_(_claim(claim.team, claim.key, claim.route), self._is_mine())
        noted = select(RememberedAnswerRow.effects).where(mine).with_for_update()
        standing = (await self._session.execute(noted)).first()
        if standing is None:
            raise ConcurrentChange(f"the idempotency key {claim.key!r} was taken over by another process")
        values = {"effects": [*(standing.effects or ()), *effects]}
        await update_one(self._session, RememberedAnswerRow, mine, values)

    def _is_mine(self) -> ColumnElement[bool]:
        row = RememberedAnswerRow
        return and_(row.claimed_by == self._worker_id, row.status.is_(None))

    async def add_audit(self, entry: AuditEntry) -> None:
        """Appends to the audit trail, and to what webhooks are told."""
        await insert_many(self._session, AuditRow, [_audit_values(entry)])
        await insert_many(self._session, OutboxRow, [outbox_values(entry)])

    async def find_audit(
        self, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        """Newest first."""
        statement = select(AuditRow)
        if object_id is not None:
            statement = statement.where(AuditRow.object_id == object_id)
        return await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _audit)

    async def install_id(self) -> str:
        """A short id of this installation (8 hex digits), made once with the schema."""
        value = await self._session.scalar(select(MetaRow.value).where(MetaRow.name == INSTALL_ID))
        if value is None:
            raise NotFound(
                "fact of the installation", INSTALL_ID, "the database was not migrated by the broker"
            )
        return value


def _claim(team: str, key: str, route: str) -> ColumnElement[bool]:
    row = RememberedAnswerRow
    return and_(row.team == team, row.key == key, row.route == route)


def _answer_values(answer: RememberedAnswer) -> Values:
    return {
        "team": answer.team,
        "key": answer.key,
        "route": answer.route,
        "body_sha256": answer.body_sha256,
        "created_at": answer.created_at,
        "status": answer.status,
        "body": answer.body,
        "headers": answer.headers,
    }


def _answer(row: RememberedAnswerRow) -> RememberedAnswer:
    return RememberedAnswer(
        team=row.team,
        key=row.key,
        route=row.route,
        body_sha256=row.body_sha256,
        created_at=row.created_at,
        status=row.status,
        body=row.body,
        headers=row.headers,
    )


def _audit_values(entry: AuditEntry) -> Values:
    return {
        "at": entry.at,
        "actor": entry.actor,
        "action": entry.action,
        "object_kind": entry.object_kind,
        "object_id": entry.object_id,
        "team": entry.team,
        "detail": entry.detail,
        "provider_request_id": entry.provider_request_id,
    }


def _audit(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        at=row.at,
        actor=row.actor,
        action=row.action,
        object_kind=row.object_kind,
        object_id=row.object_id,
        team=row.team,
        detail=row.detail,
        provider_request_id=row.provider_request_id,
    )
