"""Ports of retention: removal of old data, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.ports.unit_of_work import UnitOfWork


class RetentionRepository(Protocol):
    """Each method removes at most ``limit`` rows older than ``before``, and returns their number."""

    async def forget_answers(self, before: datetime, limit: int) -> int:
        """Removes stored answers with their idempotency keys, which are forgotten then."""
        ...

    async def forget_deliveries(self, before: datetime, limit: int) -> int:
        """Removes finished deliveries to webhooks, by the time of their last attempt."""
        ...

    async def forget_audit(self, before: datetime, limit: int) -> int:
        """Removes entries of the audit trail."""
        ...

    async def forget_rounds(self, before: datetime, limit: int) -> int:
        """Removes poll rounds and their changes, except each provider's newest and those that offers name."""
        ...


class RetentionUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of retention."""

    retention: RetentionRepository


RetentionUnits = Callable[[TeamScope], RetentionUnitOfWork]
