"""Spend: what plans are expected to cost and reservations do cost, never counted twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.access import require_scope, team_filter
from broker.domain.account import Caller, Scope
from broker.domain.errors import FieldProblem, InputError
from broker.domain.focus_columns import FocusRow
from broker.domain.focus_rows import focus_rows
from broker.domain.money import ZERO
from broker.domain.projection_rows import projection_rows
from broker.domain.reservation import Reservation
from broker.domain.spend import GROUPS, Charge, ChargeBasis, CostView, Interval, SpendRow, sum_charges
from broker.domain.window import Window
from broker.ledger import PAGE, find_charges, find_reservations
from broker.ports import Clock, UnitOfWorkFactory


@dataclass(frozen=True, slots=True)
class Projection:
    """Sums by period and group, the same told apart by basis, and their totals: owed already and expected."""

    rows: tuple[SpendRow, ...]
    by_basis: tuple[tuple[ChargeBasis, SpendRow], ...]
    total_usd: Decimal
    actual_usd: Decimal
    projected_usd: Decimal


@dataclass(frozen=True, slots=True)
class RowExport:
    """Rows as of a moment; actual ones are made while they are read, a page a time."""

    as_of: datetime
    rows: AsyncIterator[FocusRow]


class SpendService:
    """Use cases of finance."""

    def __init__(self, uow_factory: UnitOfWorkFactory, clock: Clock) -> None:
        self._uow_factory = uow_factory
        self._clock = clock

    async def projection(
        self,
        caller: Caller,
        window: Window | None = None,
        interval: Interval = Interval.DAY,
        group_by: str = "team",
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
    ) -> Projection:
        """Charges that count in ``window`` (None: all), by period and by one of GROUPS."""
        if group_by not in GROUPS:
            problem = FieldProblem("/group_by", repr(group_by), f"one of {', '.join(GROUPS)}")
            raise InputError("spend", (problem,))
        charges = await self.charges(caller, window, team, view)
        by_basis = [
            (basis, row)
            for basis in ChargeBasis
            for row in sum_charges((c for c in charges if c.basis is basis), interval, group_by, view)
        ]
        by_basis.sort(key=lambda pair: (pair[1].period, pair[1].group, pair[0]))
        return Projection(
            rows=sum_charges(charges, interval, group_by, view),
            by_basis=tuple(by_basis),
            total_usd=_sum(charges),
            actual_usd=_sum(c for c in charges if c.basis is ChargeBasis.ACTUAL),
            projected_usd=_sum(c for c in charges if c.basis is ChargeBasis.PROJECTED),
        )

    def focus(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        as_of: datetime | None = None,
    ) -> RowExport:
        """Actual charges as FOCUS rows whose period begins in ``window`` (None: all).

        ``as_of``: a moment that is past, from an earlier export (None: now); InputError for one that is not.
        """
        require_scope(caller, Scope.SPEND_READ)
        now = self._clock.now()
        if as_of is not None and as_of > now:
            problem = FieldProblem("/as_of", as_of.isoformat(), f"at most {now.isoformat()}")
            raise InputError("spend", (problem,))
        at = as_of or now
        return RowExport(at, self._focus_rows(team_filter(caller, team), window, at))

    async def projection_rows(
        self, caller: Caller, window: Window | None = None, team: str | None = None
    ) -> RowExport:
        """What is expected beyond the actual charges, as rows of a data set of its own."""
        now = self._clock.now()
        return RowExport(now, _each(projection_rows(await self.charges(caller, window, team), now)))

    async def _focus_rows(
        self, team: str | None, window: Window | None, now: datetime
    ) -> AsyncIterator[FocusRow]:
        async with self._uow_factory() as uow:
            install_id = await uow.accounts.install_id()
        async for whole in self._placed_together(team):
            for row in focus_rows(whole, now, install_id):
                start = row["ChargePeriodStart"]
                if window is None or (isinstance(start, datetime) and window.contains(start)):
                    yield row

    async def _placed_together(self, team: str | None) -> AsyncIterator[tuple[Reservation, ...]]:
        """Every reservation, those of a plan together, with no transaction open while they are used."""
        seen: set[str] = set()
        cursor: str | None = None
        while True:
            async with self._uow_factory() as uow:
                page = await uow.reservations.find_page(team, PAGE, cursor)
            for reservation in page.items:
                if reservation.plan_id is None:
                    yield (reservation,)
                elif reservation.plan_id not in seen:
                    seen.add(reservation.plan_id)
                    async with self._uow_factory() as uow:
                        whole = await find_reservations(uow, team, reservation.plan_id)
                    yield whole
            cursor = page.next_cursor
            if cursor is None:
                return

    async def charges(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
    ) -> tuple[Charge, ...]:
        """Every charge that counts in ``window``, oldest first; see ``broker.ledger``."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._uow_factory() as uow:
            return await find_charges(uow, self._clock.now(), team_filter(caller, team), window, view)


def _sum(charges: Iterable[Charge]) -> Decimal:
    return sum((charge.usd for charge in charges), ZERO)


async def _each(rows: Iterable[FocusRow]) -> AsyncIterator[FocusRow]:
    for row in rows:
        yield row
