"""The unit of work: one transaction; the only module that commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import LeadershipLost
from broker.store.accounts.accounts import SqlAccountRepository
from broker.store.accounts.keys import SqlKeyRepository
from broker.store.accounts.people import SqlPersonRepository
from broker.store.accounts.retention import SqlRetentionRepository
from broker.store.accounts.sealing import Seal
from broker.store.accounts.ssh_keys import SqlSshKeyRepository
from broker.store.accounts.webhooks import SqlWebhookRepository
from broker.store.failures import failure_of
from broker.store.holding.launches import SqlLaunchRepository
from broker.store.holding.networks import SqlNetworkRepository
from broker.store.holding.reservations import SqlReservationRepository
from broker.store.leader import find_epoch
from broker.store.market.kept_market import KeptMarket
from broker.store.market.offers import SqlOfferRepository
from broker.store.market.prices import SqlPriceRepository
from broker.store.market.quarantine import SqlQuarantineRepository
from broker.store.planning.plans import SqlPlanRepository
from broker.store.planning.reoptimizations import SqlReoptimizationRepository
from broker.store.spend.budgets import SqlBudgetRepository
from broker.store.spend.exports import SqlExportRepository
from broker.store.spend.rollups import SqlRollupRepository
from broker.store.team_session import TeamSession

_led_in: ContextVar[int | None] = ContextVar("led_in", default=None)


@contextmanager
def written_in(epoch: int | None) -> Iterator[None]:
    """A context in which units of work commit only in the leader's epoch ``epoch`` (None: in any)."""
    token = _led_in.set(epoch)
    try:
        yield
    finally:
        _led_in.reset(token)


class SqlUnitOfWork:
    """One transaction over all repositories. Leaving without ``commit`` rolls back.

    ``scope``: whose objects there are. Another team's are as if they were not there for every repository: no
    list shows them, to find one by its id is NotFound, and so is to store one for another team.

    Each statement reads what is committed. Versions or primary keys protect against conflicting writes. A
    failure of the database raises StoreUnavailable. ``worker_id`` is the process that claims rows; ``seal``
    encrypts secrets; ``kept`` is the cache of the market. ``returning`` are tasks that return connections,
    for which the store waits before it closes: a cancelled caller does not.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        scope: TeamScope,
        worker_id: str,
        seal: Seal,
        kept: KeptMarket,
        returning: set[asyncio.Task[None]],
    ) -> None:
        self.scope = scope
        self._returning = returning
        self._epoch = _led_in.get()
        self._session = TeamSession(engine, scope)
        self.offers = SqlOfferRepository(self._session, kept)
        self.quarantine = SqlQuarantineRepository(self._session)
        self.plans = SqlPlanRepository(self._session, worker_id)
        self.reservations = SqlReservationRepository(self._session, worker_id)
        self.launches = SqlLaunchRepository(self._session)
        self.networks = SqlNetworkRepository(self._session)
        self.reoptimizations = SqlReoptimizationRepository(self._session)
        self.accounts = SqlAccountRepository(self._session, worker_id, seal)
        self.keys = SqlKeyRepository(self._session)
        self.ssh_keys = SqlSshKeyRepository(self._session)
        self.people = SqlPersonRepository(self._session, seal)
        self.webhooks = SqlWebhookRepository(self._session, seal)
        self.budgets = SqlBudgetRepository(self._session)
        self.rollups = SqlRollupRepository(self._session)
        self.exports = SqlExportRepository(self._session)
        self.prices = SqlPriceRepository(self._session)
        self.retention = SqlRetentionRepository(self._session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Rolls back what was not committed; a cancelled task returns its connection too.

        A rollback that fails changes nothing: the server discards what was not committed, and an earlier
        error is raised instead of this one.
        """
        error = exc_info[1] if isinstance(exc_info[1], BaseException) else None
        task = asyncio.create_task(_give_back(self._session))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        try:
            await asyncio.shield(task)
        except SQLAlchemyError as closing:
            if failure_of(closing) is None and error is None:
                raise
        failure = failure_of(error)
        if failure is not None:
            raise failure from error

    async def commit(self) -> None:
        """Commits. Raises LeadershipLost, without a commit, for the work of a former leader.

        The next leader's epoch waits for this commit, so no commit of an older epoch comes after it.
        """
        if self._epoch is not None:
            epoch = await find_epoch(self._session)
            if epoch != self._epoch:
                raise LeadershipLost(
                    f"this is work of a leader of epoch {self._epoch}; it is epoch {epoch} now"
                )
        await self._session.commit()


async def _give_back(session: TeamSession) -> None:
    """Ends the transaction, and returns the connection even if that fails."""
    try:
        await session.rollback()
    finally:
        await session.close()
