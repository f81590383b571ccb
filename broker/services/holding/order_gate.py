"""Checks before orders are stored: from which sellers is ordered, and the spending caps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time

from broker.domain.holding.order_rules import OrderRules
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.spending_caps import SpendingCaps, require_within_caps
from broker.ports.planning import RequestReader
from broker.ports.unit_of_work import UnitOfWork


class OrderGate:
    """Holds orders to ``rules`` and ``caps``.

    ``read_request`` reads a plan's document, whose policy says whether it may mix sandbox and real sellers.
    If it is None, every plan may.
    """

    def __init__(
        self,
        rules: OrderRules | None = None,
        caps: SpendingCaps | None = None,
        read_request: RequestReader | None = None,
    ) -> None:
        self.rules = rules or OrderRules()
        self.caps = caps or SpendingCaps()
        self._read_request = read_request

    async def require_allowed(self, uow: UnitOfWork, providers: Iterable[str], plan_id: str | None) -> None:
        """Raises OrdersBarred for sellers from which nothing is ordered, or not in one plan."""
        wanted = set(providers)
        self.rules.require_allowed(wanted)
        if plan_id is None or self._read_request is None:
            return
        record = await uow.plans.find(plan_id)
        placed = {one.provider for one in record.plan.placements} if record.plan is not None else set()
        if len({self.rules.mode_of(name) for name in wanted | placed}) > 1:
            mixes = self._read_request(record.document).policy.mix_sandbox
            self.rules.require_unmixed(wanted | placed, mix_sandbox=mixes)

    async def require_extension(
        self, uow: UnitOfWork, row: Reservation, end: datetime, now: datetime
    ) -> None:
        """Raises OrdersBarred or OverCap if ``row`` may not be held until ``end``: an extension commits money
        as an order does."""
        self.rules.require_allowed({row.offer.provider})
        await self.require_within_caps(uow, (replace(row, end=end),), now)

    async def take_turn(self, uow: UnitOfWork) -> None:
        """Takes the lock of orders until the transaction ends, if there are caps."""
        if self.caps.are_set:
            await uow.reservations.take_turn()

    async def require_within_caps(
        self, uow: UnitOfWork, wanted: Sequence[Reservation], now: datetime
    ) -> None:
        """Raises OverCap if ``wanted``, reservations of one team, would exceed a cap. Takes the turn."""
        if self.caps.are_set and wanted:
            await self.take_turn(uow)
            today = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
            require_within_caps(self.caps, wanted, await uow.reservations.find_spending(today), now)
