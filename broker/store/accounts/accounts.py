"""Idempotency keys with their answers, the audit trail, and the installation's id."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update

from broker.domain.basics.account import AuditEntry, IdempotencyKey, RememberedAnswer
from broker.domain.basics.errors import ConcurrentChange, NotFound
from broker.domain.basics.machines import KeyPair, PublicKey
from broker.domain.basics.page import Page
from broker.store.accounts.key_tables import ApiKeyRow
from broker.store.accounts.own_ssh_key import OWN_KEY, OWN_PUBLIC_KEY, make_key_pair, public_key_of
from broker.store.accounts.sealing import Seal
from broker.store.accounts.webhook_tables import OutboxRow, outbox_values
from broker.store.columns import row_as, values_of
from broker.store.pages import fetch_page
from broker.store.tables import AuditRow, MetaRow, PlanRow, RememberedAnswerRow, ReservationRow
from broker.store.team_session import TeamSession, of_every_team
from broker.store.workers import is_alive
from broker.store.writes import UNSYNCHRONIZED, batches, change, insert_many, insert_or_keep, update_one

INSTALL_ID = "install_id"
"""Name of the installation's id in ``meta``; the first migration creates it."""

_NEWEST_FIRST = (AuditRow.at, AuditRow.audit_id)


class SqlAccountRepository:
    """Idempotency keys with their answers, and the audit trail."""

    def __init__(self, session: TeamSession, worker_id: str, seal: Seal) -> None:
        self._session = session
        self._worker_id = worker_id
        self._seal = seal

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        """Claims (team, key, route). None if it is claimed now, else the answer that is already stored.

        If the other claim is released between the insert and the read, it tries again.
        """
        statement = (
            select(RememberedAnswerRow)
            .where(_claim(answer.team, answer.key, answer.route))
            .execution_options(populate_existing=True)
        )
        claimed = {**values_of(answer), "claimed_by": self._worker_id, "effects": None}
        while not await insert_or_keep(self._session, RememberedAnswerRow, claimed):
            row = await self._session.scalar(statement)
            if row is not None:
                return replace(
                    row_as(RememberedAnswer, row),
                    body=None if row.body is None else self._seal.open(row.body),
                )
        return None

    async def complete(self, answer: RememberedAnswer) -> None:
        """Stores status and body of a claimed answer. Raises NotFound if it was not claimed.

        If another process has taken the claim over, its answer counts instead.
        """
        claim = _claim(answer.team, answer.key, answer.route)
        # Some answers contain a secret, so all are encrypted.
        body = None if answer.body is None else self._seal.close(answer.body)
        values = {"status": answer.status, "body": body, "headers": answer.headers}
        if await update_one(self._session, RememberedAnswerRow, and_(claim, self._is_mine()), values):
            return
        if await self._session.scalar(select(RememberedAnswerRow.key).where(claim)) is None:
            raise NotFound("idempotency key", answer.key)

    async def forget(self, team: str, key: str, route: str) -> None:
        """Deletes a claim after a failure without effects."""
        given_back = delete(RememberedAnswerRow).where(_claim(team, key, route), self._is_mine())
        await change(self._session, given_back)

    async def let_go(self, claim: IdempotencyKey) -> None:
        """Releases a claim: deletes it if nothing was stored under it, else allows others to take it over."""
        row = RememberedAnswerRow
        mine = and_(_claim(claim.team, claim.key, claim.route), self._is_mine())
        await change(self._session, delete(row).where(mine, row.effects.is_(None)))
        await update_one(self._session, row, mine, {"claimed_by": None})

    async def take_over(self, claim: IdempotencyKey) -> tuple[str, ...] | None:
        """Takes over an unanswered claim that was released or whose process died.

        Returns the ids that were stored under it; None while its request is in progress.
        """
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
        """Binds ids to ``claim`` in the transaction that stores their objects (None: there is no key).

        Raises ConcurrentChange if another process has taken over the claim; then nothing may be stored.
        """
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
        """Appends to the audit trail and to the outbox."""
        values = values_of(entry)
        del values["actor_name"]
        await insert_many(self._session, AuditRow, [values])
        await insert_many(self._session, OutboxRow, [outbox_values(entry)])

    async def find_audit(
        self, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        """Newest first, with the names of the keys that acted."""
        statement = select(AuditRow)
        if object_id is not None:
            statement = statement.where(AuditRow.object_id == object_id)
        page = await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _entry)
        options = of_every_team("a key of all teams or an administrator's may have acted on what a team has")
        names = await self._key_names({entry.actor for entry in page.items}, options)
        items = tuple(replace(entry, actor_name=names.get(entry.actor, "")) for entry in page.items)
        return Page(items, page.next_cursor)

    async def find_key_names(self, key_ids: Collection[str]) -> Mapping[str, str]:
        """The names of those of ``key_ids`` that are keys in scope, also of revoked ones."""
        return await self._key_names(key_ids, {})

    async def _key_names(self, key_ids: Collection[str], options: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in batches(sorted(key_ids)):
            named = select(ApiKeyRow.key_id, ApiKeyRow.name).where(ApiKeyRow.key_id.in_(part))
            rows = await self._session.execute(named.execution_options(**options))
            found.update((row.key_id, row.name) for row in rows)
        return found

    async def find_teams(self) -> tuple[str, ...]:
        """Teams in scope that have a key, a plan or a reservation, in the order in which they appeared."""
        first: dict[str, datetime] = {}
        for row in (ApiKeyRow, PlanRow, ReservationRow):
            begun = select(row.team, func.min(row.created_at).label("at")).group_by(row.team)
            for team, at in (await self._session.execute(begun)).all():
                first[team] = min(first.get(team, at), at)
        return tuple(sorted(first, key=lambda team: (first[team], team)))

    async def install_id(self) -> str:
        """A short id of this installation (8 hex digits), created once with the schema."""
        value = await self._session.scalar(select(MetaRow.value).where(MetaRow.name == INSTALL_ID))
        if value is None:
            raise NotFound(
                "fact of the installation", INSTALL_ID, "the database was not migrated by the broker"
            )
        return value

    async def find_own_public_key(self) -> PublicKey | None:
        """The public half of the installation's own SSH key; None before its first use."""
        line = await self._session.scalar(select(MetaRow.value).where(MetaRow.name == OWN_PUBLIC_KEY))
        return None if line is None else public_key_of(line)

    async def own_public_key(self) -> PublicKey:
        """The public half of the installation's own SSH key, which is made once."""
        found = await self.find_own_public_key()
        if found is None:
            pair = make_key_pair()
            sealed = {"name": OWN_KEY, "value": self._seal.close(pair.private)}
            if await insert_or_keep(self._session, MetaRow, sealed):
                public = {"name": OWN_PUBLIC_KEY, "value": pair.public.line}
                await insert_or_keep(self._session, MetaRow, public)
            found = await self.find_own_public_key()
        assert found is not None
        return found

    async def find_own_key(self) -> KeyPair | None:
        """The installation's own SSH key; None before its first use. Raises InputError as ``Seal.open``."""
        public = await self.find_own_public_key()
        stored = await self._session.scalar(select(MetaRow.value).where(MetaRow.name == OWN_KEY))
        return None if public is None or stored is None else KeyPair(self._seal.open(stored), public)


def _claim(team: str, key: str, route: str) -> ColumnElement[bool]:
    row = RememberedAnswerRow
    return and_(row.team == team, row.key == key, row.route == route)


_AUDITED = tuple(one.name for one in fields(AuditEntry) if one.name != "actor_name")


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in _AUDITED})
