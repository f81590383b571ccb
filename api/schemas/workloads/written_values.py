"""Amounts and times as people write them: read into exact ones, and said again in full.

A document has exact numbers and ISO times. A form and the questions of the command line also take
``500M``, ``200 billion tokens``, ``in 10 days`` and ``next friday``, and show what they understood.
"""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from api.schemas.base.times import FIRST_YEAR, LAST_YEAR, format_time, parse_relative, parse_start, parse_time
from api.schemas.workloads.form_fields import Entry, FormField, Unit, figure, value_at

MAGNITUDES: Mapping[str, Decimal] = {
    word: Decimal(10) ** power
    for power, words in {
        3: "k thousand",
        6: "m mn million",
        9: "b bn g billion",
        12: "t tn trillion",
    }.items()
    for word in words.split()
}
_WEEKS = {"w": Decimal(7), "week": Decimal(7), "weeks": Decimal(7)}
_HOURS = {"h": Decimal(60), "hour": Decimal(60), "hours": Decimal(60)}
_SECONDS = {"s": Decimal(1000), "second": Decimal(1000), "seconds": Decimal(1000)}
ONE = Decimal(1)
UNIT_WORDS: Mapping[Unit, Mapping[str, Decimal]] = {
    Unit.NONE: {},
    Unit.TOKENS: {"token": ONE, "tokens": ONE},
    Unit.REQUESTS: {"request": ONE, "requests": ONE},
    Unit.REQUESTS_PER_S: {"requests/s": ONE, "requests per second": ONE, "/s": ONE, "rps": ONE, "qps": ONE},
    Unit.GPUS: {"gpu": ONE, "gpus": ONE},
    Unit.USD: {"usd": ONE, "dollar": ONE, "dollars": ONE},
    Unit.DAYS: {"d": ONE, "day": ONE, "days": ONE, **_WEEKS},
    Unit.MINUTES: {"m": ONE, "min": ONE, "minute": ONE, "minutes": ONE, **_HOURS},
    Unit.MS: {"ms": ONE, **_SECONDS},
    Unit.SHARE: {"%": Decimal("0.01"), "percent": Decimal("0.01")},
}
"""What may follow an amount in a unit, and by how much it is multiplied."""
LARGEST = Decimal(10) ** 30
FULL_FROM = 10_000
"""A plain number below this needs no second saying."""

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
COUNTS: Mapping[str, int] = {"a": 1, "an": 1, **{word: n for n, word in enumerate(_NUMBERS, 1)}}
SHORT = 3
"""Letters of a weekday or month in its short form."""

_NUMBER = re.compile(r"(\d{1,3}(?:[, _]\d{3})+|\d+)?(\.\d+)?(?:e([+-]?\d{1,2}))?", re.ASCII)
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e\+?\d+)?", re.ASCII)
_PERIOD = r"(minute|min|hour|day|week|month|m|h|d|w)s?"
_OFFSET = re.compile(rf"\+\s*(\d{{1,4}}(?:\.\d+)?)\s*{_PERIOD}", re.ASCII)
_AHEAD = re.compile(rf"in\s+(\d{{1,4}}|[a-z]+)\s*{_PERIOD}", re.ASCII)
_CLOCK = re.compile(r"(?:^|\s+(?:at\s+)?)(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(am|pm)?$", re.ASCII)
_ZONE = re.compile(r"\s*\b(?:utc|z|gmt)$", re.ASCII)
_DAY_MONTH = re.compile(r"(\d{1,2})(?:st|nd|rd|th)? (?:of )?([a-z]+)\.?,?(?: (\d{4}))?", re.ASCII)
_MONTH_DAY = re.compile(r"([a-z]+)\.? (\d{1,2})(?:st|nd|rd|th)?,?(?: (\d{4}))?", re.ASCII)


def read_amount(text: str, unit: Unit = Unit.NONE) -> Decimal | None:
    """The amount in ``unit`` that a text says, such as ``1.2B`` or ``2 weeks`` in days; None if it says none.

    Commas, spaces and underscores may stand between groups of three digits, and nowhere else.
    """
    words = " ".join(text.lower().split())
    if unit is Unit.USD:
        words = words.removeprefix("$").lstrip()
    found = _NUMBER.match(words)
    assert found is not None, "every part of the expression may be absent"
    whole, fraction, exponent = found.groups()
    if whole is None and fraction is None:
        return None
    value = Decimal(f"{re.sub('[, _]', '', whole or '0')}{fraction or ''}").scaleb(int(exponent or 0))
    factor = _factor(words[found.end() :].strip(), UNIT_WORDS[unit])
    return value * factor if factor is not None and value * factor < LARGEST else None


