"""Accounts: remembered answers, and the audit trail."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from broker.domain.basics.access import TeamScope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, IdempotencyKey, RememberedAnswer
from broker.domain.basics.errors import (
    BrokerError,
    IdempotencyMismatch,
    ProviderError,
    StillAtWork,
    StoreUnavailable,
)
from broker.domain.basics.page import Page
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answered: status, body and headers as they went out (JSON texts).

    ``remembered``: the body that a repeat gets instead, where a secret is shown once and never kept.
    """

    status: int
    body: str
    headers: str = "{}"
    replayed: bool = False
    remembered: str | None = None


Retell = Callable[[tuple[str, ...]], Awaitable[Answer]]
"""The answer that a request would have got, from the ids of what it stored."""


class AccountsService:
    """Use cases of what is answered once, and of the trail."""

    def __init__(self, uow_factory: UnitOfWorkFactory, clock: Clock) -> None:
        self._uow_factory = uow_factory
        self._clock = clock
        self._late: dict[IdempotencyKey, Callable[[], Awaitable[None]]] = {}

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
        failure of a meant kind gives the key back; after any other the key stays taken, because nobody
        knows what has happened. What was begun and not answered, by a process that died or a failure in the
        middle, is taken over: ``again`` answers from the ids that were stored under the key; if there are
        none, ``act`` begins anew. Where the database is away when the end of ``act`` is to be stored,
        ``catch_up`` stores it later.
        """
        if key is None:
            return await act()
        scope = scope_of(caller)
        claim = RememberedAnswer(caller.team, key, route, hashlib.sha256(body).hexdigest(), self._clock.now())
        effects: tuple[str, ...] | None = ()
        async with self._uow_factory(scope) as uow:
            standing = await uow.accounts.remember(claim)
            if standing is not None and _is_unanswered(standing, claim):
                effects = await uow.accounts.take_over(IdempotencyKey(caller.team, key, route))
            await uow.commit()
        if standing is not None and standing.status is not None:
            return Answer(standing.status, standing.body or "", standing.headers or "{}", replayed=True)
        if effects is None:
            raise StillAtWork(f"the first request under the idempotency key {key!r} is still at work")
        claimed = IdempotencyKey(caller.team, key, route)
        try:
            answer = await again(effects) if again is not None and effects else await act()
        except BrokerError as error:
            with suppress(StoreUnavailable):  # who asked is told of the first failure
                await self._store_end(claimed, partial(self._give_back, scope, claimed, error))
            raise
        kept = answer.body if answer.remembered is None else answer.remembered
        done = replace(claim, status=answer.status, body=kept, headers=answer.headers)
        await self._store_end(claimed, partial(self._complete, scope, done))
        return answer

    async def catch_up(self) -> None:
        """Stores how requests ended that ended without a database; StoreUnavailable while it is away.

        Until then those requests are still at work to everybody, as their process lives.
        """
        for claimed, store in tuple(self._late.items()):
            await store()
            del self._late[claimed]

    async def _store_end(self, claimed: IdempotencyKey, store: Callable[[], Awaitable[None]]) -> None:
        try:
            await store()
        except StoreUnavailable:
            self._late[claimed] = store
            raise

    async def _complete(self, scope: TeamScope, done: RememberedAnswer) -> None:
        async with self._uow_factory(scope) as uow:
            await uow.accounts.complete(done)
            await uow.commit()

    async def _give_back(self, scope: TeamScope, claim: IdempotencyKey, error: BrokerError) -> None:
        async with self._uow_factory(scope) as uow:
            if isinstance(error, ProviderError):  # what was stored is undone
                await uow.accounts.forget(claim.team, claim.key, claim.route)
            else:
                await uow.accounts.let_go(claim)
            await uow.commit()

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
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.accounts.find_audit(limit, cursor, object_id)


def _is_unanswered(standing: RememberedAnswer, claim: RememberedAnswer) -> bool:
    """Whether the first request has no answer yet; IdempotencyMismatch when it was another one."""
    if standing.body_sha256 != claim.body_sha256:
        raise IdempotencyMismatch(f"the idempotency key {claim.key!r} was used with another body")
    return standing.status is None
