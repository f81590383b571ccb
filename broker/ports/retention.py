"""Ports of what is kept for a while: removed when it is too old, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.ports.unit_of_work import UnitOfWork


class RetentionRepository(Protocol):
    """Each method removes at most ``limit`` rows of before ``before``; how many went, 0 when none is left."""

    async def forget_answers(self, before: datetime, limit: int) -> int:
        """Answers under idempotency keys: the keys mean nothing any more."""
        ...

    async def forget_deliveries(self, before: datetime, limit: int) -> int:
        """Deliveries to webhooks that are over, by their last try."""
        ...

    async def forget_audit(self, before: datetime, limit: int) -> int:
        """Entries of the audit trail."""
        ...

    async def forget_rounds(self, before: datetime, limit: int) -> int:
        """Rounds of polls and their changes; the newest of each provider stays, and what an offer names."""
        ...


class RetentionUnitOfWork(UnitOfWork, Protocol):
    """A transaction that may remove what is too old."""

    retention: RetentionRepository


RetentionUnits = Callable[[TeamScope], RetentionUnitOfWork]