def _factor(words: str, units: Mapping[str, Decimal]) -> Decimal | None:
    """What the words after a number multiply it by: a unit, a magnitude, or both."""
    if not words or words in units:
        return units.get(words, ONE)
    first, _, rest = words.partition(" ")
    if first not in MAGNITUDES or (rest and rest not in units):
        return None
    return MAGNITUDES[first] * units.get(rest, ONE)


def write_amount(value: Decimal, unit: Unit = Unit.NONE) -> str:
    """An amount in full with its unit, which ``read_amount`` reads back: ``500,000,000 tokens``."""
    if unit is Unit.SHARE:
        return f"{_digits(value * 100)} %"
    if unit is Unit.USD:
        return f"${_digits(value)}"
    one = unit.value.removesuffix("s")
    word = one if value == 1 and one.lower() in UNIT_WORDS[unit] else unit.value
    return f"{_digits(value)} {word}".rstrip()


def _digits(value: Decimal) -> str:
    written = f"{value:,f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


def exact_amount(text: str, unit: Unit) -> str:
    """The number that a document has for what was written; what is a number already stays as it is, and so
    does what says no amount.
    """
    value = None if _PLAIN_NUMBER.fullmatch(text) else read_amount(text, unit)
    if value is None:
        return text
    return figure(int(value)) if value == value.to_integral_value() else _digits(value).replace(",", "")


def read_moment(text: str, now: datetime) -> datetime | None:
    """The instant in UTC that a text says, with words resolved against ``now``; None if it says none.

    A day is its beginning, also one told as ``in 10 days`` or ``next friday``, the first Friday after today.
    Hours count from the next whole hour. ``7 Dec`` is the next one.
    """
    words = _ZONE.sub("", " ".join(text.lower().split()))
    words = re.sub(r"^(?:by|on|at) ", "", words)
    try:
        moment = _ahead(words, now) or _absolute(text) or _day_and_clock(words, now)
    except (ValueError, OverflowError):
        return None
    return moment if moment is not None and FIRST_YEAR <= moment.year < LAST_YEAR else None


def _absolute(text: str) -> datetime | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def _ahead(words: str, now: datetime) -> datetime | None:
    found = _AHEAD.fullmatch(words)
    if found is None:
        return None
    told, period = found.groups()
    count = int(told) if told.isdecimal() else COUNTS.get(told)
    return None if count is None else _later(now, count, period)


def _later(now: datetime, count: float, period: str) -> datetime:
    """``count`` periods from now: of hours from the next whole hour, of days from the last midnight."""
    if period in ("m", "min", "minute"):
        return _rounded_up(now, timedelta(minutes=1)) + timedelta(minutes=count)
    if period in ("h", "hour"):
        return _rounded_up(now, timedelta(hours=1)) + timedelta(hours=count)
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "month":
        return _months_later(midnight, int(count))
    return midnight + timedelta(days=count * (7 if period in ("w", "week") else 1))


def _rounded_up(now: datetime, step: timedelta) -> datetime:
    over = (now - datetime.min.replace(tzinfo=UTC)) % step
    return now if not over else now - over + step


def _months_later(day: datetime, months: int) -> datetime:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return day.replace(year=year, month=month + 1, day=min(day.day, last))


def _day_and_clock(words: str, now: datetime) -> datetime | None:
    """A day, with a time of the day after it or none."""
    day = _day(words, now.astimezone(UTC).date())
    if day is not None:
        return datetime.combine(day, time(), UTC)
    found = _CLOCK.search(words)
    if found is None:
        return None
    hour, minute, second, half = found.groups()
    if minute is None and half is None:
        return None
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return None
        hour = str(int(hour) % 12 + (12 if half == "pm" else 0))
    clock = time(int(hour), int(minute or 0), int(second or 0))
    day = _day(words[: found.start()].strip(), now.astimezone(UTC).date())
    return None if day is None else datetime.combine(day, clock, UTC)


