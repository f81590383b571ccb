"""Public SSH keys of teams and persons, which go with their orders."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError, NotPermitted
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.machines import SshKey, read_public_key
from broker.domain.basics.page import Page
from broker.domain.basics.person import is_same_actor
from broker.domain.basics.webhook import ALL_TEAMS
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory

MOST_KEYS = 100
"""The most keys of a team that go with one order."""


class SshKeysService:
    """Use cases of public SSH keys. A person adds their own and those of their team."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._units = units
        self._clock = clock
        self._random_bytes = random_bytes

    async def add(
        self,
        caller: Caller,
        public_key: str,
        name: str = "",
        *,
        team: str | None = None,
        person: str | None = None,
    ) -> SshKey:
        """Stores a public key of ``team`` (default: the caller's), or of ``person`` in it.

        ``name`` empty: the comment of the key. The same key of the same owner is stored once. Raises
        InputError for what is no public key, and NotPermitted for another team or person.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        try:
            line, comment = read_public_key(public_key)
        except ValueError as error:
            expected = "one line of a public key file, such as `cat ~/.ssh/id_ed25519.pub` prints"
            raise InputError("SSH key", (FieldProblem("/public_key", str(error), expected),)) from error
        team = team or caller.team
        if not caller.may(Scope.ADMIN) and team != caller.team:
            raise NotPermitted(f"key {caller.key_id} adds SSH keys of team {caller.team} only, not of {team}")
        if team == ALL_TEAMS:
            raise InputError("SSH key", (FieldProblem("/team", repr(team), "one team"),))
        mine = ("me", caller.key_id, caller.name, caller.person)
        if person is not None and person not in mine and not caller.may(Scope.ADMIN):
            raise NotPermitted(f"{caller.called} adds own SSH keys only, not those of {person}")
        own = caller.person if person in mine else person
        now = self._clock.now()
        key = SshKey(
            key_id=make_id("ssh", now, self._random_bytes(ENTROPY_BYTES)),
            name=name or comment or line.split()[0],
            team=team,
            public_key=line,
            created_at=now,
            created_by=caller.key_id,
            person=own,
        )
        async with self._units(scope_of(caller)) as uow:
            for known in await uow.ssh_keys.find_of_team(team):
                if known.public_key == line and _is_owner(known, own):
                    return known
            await uow.ssh_keys.add(key)
            await uow.accounts.bind(caller.claim, (key.key_id,))
            await uow.accounts.add_audit(self._entry(key, caller, "ssh_key.add"))
            await uow.commit()
        return key

    async def find_keys(self, caller: Caller, limit: int = 50, cursor: str | None = None) -> Page[SshKey]:
        """The keys of the caller's team, newest first; those of all teams for an administrator."""
        require_scope(caller, Scope.PLANS_READ)
        async with self._units(scope_of(caller)) as uow:
            return await uow.ssh_keys.find_page(limit, cursor)

    async def find_key(self, caller: Caller, key_id: str) -> SshKey:
        """One key. Raises NotFound."""
        require_scope(caller, Scope.PLANS_READ)
        async with self._units(scope_of(caller)) as uow:
            return await uow.ssh_keys.find(key_id)

    async def remove(self, caller: Caller, key_id: str) -> None:
        """Deletes a key. It no longer goes with orders; machines that have it already keep it.

        Raises NotFound, and NotPermitted for another person's.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        async with self._units(scope_of(caller)) as uow:
            key = await uow.ssh_keys.find(key_id)
            is_theirs = key.person is None or is_same_actor(key.person, caller.person)
            if not is_theirs and not caller.may(Scope.ADMIN):
                raise NotPermitted(f"SSH key {key_id} is another person's")
            await uow.ssh_keys.remove(key_id)
            await uow.accounts.add_audit(self._entry(key, caller, "ssh_key.remove"))
            await uow.commit()

    def _entry(self, key: SshKey, caller: Caller, action: str) -> AuditEntry:
        owner = "the team" if key.person is None else key.person
        return AuditEntry(
            at=self._clock.now(),
            actor=caller.key_id,
            action=action,
            object_kind="ssh_key",
            object_id=key.key_id,
            team=key.team,
            detail=f"{key.name} of {owner}, {key.fingerprint}",
        )


def _is_owner(key: SshKey, person: str | None) -> bool:
    """Whether ``key`` is of ``person`` (None: of the team)."""
    if key.person is None or person is None:
        return key.person is person
    return is_same_actor(key.person, person)
