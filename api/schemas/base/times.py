"""Instants in documents: written as ISO 8601 with ``Z``; read with any offset, or as words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, PlainSerializer

EXPECTED_INSTANT = "a time with its zone such as 2026-11-23T00:00:00Z"
EXPECTED_TIME = f"{EXPECTED_INSTANT}, or a date"
EXPECTED_START = f"{EXPECTED_TIME}, or one of now, today, tomorrow, next-monday"
EXPECTED_RELATIVE = f"{EXPECTED_TIME}, or an offset from the horizon's start such as +2d or +36h"

FIRST_YEAR, LAST_YEAR = 2000, 2200
"""Times outside are mistakes; near the ends of the calendar, date arithmetic would overflow."""

_OFFSET = re.compile(r"\+(\d+(?:\.\d+)?)([mhdw])", re.ASCII)
_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def format_time(instant: datetime) -> str:
    """ISO 8601 in UTC with ``Z``; fractions of a second are written only if there are any."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


Instant = Annotated[AwareDatetime, PlainSerializer(format_time, return_type=str, when_used="json")]
"""A pydantic field type: an aware time, written as ``format_time`` writes it."""


def parse_time(text: str) -> datetime:
    """An absolute instant in UTC; a bare date is its midnight. The ValueError states what is expected."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(EXPECTED_TIME) from None
    if not FIRST_YEAR <= instant.year < LAST_YEAR:
        raise ValueError(f"{EXPECTED_TIME}, from {FIRST_YEAR} on and before {LAST_YEAR}")
    if instant.tzinfo is not None:
        return instant.astimezone(UTC)
    if _DATE.fullmatch(text.strip()):
        return instant.replace(tzinfo=UTC)
    raise ValueError(EXPECTED_TIME)


def find_time(value: object) -> datetime | None:
    """The instant that a field of a stored document says; None where it says none, or an offset."""
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _as_told(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or _DATE.fullmatch(value.strip()):
        raise ValueError(EXPECTED_INSTANT)
    return parse_time(value)


ToldInstant = Annotated[Instant, BeforeValidator(_as_told)]
"""A time in a request body: text, not a number of seconds, and within plausible years."""


def parse_start(text: str, now: datetime) -> datetime:
    """A horizon's start: an instant, or a word that is resolved against ``now``.

    The words ``today``, ``tomorrow`` and ``next-monday`` are UTC midnights. An instant within a second is
    rounded up, as windows are sold and plans are made in whole seconds.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {
        "now": _whole_second(now),
        "today": midnight,
        "tomorrow": midnight + timedelta(days=1),
        "next-monday": midnight + timedelta(days=7 - now.weekday()),
    }
    word = text.strip().lower()
    if word in words:
        return words[word]
    try:
        told = parse_time(text)
    except ValueError:
        raise ValueError(EXPECTED_START) from None
    return _whole_second(told)


def _whole_second(instant: datetime) -> datetime:
    whole = instant.replace(microsecond=0)
    return whole if whole == instant else whole + timedelta(seconds=1)


def parse_relative(text: str, horizon_start: datetime) -> datetime:
    """An instant, or an offset from ``horizon_start``: ``+90m``, ``+36h``, ``+2d``, ``+1w``."""
    offset = _OFFSET.fullmatch(text.strip())
    if offset is not None:
        try:
            return horizon_start + float(offset[1]) * _UNITS[offset[2]]
        except OverflowError:
            raise ValueError(f"{EXPECTED_RELATIVE}, before {LAST_YEAR}") from None
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(EXPECTED_RELATIVE) from None
