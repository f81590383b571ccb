"""Month close: reports of a closed month never change, and later differences are booked as corrections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.basics.window import Window, instant_words
from broker.domain.holding.reservation import Reservation, UnitState
from broker.domain.spend.spend import Interval, next_period


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A closed month (its first day), with its cost and number of FOCUS rows at the close.

    ``rows`` is None where ``usd`` is the cost of one team alone.
    """

    month: date
    closed_at: datetime
    closed_by: str
    comment: str
    usd: Decimal
    rows: int | None


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A seller that did not confirm its leases after a month was over.

    ``confirmed_at`` is when it last did so for the lease that was confirmed the longest ago (None: never).
    """

    provider: str
    confirmed_at: datetime | None


@dataclass(frozen=True, slots=True)
class MonthClose:
    """What closing a month came to. ``unconfirmed`` are sellers whose later bills become corrections."""

    closed: ClosedMonth
    unconfirmed: tuple[Unconfirmed, ...]


def find_unconfirmed(rows: Iterable[Reservation], window: Window) -> tuple[Unconfirmed, ...]:
    """The sellers of ``rows``, which are open, that did not confirm what they held in ``window`` since its
    end, by name."""
    oldest: dict[str, datetime | None] = {}
    for row in rows:
        for unit in row.units:
            if unit.state is not UnitState.HELD or row.start >= window.end:
                continue
            seen, name = unit.seen_at, row.offer.provider
            if seen is None or seen < window.end:
                before = oldest.get(name, seen)
                oldest[name] = None if seen is None or before is None else min(seen, before)
    return tuple(Unconfirmed(name, seen) for name, seen in sorted(oldest.items()))


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
        problem = FieldProblem("/month", f"{month:%Y-%m}", f"a month that has ended by {instant_words(now)}")
        raise InputError("close", (problem,))
    until = closed_until(closed)
    if until is not None and month < until:
        raise Conflict(f"month {month:%Y-%m} is already closed")
    turn = until or first
    if turn is not None and month > turn:
        raise Conflict(f"months are closed in order: close {turn:%Y-%m} before {month:%Y-%m}")
