"""Spend: projected charges of plans and actual charges of reservations, each counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType

from broker.domain.basics.access import TeamScope, require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError, NotPermitted
from broker.domain.basics.money import CENT, ZERO
from broker.domain.basics.window import Window, instant_words
from broker.domain.focus.columns import FocusRow, row_filter
from broker.domain.focus.corrections import start_of
from broker.domain.focus.projection_rows import projection_rows
from broker.domain.reconciling.orphaned_leases import OrphanedLeases, orphaned_leases
from broker.domain.spend.month_close import ClosedMonth, MonthClose, month_window
from broker.domain.spend.spend import (
    GROUPS,
    NARROWED_BY,
    Charge,
    ChargeBasis,
    Commitment,
    CostView,
    Interval,
    SpendRow,
)
from broker.ports.planning import RequestReader
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.ledger import find_charges
from broker.services.spend.month_closing import MonthClosing
from broker.services.spend.settled_spend import SumKey, SumQuestion
from broker.services.spend.summaries import Summaries, is_whole_days

EVERYTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Projection:
    """Sums by period, group, basis and commitment at ``as_of``.

    Days before ``closed_until`` have the figures with which their month was closed.
    """

    by_key: Mapping[SumKey, Decimal]
    closed_until: date | None
    as_of: datetime

    @property
    def rows(self) -> tuple[SpendRow, ...]:
        """Sums by period and group, in that order."""
        sums: defaultdict[tuple[datetime, str], Decimal] = defaultdict(Decimal)
        for key, usd in self.by_key.items():
            sums[key.period, key.group] += usd
        return tuple(SpendRow(period, group, usd) for (period, group), usd in sorted(sums.items()))

    @property
    def by_basis(self) -> tuple[tuple[ChargeBasis, SpendRow], ...]:
        """Sums by basis, period and group."""
        found: list[tuple[ChargeBasis, SpendRow]] = []
        last: tuple[datetime, str, ChargeBasis] | None = None
        for key, usd in sorted(self.by_key.items()):
            open_ended_usd = usd if key.commitment is Commitment.UNTIL_RELEASED else ZERO
            intended_usd = usd if key.commitment is Commitment.INTENDED else ZERO
            if key[:3] == last:
                before = found.pop()[1]
                usd += before.usd
                open_ended_usd += before.until_released_usd
                intended_usd += before.intended_usd
            last = key[:3]
            found.append((key.basis, SpendRow(key.period, key.group, usd, open_ended_usd, intended_usd)))
        return tuple(found)

    @property
    def total_usd(self) -> Decimal:
        """Total spend in USD."""
        return sum(self.by_key.values(), ZERO)

    @property
    def actual_usd(self) -> Decimal:
        """Actual charges in USD."""
        return sum((usd for key, usd in self.by_key.items() if key.basis is ChargeBasis.ACTUAL), ZERO)

    @property
    def committed_usd(self) -> Decimal:
        """Committed spend in USD."""
        return self._of(Commitment.COMMITTED)

    @property
    def flexible_usd(self) -> Decimal:
        """Flexible spend in USD."""
        return self.total_usd - self.committed_usd

    @property
    def until_released_usd(self) -> Decimal:
        """The part in USD that leases without an end cost until the end of the period."""
        return self._of(Commitment.UNTIL_RELEASED)

    @property
    def intended_usd(self) -> Decimal:
        """The part in USD of drafts that somebody intends to buy."""
        return self._of(Commitment.INTENDED)

    def _of(self, commitment: Commitment) -> Decimal:
        return sum((usd for key, usd in self.by_key.items() if key.commitment is commitment), ZERO)


@dataclass(frozen=True, slots=True)
class RowExport:
    """Rows as of a time. Rows of actual charges are read from the database page by page."""

    as_of: datetime
    rows: AsyncIterator[FocusRow]


class SpendService:
    """Use cases of spend. ``read_request``: see ``MonthClosing``."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        summaries: Summaries | None = None,
        *,
        read_request: RequestReader | None = None,
    ) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries or Summaries(units, clock)
        self._closing = MonthClosing(units, clock, read_request)

    async def projection(
        self,
        caller: Caller,
        window: Window | None = None,
        interval: Interval = Interval.DAY,
        group_by: str = "team",
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
        *,
        narrowed: Mapping[str, str] = EVERYTHING,
    ) -> Projection:
        """Sums of the charges in ``window`` (None: all), by period and by one of GROUPS.

        Leases without an end are projected to the end of ``window`` (None: of the month). ``narrowed``: only
        charges with these values, by names of NARROWED_BY. A day of a closed month counts as a whole if
        ``window`` contains its midnight, and else not at all.
        """
        _require_known(group_by, narrowed)
        require_scope(caller, Scope.SPEND_READ)
        question = SumQuestion(
            scope_of(caller, team), None, interval, group_by, view, tuple(sorted(narrowed.items()))
        )
        if window is None or is_whole_days(window):
            summary = await self._summaries.find(question, window)
        else:
            summary = await self._summaries.find_cut(question, window)
        return Projection(summary.usd, summary.closed_until, summary.at)

    def focus(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        as_of: datetime | None = None,
        *,
        narrowed: Mapping[str, str] = EVERYTHING,
    ) -> RowExport:
        """Actual charges as FOCUS rows whose charge period begins in ``window`` (None: all).

        ``as_of`` repeats an earlier export (None: now). Raises InputError if it is in the future, and for a
        filter in ``narrowed`` that FOCUS rows cannot answer.
        """
        has_words = row_filter(narrowed)
        require_scope(caller, Scope.SPEND_READ)
        now = self._clock.now()
        if as_of is not None and as_of > now:
            problem = FieldProblem("/as_of", instant_words(as_of), f"at most {instant_words(now)}")
            raise InputError("spend", (problem,))
        at = as_of or now
        rows = self._focus_rows(scope_of(caller, team), window, at)
        return RowExport(at, rows if not narrowed else _those(rows, has_words))

    async def projection_rows(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        *,
        narrowed: Mapping[str, str] = EVERYTHING,
    ) -> RowExport:
        """Projected charges as rows of a separate data set, oldest first."""
        require_scope(caller, Scope.SPEND_READ)
        found = await self._summaries.find_expected(scope_of(caller, team), window, narrowed)
        return RowExport(found.at, _each(projection_rows(found.charges, found.at)))

    async def _focus_rows(
        self, scope: TeamScope, window: Window | None, now: datetime
    ) -> AsyncIterator[FocusRow]:
        async for row in self._closing.focus_rows(scope, now, window):
            if window is None or window.contains(start_of(row)):
                yield row

    async def close(self, caller: Caller, month: date, comment: str = "") -> MonthClose:
        """Closes a past month for all teams; later changes of it are reported as corrections.

        Raises NotPermitted for a caller of one team, InputError and Conflict.
        """
        require_scope(caller, Scope.SPEND_APPROVE)
        if not caller.sees_every_team:
            raise NotPermitted(
                f"key {caller.key_id} is of team {caller.team}, and a month is closed for all teams: use a "
                "key of all teams (broker keys --new NAME --team '*')"
            )
        return await self._closing.close(month, caller.key_id, comment)

    async def find_closed(self, caller: Caller) -> tuple[ClosedMonth, ...]:
        """Closed months, oldest first; for a caller of one team, each with the cost of that team alone."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            closed = await uow.rollups.find_closed()
            if caller.sees_every_team:
                return closed
            return tuple([await _of_one_team(uow, month) for month in closed])

    async def find_orphaned(self, caller: Caller) -> tuple[OrphanedLeases, ...]:
        """Orphaned leases without a team, by provider; empty if the caller may not see them."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            rows = await uow.reservations.find_open()
        return orphaned_leases(rows, self._clock.now())

    async def roll_up(self) -> int:
        """Rolls up settled bills, so that sums do not read them again. Returns the number of bills."""
        return await self._summaries.refresh()

    async def charges(
        self,
        caller: Caller,
        window: Window | None = None,
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
    ) -> tuple[Charge, ...]:
        """Charges that count in ``window``, oldest first; see ``ledger.find_charges``."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller, team)) as uow:
            return await find_charges(uow, self._clock.now(), window, view)


def _require_known(group_by: str, narrowed: Mapping[str, str]) -> None:
    if group_by not in GROUPS:
        problem = FieldProblem("/group_by", repr(group_by), f"one of {', '.join(GROUPS)}")
        raise InputError("spend", (problem,))
    for name in narrowed:
        if name not in NARROWED_BY:
            raise InputError("spend", (FieldProblem("/", repr(name), f"one of {', '.join(NARROWED_BY)}"),))


async def _those(rows: AsyncIterator[FocusRow], asked: Callable[[FocusRow], bool]) -> AsyncIterator[FocusRow]:
    async for row in rows:
        if asked(row):
            yield row


async def _each(rows: Iterable[FocusRow]) -> AsyncIterator[FocusRow]:
    for row in rows:
        yield row


async def _of_one_team(uow: UnitOfWork, month: ClosedMonth) -> ClosedMonth:
    """``month`` with the cost of the one team that ``uow`` sees; its rows are those of all teams."""
    sums = await uow.rollups.find_sums((month.month, month_window(month.month).end.date()), "team")
    return replace(month, usd=sum(row.cents for row in sums) * CENT, rows=None)
