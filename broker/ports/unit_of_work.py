"""Ports of the clock, offer sources, executors and notifiers, and the name of the unit of work.

A store has one implementation, so its classes are no ports: use cases are typed against them, and get them
from the wiring. Only a type checker imports the store here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from broker.domain.basics.access import TeamScope
from broker.domain.market.offer import OfferBatch

if TYPE_CHECKING:
    from broker.store.unit_of_work import SqlUnitOfWork


class Clock(Protocol):
    """The source of the current time."""

    def now(self) -> datetime:
        """The current time, aware and in UTC."""
        ...


class OfferSource(Protocol):
    """A provider whose offers can be listed."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Everything on sale now. Raises ProviderError; unreadable rows are in ``rejected``."""
        ...


class Executor(Protocol):
    """Where heavy calls run; ``concurrent.futures`` and Dask executors fit."""

    @property
    def workers(self) -> int:
        """How many calls run in parallel; further calls are queued."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules ``fn``, and returns the future of its result.

        If the executor is able to, cancelling the future also ends a running call.
        """
        ...


class Notifier(Protocol):
    """Sends notifications about changes."""

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Queues one event for delivery."""
        ...


UnitOfWork: TypeAlias = "SqlUnitOfWork"
UnitOfWorkFactory = Callable[[TeamScope], UnitOfWork]
"""Opens a transaction for ``scope_of(caller)``, or for EVERY_TEAM."""
