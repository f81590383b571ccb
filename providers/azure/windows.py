"""Windows of Azure: Block and Future capacity reservations, as terms and as the schedules of an order.

Both start on whole dates; the API's own answers show 12:00 UTC as the hour of the start, and 11:30 UTC as
the end of a Block (Microsoft.Compute 2025-04-01 and 2026-04-01, examples of capacity reservations). So a
Block of n days is offered as n times 24 hours from 12:00 UTC, whose last half hour is taken back. There is
no search: the PUT is the test, for all nodes or none.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import CancelRule, WindowBilling, WindowKind, WindowTerms
from broker.provider_facts import load_provider_facts
from providers.rows import as_utc

PROVIDER = "azure"
START_UTC = time(12, 0)
BLOCK_END_UTC = time(11, 30)
DAY = timedelta(days=1)
DAY_HOURS = 24.0
BLOCK_TEARDOWN_S = 30 * 60
BLOCK_LEAD_HOURS = 0.5
"""A Block that starts today must be ordered before 11:30 UTC."""
BLOCK_AHEAD_DAYS = 56
BLOCK_COUNTS = (1, 2, 4, 8, 16, 32, 64)
BLOCK_DAYS = (*range(1, 15), *(7 * weeks for weeks in range(3, 27)))
FUTURE_LEAD_DAYS = 7


def block_terms(observed_at: datetime) -> WindowTerms:
    """Which windows a Block sells: starts within 56 days.

    The free capacity is only known once an order is sent.
    """
    today = observed_at.astimezone(UTC).date()
    is_late = observed_at.astimezone(UTC).time() >= BLOCK_END_UTC
    first = _start_of(today + DAY if is_late else today)
    last = _start_of(today + timedelta(days=BLOCK_AHEAD_DAYS))
    return WindowTerms(
        kind=WindowKind.REQUEST,
        segments=(Segment(first, last + timedelta(days=BLOCK_DAYS[-1]), BLOCK_COUNTS[-1]),),
        anchor_utc=START_UTC,
        step_hours=DAY_HOURS,
        durations_hours=tuple(days * DAY_HOURS for days in BLOCK_DAYS),
        lead_hours=BLOCK_LEAD_HOURS,
        cancel=CancelRule.NEVER,
        billed=_billed("block"),
        teardown_s=BLOCK_TEARDOWN_S,
        node_counts=BLOCK_COUNTS,
    )


def future_terms() -> WindowTerms:
    """Which windows a Future reservation sells.

    It has no end: the window is its commitment. It starts at most six months ahead.
    """
    return WindowTerms(
        kind=WindowKind.REQUEST,
        segments=(),
        anchor_utc=START_UTC,
        step_hours=DAY_HOURS,
        lead_hours=FUTURE_LEAD_DAYS * DAY_HOURS,
        cancel=CancelRule.UNTIL,
        billed=_billed("future"),
    )


def _billed(kind: str) -> WindowBilling:
    return load_provider_facts(PROVIDER).billed.window_billed(kind)


def block_schedule(order: Order) -> dict[str, str | int]:
    """``scheduleProfile`` of a Block; OrderRejected for a count or length that is not sold."""
    if order.nodes not in BLOCK_COUNTS:
        raise OrderRejected(PROVIDER, f"a block holds {_words(BLOCK_COUNTS)} nodes, not {order.nodes}")
    start, days = _dates(order)
    if days not in BLOCK_DAYS:
        raise OrderRejected(PROVIDER, f"a block lasts 1 to 14 days or 3 to 26 whole weeks, not {days} days")
    return {"start": start.isoformat(), "end": (start + timedelta(days=days)).isoformat()}


def future_schedule(order: Order) -> dict[str, str | int]:
    """``scheduleProfile`` of a Future reservation that is committed for the whole window."""
    start, days = _dates(order)
    return {"start": start.isoformat(), "minimumCommitmentDays": days}


def scheduled_window(start: str, end: str | None) -> tuple[datetime, datetime | None]:
    """The window of a schedule in an answer: dates, or dates with a time of day; ValueError otherwise."""
    return _instant(start, START_UTC), _instant(end, BLOCK_END_UTC) if end else None


def _dates(order: Order) -> tuple[date, int]:
    window = order.window
    if window is None or not _is_whole_days(window):
        raise OrderRejected(PROVIDER, f"whole days from {START_UTC:%H:%M} UTC are sold")
    return window.start.date(), window.duration // DAY


def _is_whole_days(window: Window) -> bool:
    return window.start.time() == START_UTC and window.duration % DAY == timedelta(0)


def _start_of(day: date) -> datetime:
    return datetime.combine(day, START_UTC, UTC)


def _instant(text: str, hour: time) -> datetime:
    if len(text) == len("2026-01-01"):
        return datetime.combine(date.fromisoformat(text), hour, UTC)
    return as_utc(datetime.fromisoformat(text))


def _words(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts))
