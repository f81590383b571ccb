"""A batch that recurs, such as each night: written out as one dated batch for each time.

A document has no field for it, so that a plan shows, places and reserves each time by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from api.schemas.base.document import pointer_of
from api.schemas.base.times import format_time, parse_relative, parse_start
from api.schemas.workloads.document_edit import EditedDocument
from api.schemas.workloads.form_fields import value_at
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.workload import WorkloadKind

PERIODS: Mapping[str, timedelta] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
MOST_TIMES = 60
LONGEST_DAYS = MOST_TIMES * 7
"""In a longer horizon even a weekly batch recurs too often."""
SECONDS_PER_DAY = 86_400
_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)))


def write_out(document: EditedDocument, workload: int, period: str, now: datetime, source: str) -> int:
    """Puts a batch for each time into the document, in place of one; returns how many.

    The batch as it stands is the first of them. Each begins and ends a period after the one before, as long
    as the horizon lasts. Raises InputError where that cannot be told or is too much.
    """
    row = document.workloads[workload]
    at = pointer_of("workloads", workload)
    if not isinstance(row, dict) or row.get("kind") != WorkloadKind.BATCH:
        raise _wrong(source, at, "another workload", "a batch, the only kind that recurs")
    step = PERIODS[period]
    start, end = _horizon(document, now, source)
    begins = _time_of(row, "earliest_start", at, start, source) or start
    ends = _time_of(row, "deadline", at, start, source)
    if ends is None or ends <= begins or ends - begins > step:
        expected = (
            f"a time after the earliest start and at most a {period} later, so that each ends before the next"
        )
        raise _wrong(source, f"{at}/deadline", str(row.get("deadline", "nothing")), expected)
    times = max(0, (end - ends) // step + 1)
    if not 2 <= times <= MOST_TIMES:
        expected = f"a horizon in which it recurs 2 to {MOST_TIMES} times"
        raise _wrong(
            source, "/horizon/days", f"{times} times in {(end - start) / timedelta(days=1):g} days", expected
        )
    for copy in _copies(row, begins, ends, start, step, times):
        document.add(copy)
    document.remove(workload)
    return times


def _copies(
    row: Mapping[str, Any], begins: datetime, ends: datetime, start: datetime, step: timedelta, times: int
) -> Iterator[Mapping[str, Any]]:
    for number in range(times):
        shift = number * step
        yield {
            **row,
            "name": f"{row.get('name', WorkloadKind.BATCH)}-{number + 1}",
            "earliest_start": _written(row.get("earliest_start", "+0h"), begins + shift, start),
            "deadline": _written(row["deadline"], ends + shift, start),
        }


def _written(before: str, instant: datetime, start: datetime) -> str:
    """An instant in the form that stood there before: an offset from the start, or a time."""
    if before.startswith("+"):
        ahead = instant - start
        unit, length = next(
            ((unit, length) for unit, length in _UNITS if ahead % length == timedelta(0)), ("", ahead)
        )
        if unit:
            return f"+{ahead // length}{unit}"
    return format_time(instant)


def _horizon(document: EditedDocument, now: datetime, source: str) -> tuple[datetime, datetime]:
    told = value_at(document.data, ("horizon", "start"))
    days = value_at(document.data, ("horizon", "days"))
    try:
        start = parse_start(str(told), now)
    except ValueError as error:
        raise _wrong(source, "/horizon/start", repr(told), str(error)) from None
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= LONGEST_DAYS:
        raise _wrong(source, "/horizon/days", repr(days), f"a number of days of at most {LONGEST_DAYS}")
    return start, start + timedelta(seconds=round(days * SECONDS_PER_DAY))


def _time_of(row: Mapping[str, Any], field: str, at: str, start: datetime, source: str) -> datetime | None:
    told = row.get(field)
    if told is None:
        return None
    try:
        return parse_relative(str(told), start)
    except ValueError as error:
        raise _wrong(source, f"{at}/{field}", repr(told), str(error)) from None


def _wrong(source: str, pointer: str, found: str, expected: str) -> InputError:
    return InputError(source, (FieldProblem(pointer, found, expected),))
