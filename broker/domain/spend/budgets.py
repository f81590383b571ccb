"""Budgets: what a team may spend in a period, how much is used, and alerts at thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import accumulate

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import CENT, ZERO, usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.spend.spend import Charge, ChargeBasis, Interval, next_period, period_of

DEFAULT_THRESHOLDS = (50, 80, 100)
WHOLE = 100
MOST_THRESHOLDS = 10
MOST_PERCENT = 1000
MONTHS_PER_QUARTER = 3
LARGEST_USD = Decimal(1_000_000_000_000)


class BudgetPeriod(StrEnum):
    """Period of a budget: each UTC month or quarter, or one span of time (``horizon``)."""

    MONTH = "month"
    QUARTER = "quarter"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class Budget:
    """What ``team`` may spend in each ``period``. A team has at most one budget per kind of period.

    ALL_TEAMS stands for all teams together. ``thresholds`` are whole percents in ascending order. ``horizon``
    is the span of a horizon budget, else None.
    """

    team: str
    period: BudgetPeriod
    limit_usd: Decimal
    thresholds: tuple[int, ...]
    horizon: Window | None
    set_by: str
    set_at: datetime

    @property
    def budget_id(self) -> str:
        """The name of the budget in the audit trail."""
        return f"{self.team}/{self.period}"

    def amount_usd(self, percent: int) -> Decimal:
        """The amount in USD at a threshold of ``percent``."""
        return self.limit_usd * percent / WHOLE

    def window_at(self, now: datetime) -> Window:
        """The period that contains ``now``; a horizon budget always has its own span."""
        if self.horizon is not None:
            return self.horizon
        month = period_of(now, Interval.MONTH)
        if self.period is BudgetPeriod.MONTH:
            return Window(month, next_period(month, Interval.MONTH))
        end = start = month.replace(month=3 * ((month.month - 1) // 3) + 1)
        for _ in range(MONTHS_PER_QUARTER):
            end = next_period(end, Interval.MONTH)
        return Window(start, end)


def require_valid(budget: Budget) -> None:
    """Raises InputError with every invalid field of ``budget``."""
    problems = []
    if not ZERO < budget.limit_usd <= LARGEST_USD or budget.limit_usd % CENT:
        expected = f"whole cents above 0 and at most {LARGEST_USD}"
        problems.append(FieldProblem("/limit_usd", str(budget.limit_usd), expected))
    rising = list(budget.thresholds) == sorted(set(budget.thresholds))
    sane = all(0 < percent <= MOST_PERCENT for percent in budget.thresholds)
    if not (rising and sane and 0 < len(budget.thresholds) <= MOST_THRESHOLDS):
        expected = f"1 to {MOST_THRESHOLDS} percents in ascending order, each from 1 to {MOST_PERCENT}"
        problems.append(FieldProblem("/thresholds", repr(list(budget.thresholds)), expected))
    if (budget.horizon is None) == (budget.period is BudgetPeriod.HORIZON):
        found = "nothing" if budget.horizon is None else budget.horizon.start.isoformat()
        expected = "from and to for a horizon budget, and neither for a monthly or quarterly one"
        problems.append(FieldProblem("/from", found, expected))
    if problems:
        raise InputError("budget", tuple(problems))


@dataclass(frozen=True, slots=True)
class ThresholdStatus:
    """State of one threshold.

    ``reached_on`` is the day on which the accrued cost reached it (None: not yet). ``expected_on`` is the day
    on which accrued and expected cost reach it (None: not in this period).
    """

    percent: int
    usd: Decimal
    reached_on: datetime | None
    expected_on: datetime | None


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Status of a budget in one period: accrued cost, further reserved cost, and further planned cost.

    ``until_released_usd`` is the part of the reserved cost that comes from leases without an end, if nobody
    releases them in the period. ``runs_out_on`` is the UTC day on which the sum exceeds the limit (None: not
    in this period).
    """

    budget: Budget
    window: Window
    owed_usd: Decimal
    reserved_usd: Decimal
    planned_usd: Decimal
    until_released_usd: Decimal
    runs_out_on: datetime | None
    thresholds: tuple[ThresholdStatus, ...]

    @property
    def expected_usd(self) -> Decimal:
        """The expected cost of the whole period: accrued, reserved and planned."""
        return self.owed_usd + self.reserved_usd + self.planned_usd

    @property
    def left_usd(self) -> Decimal:
        """The limit minus the expected cost; negative if the budget is exceeded."""
        return self.budget.limit_usd - self.expected_usd

    @property
    def used_share(self) -> float:
        """The accrued cost as a share of the limit."""
        return float(self.owed_usd / self.budget.limit_usd)

    @property
    def expected_share(self) -> float:
        """The expected cost as a share of the limit."""
        return float(self.expected_usd / self.budget.limit_usd)


