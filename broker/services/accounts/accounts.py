"""Idempotent requests and the audit trail."""

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
    """The answer of a route: status, body and headers as they were sent (JSON texts).

    ``remembered`` is the body for a repeated request if it differs: a secret is shown once and never stored.
    """

    status: int
    body: str
    headers: str = "{}"
    replayed: bool = False
    remembered: str | None = None


Replay = Callable[[tuple[str, ...]], Awaitable[Answer]]
"""Builds the answer of a request that never got one from the ids of the objects that it stored."""


class AccountsService:
    """Use cases of idempotent requests and of the audit trail."""

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
        again: Replay | None = None,
    ) -> Answer:
        """The answer of ``act``, or the stored answer if ``key`` was used before with the same ``body``.

        Raises IdempotencyMismatch for another body, and StillAtWork while the first request is in progress.
        If ``act`` fails with a BrokerError, the key is free again; after any other failure it stays taken,
        because its effects are unknown. A request that was begun and never answered, because its process died
        or failed, is taken over: ``again`` answers from the ids that were stored under the key; if there are
        none, ``act`` runs again. If the database is unavailable when ``act`` ends, ``catch_up`` stores the
        end later.
        """
        if key is None:
            return await act()
        scope = scope_of(caller)
        claim = RememberedAnswer(caller.team, key, route, hashlib.sha256(body).hexdigest(), self._clock.now())
        effects: tuple[str, ...] | None = ()
        async with self._uow_factory(scope) as uow:
            stored = await uow.accounts.remember(claim)
            if stored is not None and _is_unanswered(stored, claim):
                effects = await uow.accounts.take_over(IdempotencyKey(caller.team, key, route))
            await uow.commit()
        if stored is not None and stored.status is not None:
            return Answer(stored.status, stored.body or "", stored.headers or "{}", replayed=True)
        if effects is None:
            raise StillAtWork(f"the first request with the idempotency key {key!r} is still in progress")
        claimed = IdempotencyKey(caller.team, key, route)
        try:
            answer = await again(effects) if again is not None and effects else await act()
        except BrokerError as error:
            with suppress(StoreUnavailable):  # the caller gets the first failure
                await self._store_end(claimed, partial(self._give_back, scope, claimed, error))
            raise
        kept = answer.body if answer.remembered is None else answer.remembered
        done = replace(claim, status=answer.status, body=kept, headers=answer.headers)
        await self._store_end(claimed, partial(self._complete, scope, done))
        return answer

    async def catch_up(self) -> None:
        """Stores the ends of requests that ended while the database was unavailable.

        Until then these requests count as in progress. Raises StoreUnavailable.
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
            if isinstance(error, ProviderError):  # nothing that was stored is in force any more
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
        """Audit entries, newest first; other teams' only for administrators."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.accounts.find_audit(limit, cursor, object_id)


def _is_unanswered(stored: RememberedAnswer, claim: RememberedAnswer) -> bool:
    """Whether the first request has no answer yet. Raises IdempotencyMismatch if its body was different."""
    if stored.body_sha256 != claim.body_sha256:
        raise IdempotencyMismatch(
            f"the idempotency key {claim.key!r} was used with another body; use a new key for a new request"
        )
    return stored.status is None
