"""Month close: reports of a closed month never change, and later differences are booked as corrections."""

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
    """A closed month (its first day), with its cost and number of FOCUS rows at the close."""

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
    """The first open day; None if no month is closed."""
    return month_window(closed[-1].month).end.date() if closed else None


def require_closable(month: date, closed: Sequence[ClosedMonth], first: date | None, now: datetime) -> None:
    """Raises InputError if the month is not over, and Conflict if it is closed or an earlier one is open.

    ``first`` is the month of the first charge.
    """
    window = month_window(month)
    if window.end > now:
        problem = FieldProblem("/month", f"{month:%Y-%m}", f"a month that has ended by {now.isoformat()}")
        raise InputError("close", (problem,))
    until = closed_until(closed)
    if until is not None and month < until:
        raise Conflict(f"month {month:%Y-%m} is already closed")
    turn = until or first
    if turn is not None and month > turn:
        raise Conflict(f"months are closed in order: close {turn:%Y-%m} before {month:%Y-%m}")
