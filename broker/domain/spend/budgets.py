"""Budgets: what a team may spend in a period, how much is used, and alerts at thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from itertools import accumulate

from broker.domain.basics.confidence import MEDIAN
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import CENT, LARGEST_USD, ZERO, usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window, instant_words
from broker.domain.spend.spend import Charge, ChargeBasis, Interval, next_period, period_of

DEFAULT_THRESHOLDS = (50, 80, 100)
WHOLE = 100
MOST_THRESHOLDS = 10
MOST_PERCENT = 1000
MOST_CONFIDENCE = 0.99
MONTHS_PER_QUARTER = 3


class BudgetPeriod(StrEnum):
    """Period of a budget: each UTC month or quarter, or one span of time (``horizon``)."""

    MONTH = "month"
    QUARTER = "quarter"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class Budget:
    """What ``team`` may spend in each ``period``. A team has at most one budget per kind of period.

    ALL_TEAMS stands for all teams together. ``thresholds`` are whole percents in ascending order. ``horizon``
    is the span of a horizon budget, else None. With ``confidence``, plans count with what is paid for them at
    most with that chance (None: with what they hold).
    """

    team: str
    period: BudgetPeriod
    limit_usd: Decimal
    thresholds: tuple[int, ...]
    horizon: Window | None
    set_by: str
    set_at: datetime
    confidence: float | None = None

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
    if budget.confidence is not None and not MEDIAN <= budget.confidence <= MOST_CONFIDENCE:
        expected = f"a chance from {MEDIAN:g} to {MOST_CONFIDENCE:g}, or nothing"
        problems.append(FieldProblem("/confidence", f"{budget.confidence:g}", expected))
    if (budget.horizon is None) == (budget.period is BudgetPeriod.HORIZON):
        found = "nothing" if budget.horizon is None else instant_words(budget.horizon.start)
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
    in this period). ``later`` are the later periods with cost, each by itself.
    """

    budget: Budget
    window: Window
    owed_usd: Decimal
    reserved_usd: Decimal
    planned_usd: Decimal
    until_released_usd: Decimal
    runs_out_on: datetime | None
    thresholds: tuple[ThresholdStatus, ...]
    later: tuple[BudgetStatus, ...] = ()

    @property
    def expected_usd(self) -> Decimal:
        """The expected cost of the whole period: accrued, reserved and planned."""
        return self.owed_usd + self.reserved_usd + self.planned_usd

    @property
    def left_usd(self) -> Decimal:
        """The limit minus the expected cost; negative if the budget is exceeded."""
        return self.budget.limit_usd - self.expected_usd

    @property
    def later_overruns(self) -> tuple[BudgetStatus, ...]:
        """The later periods whose expected cost exceeds the limit."""
        return tuple(one for one in self.later if one.left_usd < 0)

    @property
    def used_share(self) -> float:
        """The accrued cost as a share of the limit."""
        return float(self.owed_usd / self.budget.limit_usd)

    @property
    def expected_share(self) -> float:
        """The expected cost as a share of the limit."""
        return float(self.expected_usd / self.budget.limit_usd)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far into later periods budgets look: a team's as far as its own money goes, that of all teams as
    far as anybody's.

    ``opened`` is by team the latest start of a lease without an end, and ``last`` the last time at which
    anything with an end costs money; those of ALL_TEAMS count for each team.
    """

    now: datetime
    opened: Mapping[str, datetime]
    last: Mapping[str, datetime]

    @classmethod
    def at(
        cls,
        now: datetime,
        opened: Iterable[datetime] = (),
        last: Iterable[datetime] = (),
        team: str = ALL_TEAMS,
    ) -> Reach:
        """From ``now``, with the starts of leases of ``team`` without an end and the ends of its others."""
        known = ({team: max(times)} if times else {} for times in (tuple(opened), tuple(last)))
        return cls(now, *known)

    def opening(self, starts: Iterable[tuple[str, datetime]]) -> Reach:
        """With further leases without an end, by team."""
        return replace(self, opened=_latest(self.opened, starts))

    def lasting(self, ends: Iterable[tuple[str, datetime]]) -> Reach:
        """With further ends of what costs money, by team."""
        return replace(self, last=_latest(self.last, ends))

    def beyond(self, charges: Iterable[Charge]) -> Reach:
        """As far as ``charges`` with an end."""
        return self.lasting((one.team, one.window.start) for one in charges if not one.is_open_ended)

    def counted_until(self, budget: Budget) -> datetime:
        """The instant up to which leases without an end count.

        They count for the whole period after the one in which the last of them starts, and as far as anything
        with an end costs money.
        """
        opened, last = (self._of(budget.team, known) for known in (self.opened, self.last))
        following = budget.window_at(budget.window_at(opened).end)
        return max(following.end, budget.window_at(last).end)

    def _of(self, team: str, known: Mapping[str, datetime]) -> datetime:
        names = known if team == ALL_TEAMS else known.keys() & {team, ALL_TEAMS}
        return max((self.now, *(known[name] for name in names)))


def _latest(known: Mapping[str, datetime], times: Iterable[tuple[str, datetime]]) -> Mapping[str, datetime]:
    found = dict(known)
    for team, at in times:
        if team not in found or at > found[team]:
            found[team] = at
    return found


def furthest_end(budgets: Iterable[Budget], reach: Reach) -> datetime | None:
    """The latest instant up to which leases without an end count; None without budgets."""
    return max(map(reach.counted_until, budgets), default=None)


def budget_outlook(budget: Budget, charges: Iterable[Charge], reach: Reach) -> tuple[BudgetStatus, ...]:
    """The status of the present period, and of each later one in which something costs money.

    ``charges`` of other teams are ignored, and those of leases without an end that start too late.
    """
    until, present = reach.counted_until(budget), budget.window_at(reach.now)
    by_month: dict[tuple[int, int], Window] = {}
    by_window = defaultdict[Window, list[Charge]](list)
    for charge in charges:
        start = charge.window.start
        if budget.team in (ALL_TEAMS, charge.team) and not (charge.is_open_ended and start >= until):
            month = (start.year, start.month)
            if month not in by_month:
                by_month[month] = budget.window_at(start)
            by_window[by_month[month]].append(charge)
    later = sorted((w for w in by_window if w.start >= present.end), key=lambda window: window.start)
    return (
        budget_status(budget, by_window[present], reach.now),
        *(budget_status(budget, by_window[window], window.start) for window in later),
    )


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
    """Alerts for every threshold that the accrued cost reached, and for an expected cost above 100 %, also of
    each later period."""
    budget, window = found.budget, found.window
    past = [
        BudgetAlert(budget, window, one.percent, ChargeBasis.ACTUAL, found.owed_usd)
        for one in found.thresholds
        if found.owed_usd >= one.usd
    ]
    past += [
        BudgetAlert(budget, one.window, WHOLE, ChargeBasis.PROJECTED, one.expected_usd)
        for one in (found, *found.later)
        if one.left_usd < 0
    ]
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
