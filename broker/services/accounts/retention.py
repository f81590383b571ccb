"""Retention: deletion of old idempotency keys, deliveries, audit entries and poll rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.basics.access import EVERY_TEAM
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory

AT_ONCE = 500
PAUSE_S = 0.01
"""Pause between two transactions, in seconds, so that waiting writers get their turn."""
MOST_A_PASS = 200
"""Transactions per kind of row and pass. The next pass continues."""

Forget = Callable[[UnitOfWork, datetime, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Retention in days, by kind of row. Only finished deliveries are deleted."""

    answers_days: int = 7
    deliveries_days: int = 30
    audit_days: int = 1100
    rounds_days: int = 30


class RetentionService:
    """Deletes what is older than ``rules`` allow, ``at_once`` rows per transaction."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        *,
        rules: RetentionRules | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._units = units
        self._clock = clock
        self._at_once = at_once
        rules = rules or RetentionRules()
        self._kinds: Mapping[str, tuple[int, Forget]] = {
            "answers": (rules.answers_days, lambda unit, *which: unit.retention.forget_answers(*which)),
            "deliveries": (
                rules.deliveries_days,
                lambda unit, *which: unit.retention.forget_deliveries(*which),
            ),
            "audit": (rules.audit_days, lambda unit, *which: unit.retention.forget_audit(*which)),
            "rounds": (rules.rounds_days, lambda unit, *which: unit.retention.forget_rounds(*which)),
        }

    async def prune(self) -> Mapping[str, int]:
        """Deletes old rows in many short transactions, and returns the number of deleted rows by kind."""
        now = self._clock.now()
        return {
            kind: await self._prune(now - timedelta(days=days), forget)
            for kind, (days, forget) in self._kinds.items()
        }

    async def _prune(self, before: datetime, forget: Forget) -> int:
        gone = 0
        for _ in range(MOST_A_PASS):
            async with self._units(EVERY_TEAM) as unit:
                some = await forget(unit, before, self._at_once)
                await unit.commit()
            gone += some
            if some < self._at_once:
                break
            await asyncio.sleep(PAUSE_S)
        return gone
