"""Pages of a list, newest first, with an opaque cursor.

A page continues after the (time, key) of the last row of the previous page, so that new rows cause neither
repeated nor missing rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, and_, or_
from sqlalchemy.orm import InstrumentedAttribute

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.page import Page
from broker.domain.basics.window import require_utc
from broker.store.team_session import TeamSession

LARGEST_KEY = 2**63 - 1

R = TypeVar("R")
T = TypeVar("T")


def encode_cursor(at: datetime, key: str | int) -> str:
    """The cursor of the page after the row with ``at`` and ``key``."""
    text = json.dumps([at.isoformat(), key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, key_type: type) -> tuple[datetime, Any]:
    """Time and key of a cursor. Raises InputError if it is not one of ours."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        at, key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        instant = require_utc(datetime.fromisoformat(at), "cursor")
    except (ValueError, TypeError, OverflowError) as error:
        raise _unreadable(cursor) from error
    if type(key) is not key_type or (isinstance(key, int) and abs(key) > LARGEST_KEY):
        raise _unreadable(cursor)
    return instant, key


def _unreadable(cursor: str) -> InputError:
    expected = "the next_cursor of an earlier answer to the same request"
    return InputError("query", (FieldProblem("/cursor", repr(cursor[:80]), expected),))


async def fetch_page(
    session: TeamSession,
    statement: Select[R],
    order: tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[Any]],
    limit: int,
    cursor: str | None,
    build: Callable[[R], T],
) -> Page[T]:
    """At most ``limit`` rows of ``statement`` after ``cursor``, in descending ``order`` (time, key)."""
    at, key = order
    if cursor is not None:
        instant, last = decode_cursor(cursor, key.type.python_type)
        statement = statement.where(or_(at < instant, and_(at == instant, key < last)))
    ordered = statement.order_by(at.desc(), key.desc()).limit(limit + 1)
    rows = (await session.scalars(ordered.execution_options(populate_existing=True))).unique().all()
    items = tuple(build(row) for row in rows[:limit])
    if len(rows) <= limit:
        return Page(items, None)
    last_row = rows[limit - 1]
    return Page(items, encode_cursor(getattr(last_row, at.key), getattr(last_row, key.key)))
