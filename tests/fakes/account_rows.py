"""Keys and sessions, remembered answers and the audit trail in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from broker.domain.basics.account import ApiKey, AuditEntry, IdempotencyKey, RememberedAnswer, Session
from broker.domain.basics.errors import ConcurrentChange, NotFound
from broker.domain.basics.machines import KeyPair, PublicKey, SshKey
from broker.domain.basics.page import Page
from broker.store.accounts.own_ssh_key import make_key_pair
from tests.fakes.tables import Repository, page_of


class Accounts(Repository):
    """Stands in for ``SqlAccountRepository``."""

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        self._scope.require(answer.team)
        claim = (answer.team, answer.key, answer.route)
        if claim in self._tables.answers:
            return self._tables.answers[claim]
        self._staged.append(lambda: self._tables.answers.update({claim: answer}))
        return None

    async def complete(self, answer: RememberedAnswer) -> None:
        claim = (answer.team, answer.key, answer.route)
        self._staged.append(lambda: self._tables.answers.update({claim: answer}))

    async def forget(self, team: str, key: str, route: str) -> None:
        claim = (team, key, route)
        self._staged.append(lambda: self._drop(claim))

    def _drop(self, claim: tuple[str, str, str]) -> None:
        del self._tables.answers[claim]
        self._tables.effects.pop(claim, None)

    async def let_go(self, claim: IdempotencyKey) -> None:
        name = (claim.team, claim.key, claim.route)
        if name in self._tables.effects:
            self._staged.append(lambda: self._tables.left.add(name))
        else:
            self._staged.append(lambda: self._drop(name))

    async def take_over(self, claim: IdempotencyKey) -> tuple[str, ...] | None:
        name = (claim.team, claim.key, claim.route)
        if name not in self._tables.left:
            return None
        self._staged.append(lambda: self._tables.left.remove(name))
        return self._tables.effects.get(name, ())

    async def bind(self, claim: IdempotencyKey | None, effects: Iterable[str]) -> None:
        if claim is None:
            return
        name = (claim.team, claim.key, claim.route)
        if name not in self._tables.answers:
            raise ConcurrentChange(f"{claim} was taken over")
        bound = (*self._tables.effects.get(name, ()), *effects)
        self._staged.append(lambda: self._tables.effects.update({name: bound}))

    async def add_audit(self, entry: AuditEntry) -> None:
        self._scope.require(entry.team)
        self._staged.append(lambda: self._tables.audit.append(entry))

    async def find_audit(
        self, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        mine = [
            entry
            for entry in reversed(self._tables.audit)
            if self._scope.covers(entry.team) and object_id in (None, entry.object_id)
        ]
        names = {key.key_id: key.name for key in self._tables.keys.values()}
        return page_of([replace(one, actor_name=names.get(one.actor, "")) for one in mine], limit, cursor)

    async def find_key_names(self, key_ids: Collection[str]) -> Mapping[str, str]:
        mine = (key for key in self._tables.keys.values() if self._scope.covers(key.team))
        return {key.key_id: key.name for key in mine if key.key_id in key_ids}

    async def find_teams(self) -> tuple[str, ...]:
        tables = self._tables
        begun = [(key.created_at, key.team) for key in tables.keys.values()]
        begun += [(record.created_at, record.team) for record in tables.plans.values()]
        begun += [(row.created_at, row.team) for row in tables.reservations.values()]
        return tuple(dict.fromkeys(team for _, team in sorted(begun) if self._scope.covers(team)))

    async def install_id(self) -> str:
        return "test"

    async def find_own_key(self) -> KeyPair | None:
        return next(iter(self._tables.own_keys), None)

    async def find_own_public_key(self) -> PublicKey | None:
        return next((pair.public for pair in self._tables.own_keys), None)

    async def own_public_key(self) -> PublicKey:
        if not self._tables.own_keys:
            self._tables.own_keys.append(make_key_pair())
        return self._tables.own_keys[0].public


class Keys(Repository):
    """Stands in for ``SqlKeyRepository``; by hash."""

    async def add(self, key: ApiKey) -> None:
        self._scope.require(key.team)
        self._staged.append(lambda: self._tables.keys.update({key.sha256: key}))

    async def find(self, key_id: str) -> ApiKey:
        for key in self._tables.keys.values():
            if key.key_id == key_id:
                return key
        raise NotFound("key", key_id)

    async def find_by_hash(self, sha256: str) -> ApiKey | None:
        return self._tables.keys.get(sha256)

    async def find_page(self, limit: int, cursor: str | None) -> Page[ApiKey]:
        newest = sorted(
            self._tables.keys.values(), key=lambda key: (key.created_at, key.key_id), reverse=True
        )
        return page_of(newest, limit, cursor)

    async def take_turns(self) -> None:
        """Everything here happens in one transaction at a time."""

    async def find_unrevoked(self, team: str) -> tuple[ApiKey, ...]:
        mine = [key for key in self._tables.keys.values() if key.team == team and key.revoked_at is None]
        return tuple(sorted(mine, key=lambda key: (key.created_at, key.key_id)))

    async def accept(self, invitation: ApiKey, sha256: str) -> bool:
        found = self._tables.keys.get(invitation.sha256)
        if found is None or found.revoked_at is not None:
            return False
        key = replace(found, sha256=sha256, invited_until=None)

        def apply() -> None:
            del self._tables.keys[invitation.sha256]
            self._tables.keys[sha256] = key

        self._staged.append(apply)
        return True

    async def revoke(self, key_id: str, at: datetime) -> None:
        key = await self.find(key_id)
        ended = replace(key, revoked_at=key.revoked_at or at)
        self._staged.append(lambda: self._tables.keys.update({key.sha256: ended}))

    async def add_session(self, session: Session) -> None:
        self._staged.append(lambda: self._tables.sessions.update({session.sha256: session}))

    async def find_session(self, sha256: str) -> tuple[Session, ApiKey] | None:
        session = self._tables.sessions.get(sha256)
        return None if session is None else (session, await self.find(session.key_id))

    async def drop_session(self, sha256: str) -> None:
        def apply() -> None:
            self._tables.sessions.pop(sha256, None)

        self._staged.append(apply)


class SshKeys(Repository):
    """Stands in for ``SqlSshKeyRepository``."""

    def _mine(self) -> list[SshKey]:
        seen = [key for key in self._tables.ssh_keys.values() if self._scope.covers(key.team)]
        return sorted(seen, key=lambda key: (key.created_at, key.key_id))

    async def add(self, ssh_key: SshKey) -> None:
        self._scope.require(ssh_key.team)
        self._staged.append(lambda: self._tables.ssh_keys.update({ssh_key.key_id: ssh_key}))

    async def find(self, key_id: str) -> SshKey:
        for key in self._mine():
            if key.key_id == key_id:
                return key
        raise NotFound("SSH key", key_id)

    async def find_page(self, limit: int, cursor: str | None) -> Page[SshKey]:
        return page_of(self._mine()[::-1], limit, cursor)

    async def find_of_team(self, team: str) -> tuple[SshKey, ...]:
        return tuple(key for key in self._mine() if key.team == team)

    async def find_of_persons(self) -> tuple[SshKey, ...]:
        return tuple(key for key in self._mine() if key.person is not None)

    async def remove(self, key_id: str) -> None:
        def apply() -> None:
            self._tables.ssh_keys.pop(key_id, None)

        self._staged.append(apply)