def _day(words: str, today: date) -> date | None:
    fixed = {
        "today": today,
        "tomorrow": today + timedelta(days=1),
        "next week": today + timedelta(days=7 - today.weekday()),
        "next month": (today.replace(day=1) + timedelta(days=31)).replace(day=1),
    }
    if words in fixed:
        return fixed[words]
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", words, re.ASCII):
        return date.fromisoformat(words)
    weekday = _named(re.sub(r"^(?:next|this)[ -]", "", words), WEEKDAYS)
    if weekday is not None:
        return today + timedelta(days=(weekday - today.weekday() - 1) % 7 + 1)
    first, _, rest = words.partition(" ")
    weekday = _named(first.removesuffix(","), WEEKDAYS)
    day = _date(rest if weekday is not None else words, today)
    return day if day is None or weekday is None or day.weekday() == weekday else None


def _date(words: str, today: date) -> date | None:
    """A day of a month; without a year it is the next one that is not over."""
    if found := _DAY_MONTH.fullmatch(words):
        day, name, year = found.groups()
    elif found := _MONTH_DAY.fullmatch(words):
        name, day, year = found.groups()
    else:
        return None
    month = _named(name, MONTHS)
    if month is None:
        return None
    if year is not None:
        return date(int(year), month + 1, int(day))
    this = date(today.year, month + 1, int(day))
    return this if this >= today else this.replace(year=today.year + 1)


def _named(word: str, names: tuple[str, ...]) -> int | None:
    """The place of a name that is written in full or by its first letters."""
    found = (at for at, name in enumerate(names) if len(word) >= SHORT and name.startswith(word))
    return next(found, None)


def write_moment(instant: datetime) -> str:
    """An instant in full, which ``read_moment`` reads back: ``Mon 7 Dec 2026 00:00 UTC``."""
    at = instant.astimezone(UTC)
    weekday, month = WEEKDAYS[at.weekday()][:SHORT].title(), MONTHS[at.month - 1][:SHORT].title()
    clock = f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
    return f"{weekday} {at.day} {month} {at.year} {clock} UTC"


def exact_time(field: FormField, text: str, now: datetime) -> str:
    """What a document has for a time that was written: an offset from the start as ``+4d``, the words that it
    knows itself, else an ISO time; the text as it is where it says no time, and of fields that are none.
    """
    written = text.strip()
    if field.entry is not Entry.TIME or not written:
        return text
    offset = _OFFSET.fullmatch(written.lower())
    if field.is_start and offset is not None and float(offset[1]).is_integer():
        moment: datetime | None = _later(now, int(float(offset[1])), offset[2])
    elif offset is not None and offset[2] != "month":
        return f"+{offset[1]}{offset[2][0]}"
    elif _instant_of(field, written, now, now) is not None:
        return written
    else:
        moment = read_moment(written, now)
    return written if moment is None else format_time(moment)


def _instant_of(field: FormField, text: str, now: datetime, start: datetime) -> datetime | None:
    try:
        return parse_start(text, now) if field.is_start else parse_relative(text, start)
    except ValueError:
        return None


def start_of(document: Mapping[str, object], now: datetime) -> datetime | None:
    """The start of a document's horizon; None where it says none."""
    told = value_at(document, ("horizon", "start"))
    try:
        return parse_start(told, now) if isinstance(told, str) else None
    except ValueError:
        return None


def meaning(field: FormField, value: object, written: str, now: datetime, start: datetime | None) -> str:
    """What the value of a field means, in full; empty where what was written says so itself.

    ``start``: that of the horizon, which offsets count from; None where it is unknown.
    """
    if field.entry is Entry.TIME and isinstance(value, str):
        is_offset = not field.is_start and value.strip().startswith("+")
        instant = None if is_offset and start is None else _instant_of(field, value, now, start or now)
        return "" if instant is None else write_moment(instant)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if field.entry is Entry.NUMBER and is_number:
        assert isinstance(value, int | float)
        is_plain = written.strip() in ("", figure(value), str(value))
        if value >= FULL_FROM or not is_plain or (field.unit is Unit.SHARE and value > 0):
            return write_amount(Decimal(str(value)), field.unit)
    return ""