@dataclass(frozen=True, slots=True)
class BudgetEffect:
    """What a plan does to a budget: ``before`` is the status without what the plan adds, ``after`` with it.

    The arithmetic is one rule: limit − counted − added = left.
    """

    before: BudgetStatus
    after: BudgetStatus

    @property
    def period(self) -> BudgetPeriod:
        """The period of the budget."""
        return self.after.budget.period

    @property
    def limit_usd(self) -> Decimal:
        """The limit of the budget."""
        return self.after.budget.limit_usd

    @property
    def counted_usd(self) -> Decimal:
        """What counts in the period without the plan: spent, committed and planned."""
        return self.before.expected_usd

    @property
    def added_usd(self) -> Decimal:
        """What the plan adds in the period; negative if it saves."""
        return self.after.expected_usd - self.before.expected_usd

    @property
    def left_usd(self) -> Decimal:
        """What is left then; negative if the budget is exceeded."""
        return self.after.left_usd

    def __str__(self) -> str:
        return self.told_of("this plan")

    def told_of(self, adds: str) -> str:
        """The arithmetic in a sentence; ``adds`` names what adds to the budget, such as ``this order``."""
        budget, window = self.after.budget, self.after.window
        whose = f"team {budget.team}"
        limit = f"budget of {usd_words(budget.limit_usd)} per {budget.period}"
        last = window.end - timedelta(microseconds=1)
        end = f"({window.start:%Y-%m-%d} to {last:%Y-%m-%d})"
        parts = (
            f"{usd_words(self.counted_usd)} counts already, "
            f"and {adds} adds {usd_words(self.added_usd)} in that time"
        )
        if self.left_usd < 0:
            return f"{whose} would exceed its {limit} by {usd_words(-self.left_usd)} {end}: {parts}"
        return f"{whose} would have {usd_words(self.left_usd)} left of its {limit} {end}: {parts}"


def furthest_end(budgets: Iterable[Budget], now: datetime) -> datetime | None:
    """The latest end of the current periods of ``budgets``; None without budgets."""
    return max((budget.window_at(now).end for budget in budgets), default=None)


def budget_status(budget: Budget, charges: Iterable[Charge], now: datetime) -> BudgetStatus:
    """The status of ``budget``. ``charges`` of other teams and periods are ignored."""
    window = budget.window_at(now)
    mine = [c for c in charges if budget.team in (ALL_TEAMS, c.team) and window.contains(c.window.start)]
    owed, reserved, planned = _parted(mine)
    owed_days, days = _by_day(owed), _by_day(mine)
    thresholds = tuple(
        ThresholdStatus(
            percent,
            budget.amount_usd(percent),
            reached_on=_day_of(owed_days, budget.amount_usd(percent)),
            expected_on=_day_of(days, budget.amount_usd(percent)),
        )
        for percent in budget.thresholds
    )
    return BudgetStatus(
        budget=budget,
        window=window,
        owed_usd=_sum(owed),
        reserved_usd=_sum(reserved),
        planned_usd=_sum(planned),
        until_released_usd=_sum(charge for charge in reserved if charge.is_open_ended),
        runs_out_on=_day_of(days, budget.limit_usd + CENT),
        thresholds=thresholds,
    )


def _parted(charges: Iterable[Charge]) -> tuple[list[Charge], list[Charge], list[Charge]]:
    """``charges`` as accrued, reserved and planned ones."""
    owed: list[Charge] = []
    reserved: list[Charge] = []
    planned: list[Charge] = []
    for charge in charges:
        if charge.basis is ChargeBasis.ACTUAL:
            owed.append(charge)
        else:
            (planned if charge.reservation_id is None else reserved).append(charge)
    return owed, reserved, planned


@dataclass(frozen=True, slots=True)
class BudgetAlert:
    """A threshold that the accrued cost reached, or a limit that the expected cost exceeds."""

    budget: Budget
    window: Window
    percent: int
    basis: ChargeBasis
    usd: Decimal

    def __str__(self) -> str:
        how = "spent" if self.basis is ChargeBasis.ACTUAL else "expected"
        until = f"{self.window.start:%Y-%m-%d} to {self.window.end:%Y-%m-%d}"
        limit = usd_words(self.budget.limit_usd)
        return f"{self.percent} % of {limit} for {until}: {usd_words(self.usd)} {how}"


def alerts(found: BudgetStatus) -> tuple[BudgetAlert, ...]:
    """Alerts for every threshold that the accrued cost reached, and for an expected cost above 100 %."""
    budget, window = found.budget, found.window
    past = [
        BudgetAlert(budget, window, one.percent, ChargeBasis.ACTUAL, found.owed_usd)
        for one in found.thresholds
        if found.owed_usd >= one.usd
    ]
    if found.expected_usd > budget.limit_usd:
        past.append(BudgetAlert(budget, window, WHOLE, ChargeBasis.PROJECTED, found.expected_usd))
    return tuple(past)


def _by_day(charges: Iterable[Charge]) -> tuple[tuple[datetime, Decimal], ...]:
    """The running total of ``charges`` at the end of each UTC day that has a charge."""
    by_day: defaultdict[date, Decimal] = defaultdict(lambda: ZERO)
    for charge in charges:
        by_day[charge.window.start.date()] += charge.usd
    totals = accumulate(by_day[day] for day in sorted(by_day))
    return tuple(
        (datetime.combine(day, time(), UTC), total) for day, total in zip(sorted(by_day), totals, strict=True)
    )


def _day_of(days: Iterable[tuple[datetime, Decimal]], usd: Decimal) -> datetime | None:
    """The first day from whose end on the running total stays at or above ``usd``."""
    found = None
    for day, total in days:
        if total < usd:
            found = None
        elif found is None:
            found = day
    return found


def _sum(charges: Iterable[Charge]) -> Decimal:
    return sum((charge.usd for charge in charges), ZERO)
