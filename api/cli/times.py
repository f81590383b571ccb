"""Times on the command line: an instant with its zone, or a day, which means its beginning in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

from api.schemas.base.times import format_time, parse_time
from broker.domain.basics.errors import FieldProblem, InputError

TIME_HELP = "A time such as 2026-12-01T18:00:00Z, or a day, which means its beginning (UTC)"
YEAR = timedelta(days=365)


@overload
def read_time(option: str, text: str) -> datetime: ...
@overload
def read_time(option: str, text: None) -> None: ...
@overload
def read_time(option: str, text: str | None) -> datetime | None: ...
def read_time(option: str, text: str | None) -> datetime | None:
    """The instant of ``option``. Raises InputError that names it."""
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise InputError("options", (FieldProblem(option, repr(text), str(error)),)) from None


def read_span(since: str | None, until: str | None) -> tuple[str | None, str | None]:
    """``--from`` and ``--to`` as the server takes them: both, or neither.

    A start alone reaches to a year from now, or from itself if that is later; an end alone, back a year.
    Raises InputError.
    """
    start, end = read_time("--from", since), read_time("--to", until)
    if start is not None and end is None:
        end = max(start, datetime.now(UTC).replace(minute=0, second=0, microsecond=0)) + YEAR
    elif end is not None and start is None:
        start = end - YEAR
    return (None if start is None else format_time(start)), (None if end is None else format_time(end))
