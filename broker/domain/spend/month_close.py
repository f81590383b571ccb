"""Months that are closed: their reports never change again; later differences are corrections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.basics.window import Window
from broker.domain.spend.spend import Interval, next_period


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A month (its first day) with its money and FOCUS rows as they were when it was closed."""

    month: date
    closed_at: datetime
    closed_by: str
    comment: str
    usd: Decimal
    rows: int


def month_window(month: date) -> Window:
    """The UTC month that begins on ``month``."""
    start = datetime.combine(month.replace(day=1), time(), UTC)
    return Window(start, next_period(start, Interval.MONTH))


def closed_until(closed: Sequence[ClosedMonth]) -> date | None:
    """The first day that is open; None where no month is closed."""
    return month_window(closed[-1].month).end.date() if closed else None


def require_closable(month: date, closed: Sequence[ClosedMonth], first: date | None, now: datetime) -> None:
    """Raises InputError for a month that is not over, Conflict for one that is closed already or comes before
    its turn. ``first``: the month of the first charge."""
    window = month_window(month)
    if window.end > now:
        problem = FieldProblem("/month", f"{month:%Y-%m}", f"a month that is over at {now.isoformat()}")
        raise InputError("close", (problem,))
    until = closed_until(closed)
    if until is not None and month < until:
        raise Conflict(f"month {month:%Y-%m} is closed already")
    turn = until or first
    if turn is not None and month > turn:
        raise Conflict(f"month {turn:%Y-%m} has to be closed before {month:%Y-%m}")
