"""Spend: what plans are expected to cost and reservations do cost, never counted twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from broker.domain.access import require_scope, team_filter
from broker.domain.account import Caller, Scope
from broker.domain.errors import FieldProblem, InputError
from broker.domain.focus_columns import FocusRow
from broker.domain.focus_corrections import start_of
from broker.domain.money import ZERO
from broker.domain.month_close import ClosedMonth
from broker.domain.projection_rows import projection_rows
from broker.domain.spend import GROUPS, Charge, ChargeBasis, Commitment, CostView, Interval, SpendRow
from broker.domain.window import Window
from broker.finance_ports import RollupUnits
from broker.ledger import find_charges
from broker.month_closing import MonthClosing
from broker.ports import Clock
from broker.summaries import SumKey, Summaries, sum_by_key

MIDNIGHT = time(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Projection:
    """Sums by period and group, the same told apart by basis, and their totals: owed already and expected,
    bound and still open. ``by_key``: every sum. Days before ``closed_until`` are as they were closed."""

    rows: tuple[SpendRow, ...]
    by_basis: tuple[tuple[ChargeBasis, SpendRow], ...]
    total_usd: Decimal
    actual_usd: Decimal
    projected_usd: Decimal
    committed_usd: Decimal
    flexible_usd: Decimal
    by_key: Mapping[SumKey, Decimal]
    closed_until: date | None


@dataclass(frozen=True, slots=True)
class RowExport:
    """Rows as of a moment; actual ones are made while they are read, a page a time."""

    as_of: datetime
    rows: AsyncIterator[FocusRow]


class SpendService:
    """Use cases of finance."""

    def __init__(self, units: RollupUnits, clock: Clock) -> None:
        self._units = units
        self._clock = clock
        self._summaries = Summaries(units, clock)
        self._closing = MonthClosing(units, clock, self._summaries)

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
        require_scope(caller, Scope.SPEND_READ)
        wanted = team_filter(caller, team)
        if window is not None and not _is_whole_days(window):
            return _projection(
                sum_by_key(await self.charges(caller, window, team, view), interval, group_by, view)
            )
        summary = await self._summaries.find(wanted, window, interval, group_by, view)
        return _projection(summary.usd, summary.closed_until)

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
        async for row in self._closing.focus_rows(team, now):
            if window is None or window.contains(start_of(row)):
                yield row

    async def close(self, caller: Caller, month: date, comment: str = "") -> ClosedMonth:
        """Closes a month that is over, for every team; what it comes to differ by later is a correction.

        NotPermitted for who is no administrator of every team; InputError, Conflict.
        """
        require_scope(caller, Scope.SPEND_APPROVE)
        require_scope(caller, Scope.ADMIN)
        return await self._closing.close(month, caller.key_id, comment)

    async def find_closed(self, caller: Caller) -> tuple[ClosedMonth, ...]:
        """Closed months, the first one first."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units() as uow:
            return await uow.rollups.find_closed()

    async def roll_up(self) -> int:
        """Rolls up what is settled, so that sums need not read it again; how many bills."""
        return await self._summaries.refresh()

    async def charges(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
    ) -> tuple[Charge, ...]:
        """Every charge that counts in ``window``, oldest first; see ``broker.ledger``."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units() as uow:
            return await find_charges(uow, self._clock.now(), team_filter(caller, team), window, view)


def _projection(usd: Mapping[SumKey, Decimal], closed_until: date | None = None) -> Projection:
    by_basis: defaultdict[tuple[datetime, str, ChargeBasis], Decimal] = defaultdict(Decimal)
    both: defaultdict[tuple[datetime, str], Decimal] = defaultdict(Decimal)
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    for key, amount in usd.items():
        by_basis[key.period, key.group, key.basis] += amount
        both[key.period, key.group] += amount
        totals[key.basis] += amount
        totals[key.commitment] += amount
    return Projection(
        rows=tuple(SpendRow(period, group, amount) for (period, group), amount in sorted(both.items())),
        by_basis=tuple(
            (basis, SpendRow(period, group, amount))
            for (period, group, basis), amount in sorted(by_basis.items())
        ),
        total_usd=sum(usd.values(), ZERO),
        actual_usd=totals[ChargeBasis.ACTUAL],
        projected_usd=totals[ChargeBasis.PROJECTED],
        committed_usd=totals[Commitment.COMMITTED],
        flexible_usd=totals[Commitment.FLEXIBLE],
        by_key=usd,
        closed_until=closed_until,
    )


def _is_whole_days(window: Window) -> bool:
    return all(edge.timetz() == MIDNIGHT for edge in (window.start, window.end))


async def _each(rows: Iterable[FocusRow]) -> AsyncIterator[FocusRow]:
    for row in rows:
        yield row
