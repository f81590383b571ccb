"""Ports of finance: budgets, spend by day, closed months, futures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple, Protocol, TypeVar

from broker.domain.basics.access import TeamScope
from broker.domain.basics.export_jobs import ExportJob
from broker.domain.focus.columns import FocusRow
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.domain.spend.intervals import IntervalRules, RiskLine, Simulated
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend_cells import Amounts, CellKey, Cells
from broker.ports.prices import PriceUnitOfWork
from broker.ports.unit_of_work import UnitOfWork


class BudgetRepository(Protocol):
    """Budgets, and which of their thresholds were told."""

    async def put(self, budget: Budget) -> None:
        """Stores one, over the one of the same team and period."""
        ...

    async def find(self, team: str, period: BudgetPeriod) -> Budget:
        """One; NotFound."""
        ...

    async def find_all(self, team: str | None) -> tuple[Budget, ...]:
        """Those of ``team`` (None: all that there are), by team and period."""
        ...

    async def remove(self, team: str, period: BudgetPeriod) -> None:
        """Forgets one, with what was told of it."""
        ...

    async def tell(self, alert: BudgetAlert) -> bool:
        """Notes that an alert is told, in this transaction; False where it was told before in its period."""
        ...

    async def take_back(self, alert: BudgetAlert) -> None:
        """Forgets that an alert was told, so that it may be once more."""
        ...


class DaySum(NamedTuple):
    """Settled spend of a day and group, in whole cents: spread over use, and when it is paid."""

    day: date
    group: str
    cents: int
    cash_cents: int


class LedgerMark(NamedTuple):
    """Differs after every write that spend depends on: how often the roll-up was written; how many
    reservations it does not have, and the sum of their versions; the same of plans."""

    generation: int
    unsettled: tuple[int, int]
    plans: tuple[int, int]


class FocusCosts(NamedTuple):
    """Sums of FOCUS rows, in whole cents."""

    billed_cents: int
    effective_cents: int


class RollupRepository(Protocol):
    """Settled bills summed by day, and closed months.

    A bill is a plan, or a reservation without one. ``cells``: see ``broker.domain.spend.spend_cells``.
    """

    async def find_generation(self) -> int:
        """How often the roll-up was written: what is read between two equal ones belongs together."""
        ...

    async def find_mark(self) -> LedgerMark:
        """What is the same for as long as nothing is written."""
        ...

    async def find_open_bills(self) -> frozenset[str]:
        """Bills with a reservation that is not rolled up as it stands."""
        ...

    async def find_stored(self, bill_ids: Collection[str]) -> Mapping[str, Cells]:
        """What is rolled up of some bills."""
        ...

    async def find_sums(
        self,
        days: tuple[date, date] | None,
        group_by: str,
        narrowed: Mapping[str, str] = ...,
    ) -> tuple[DaySum, ...]:
        """Rolled-up spend by day and group, from the first of ``days`` to before the last (None: all), of
        cells that have every word of ``narrowed`` (see NARROWED_BY)."""
        ...

    async def find_cells(self, days: tuple[date, date] | None) -> Mapping[CellKey, Amounts]:
        """Rolled-up spend of all ``days`` together, by cell; a correction apart from what it corrects."""
        ...

    async def find_first_day(self) -> date | None:
        """The first day with rolled-up spend."""
        ...

    async def put(self, bill_id: str, team: str, old: Cells, new: Cells) -> None:
        """Stores ``new`` as what is rolled up of a bill, of which ``old`` was; sums follow."""
        ...

    async def settle(self, reservations: Iterable[Reservation]) -> bool:
        """Notes that a bill is rolled up whole; False when one of its reservations was written since."""
        ...

    async def next_generation(self) -> None:
        """Tells readers that something was written, with this transaction."""
        ...

    async def find_closed(self) -> tuple[ClosedMonth, ...]:
        """Closed months, the first one first."""
        ...

    async def add_closed(self, month: ClosedMonth) -> None:
        """Stores a closed month; Conflict when it is closed already."""
        ...

    async def add_closed_rows(self, month: date, ordinal: int, team: str, rows: Sequence[FocusRow]) -> None:
        """Stores FOCUS rows of a closed month, all of one team."""
        ...

    async def find_closed_parts(self, month: date) -> tuple[int, ...]:
        """Numbers of the parts that the rows of a closed month are stored in."""
        ...

    async def find_closed_rows(self, month: date, ordinal: int) -> tuple[FocusRow, ...]:
        """FOCUS rows of one part of a closed month, as they were; NotFound."""
        ...

    async def add_closed_costs(self, month: date, costs: Mapping[str, FocusCosts]) -> None:
        """Stores what the FOCUS rows of a month sum to, by reservation."""
        ...

    async def find_closed_costs(
        self, months: Sequence[date], reservation_ids: Collection[str]
    ) -> Mapping[str, FocusCosts]:
        """What FOCUS rows of closed months sum to, by reservation."""
        ...


class ExportRepository(Protocol):
    """Files of spend that were asked for."""

    async def add(self, job: ExportJob) -> bool:
        """Stores a job that begins; False where one of its id is there."""
        ...

    async def finish(self, job: ExportJob, content: bytes | None) -> None:
        """Stores how a job ended, with its file."""
        ...

    async def find(self, export_id: str) -> ExportJob:
        """One; NotFound."""
        ...

    async def find_content(self, export_id: str) -> bytes:
        """The file of a job that is done; NotFound."""
        ...

    async def forget(self, before: datetime) -> None:
        """Deletes what began before."""
        ...


Drawn = TypeVar("Drawn")
"""USD by future and day, in the simulator's own form."""


class SpendSimulator(Protocol[Drawn]):
    """Draws futures of projected money. Pure: equal seeds give equal answers."""

    def simulate(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        periods: Sequence[int],
        rules: IntervalRules,
        seed: int,
    ) -> Simulated:
        """Quantiles of what ``lines`` come to, in USD.

        ``futures``: by offer, prices as factors of today's after 0, 1, … days, one row a future; an offer
        without any keeps its price. ``periods``: for each day from today on the number of its period (from 0
        on), -1 for a day that is not asked for.
        """
        ...

    def draw(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        days: int,
        rules: IntervalRules,
        seed: int,
    ) -> Drawn:
        """What ``lines`` come to in each future, on each of ``days`` from today on."""
        ...

    def summarise(self, drawn: Sequence[Drawn], periods: Sequence[int]) -> Simulated:
        """Quantiles of what was drawn of several lines, together; ``periods`` as above."""
        ...


class RollupUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches spend by day."""

    rollups: RollupRepository


RollupUnits = Callable[[TeamScope], RollupUnitOfWork]


class ExportUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches exported files."""

    exports: ExportRepository


ExportUnits = Callable[[TeamScope], ExportUnitOfWork]


class FinanceUnitOfWork(PriceUnitOfWork, Protocol):
    """A transaction that reaches what finance keeps, and the history of prices."""

    budgets: BudgetRepository
    rollups: RollupRepository


FinanceUnits = Callable[[TeamScope], FinanceUnitOfWork]
