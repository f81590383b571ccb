"""Ports of finance: budgets, settled spend by day, closed months, exports, and simulation."""

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
from broker.domain.spend.unit_costs import DayWork
from broker.ports.prices import PriceUnitOfWork
from broker.ports.unit_of_work import UnitOfWork


class BudgetRepository(Protocol):
    """Budgets, and the alerts that were sent."""

    async def put(self, budget: Budget) -> None:
        """Stores a budget; it replaces the one of the same team and period."""
        ...

    async def find(self, team: str, period: BudgetPeriod) -> Budget:
        """One budget. Raises NotFound."""
        ...

    async def find_all(self) -> tuple[Budget, ...]:
        """All that there are, by team and period."""
        ...

    async def remove(self, team: str, period: BudgetPeriod) -> None:
        """Deletes a budget and the record of its alerts."""
        ...

    async def tell(self, alert: BudgetAlert) -> bool:
        """Records that an alert is sent with this transaction; False if it was sent before in its period."""
        ...

    async def take_back(self, alert: BudgetAlert) -> None:
        """Deletes the record of an alert, so that it may be sent again."""
        ...


class DaySum(NamedTuple):
    """Settled spend of a day and group in whole cents: amortized, and as billed (cash)."""

    day: date
    group: str
    cents: int
    cash_cents: int


class LedgerMark(NamedTuple):
    """A version of the ledger that changes with every write on which spend depends.

    ``generation`` counts writes of the roll-up. ``unsettled`` is the number of reservations that are not
    rolled up and the sum of their versions; ``plans`` is the same for plans.
    """

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
        """The number of writes of the roll-up. Data read between two equal generations is consistent."""
        ...

    async def find_mark(self) -> LedgerMark:
        """What is the same for as long as nothing is written."""
        ...

    async def find_open_bills(self) -> frozenset[str]:
        """Bills with a reservation that is not rolled up as it stands."""
        ...

    async def find_stored(self, bill_ids: Collection[str]) -> Mapping[str, Cells]:
        """The rolled-up cells of some bills."""
        ...

    async def find_sums(
        self,
        days: tuple[date, date] | None,
        group_by: str,
        narrowed: Mapping[str, str] = ...,
    ) -> tuple[DaySum, ...]:
        """Rolled-up spend by day and group, of cells with all values in ``narrowed`` (see NARROWED_BY).

        ``days`` are the first day and the day after the last one (None: all days).
        """
        ...

    async def find_cells(self, days: tuple[date, date] | None) -> Mapping[CellKey, Amounts]:
        """Rolled-up spend of all ``days`` together, by cell; a correction apart from what it corrects."""
        ...

    async def find_first_day(self) -> date | None:
        """The first day with rolled-up spend."""
        ...

    async def put(self, bill_id: str, team: str, old: Cells, new: Cells) -> None:
        """Replaces the rolled-up cells ``old`` of a bill by ``new``, and updates the sums."""
        ...

    async def settle(self, reservations: Iterable[Reservation]) -> bool:
        """Marks the reservations of a bill as rolled up; False if one of them was changed meanwhile."""
        ...

    async def next_generation(self) -> None:
        """Increments the generation in this transaction."""
        ...

    async def find_closed(self) -> tuple[ClosedMonth, ...]:
        """Closed months, oldest first."""
        ...

    async def add_closed(self, month: ClosedMonth) -> None:
        """Stores a closed month. Raises Conflict if it is already closed."""
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
        """Stores the sums of a month's FOCUS rows by reservation."""
        ...

    async def find_closed_costs(
        self, months: Sequence[date], reservation_ids: Collection[str]
    ) -> Mapping[str, FocusCosts]:
        """Sums of the FOCUS rows of closed months, by reservation."""
        ...

    async def add_closed_work(self, month: date, work: Iterable[DayWork]) -> None:
        """Stores the work of plans in a month that is being closed."""
        ...

    async def find_months_with_work(self) -> tuple[date, ...]:
        """Closed months whose work is stored, oldest first."""
        ...

    async def find_closed_work(self, days: tuple[date, date] | None) -> tuple[DayWork, ...]:
        """The stored work of some days (None: all)."""
        ...


class ExportRepository(Protocol):
    """Export jobs and their files."""

    async def add(self, job: ExportJob) -> bool:
        """Stores a new job; False if a job with its id exists."""
        ...

    async def finish(self, job: ExportJob, content: bytes | None) -> None:
        """Stores the result of a job, with its file."""
        ...

    async def find(self, export_id: str) -> ExportJob:
        """One job. Raises NotFound."""
        ...

    async def find_content(self, export_id: str) -> bytes:
        """The file of a finished job. Raises NotFound."""
        ...

    async def forget(self, before: datetime) -> None:
        """Deletes jobs that began before ``before``."""
        ...


Drawn = TypeVar("Drawn")
"""Cost in USD by simulated path and day, in the simulator's own form."""


class SpendSimulator(Protocol[Drawn]):
    """Simulates projected spend. Pure: equal seeds give equal results."""

    def simulate(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        periods: Sequence[int],
        rules: IntervalRules,
        seed: int,
    ) -> Simulated:
        """Quantiles of the cost of ``lines``, in USD.

        ``futures`` are simulated price paths by offer: factors of today's price after 0, 1, … days. An offer
        without paths keeps its price. ``periods`` has for each day from today on the index of its period; -1
        excludes a day.
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
        """Cost of ``lines`` in each simulated path on each of ``days`` days from today on."""
        ...

    def summarise(self, drawn: Sequence[Drawn], periods: Sequence[int]) -> Simulated:
        """Quantiles of the sum of several draws; ``periods`` as in ``simulate``."""
        ...


class RollupUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of settled spend."""

    rollups: RollupRepository


RollupUnits = Callable[[TeamScope], RollupUnitOfWork]


class ExportUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of exports."""

    exports: ExportRepository


ExportUnits = Callable[[TeamScope], ExportUnitOfWork]


class FinanceUnitOfWork(PriceUnitOfWork, Protocol):
    """A unit of work with budgets, settled spend and price history."""

    budgets: BudgetRepository
    rollups: RollupRepository


FinanceUnits = Callable[[TeamScope], FinanceUnitOfWork]
