"""Cursors over lists that are held in memory: opaque, stable while the order is."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TypeVar

from broker.domain.basics.errors import FieldProblem, InputError

Item = TypeVar("Item")
SortKey = tuple[Decimal, str]


def page_of(
    items: Sequence[Item], key: Callable[[Item], SortKey], limit: int | None, cursor: str | None
) -> tuple[Sequence[Item], str | None]:
    """At most ``limit`` items (None: all) after ``cursor`` by ascending ``key``, and the next cursor."""
    ordered = sorted(items, key=key)
    if cursor is not None:
        after = read_cursor(cursor)
        ordered = [item for item in ordered if key(item) > after]
    page = ordered[:limit]
    return page, make_cursor(key(page[-1])) if len(ordered) > len(page) else None


def by_name(name: str) -> SortKey:
    """A key for a list in the order of names."""
    return Decimal(0), name


def by_instant(at: datetime, name: str = "") -> SortKey:
    """A key for a list in the order of time, then of names."""
    return Decimal(str(at.timestamp())), name


def by_day(day: date, name: str = "") -> SortKey:
    """A key for a list in the order of days, then of names."""
    return Decimal(day.toordinal()), name


def make_cursor(key: SortKey) -> str:
    """The cursor for what follows ``key``."""
    return base64.urlsafe_b64encode(json.dumps([str(key[0]), key[1]]).encode()).decode()


def read_cursor(cursor: str) -> SortKey:
    """The key after which a cursor continues. Raises InputError for an unknown cursor."""
    try:
        number, name = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        after = Decimal(str(number))
        if not after.is_finite():
            raise ValueError(f"{number} is no price")
        return after, str(name)
    except (binascii.Error, ValueError, TypeError, ArithmeticError) as error:
        problem = FieldProblem("/cursor", repr(cursor), "the next_cursor of an earlier page")
        raise InputError("request", (problem,)) from error
