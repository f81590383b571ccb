"""Column types that behave alike on SQLite and PostgreSQL, and rows with the fields of a dataclass."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from broker.domain.basics.window import require_utc

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class UtcDateTime(TypeDecorator[datetime]):
    """A time: stored in UTC, read back aware. SQLite stores no time zone, so it is added on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Raises for naive times, and converts the others to UTC."""
        return None if value is None else require_utc(value, "a stored instant")

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def storable(text: str) -> str:
    """``text`` with characters replaced that no database stores: NUL, and single surrogates."""
    if text.isascii() and "\x00" not in text:
        return text
    whole = text.encode("utf-8", "replace").decode()
    return whole.replace("\x00", "\N{REPLACEMENT CHARACTER}")


class Prose(TypeDecorator[str]):
    """Free text that may contain text from outside."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replaces characters that the database would refuse."""
        return None if value is None else storable(value)


Identifier = String().with_variant(String(collation="C"), "postgresql")
"""A name that is compared and sorted by bytes, independently of the database's locale."""

Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON document; a missing one is SQL NULL."""

Serial = BigInteger().with_variant(Integer, "sqlite")
"""An auto-increment key (SQLite supports this only for plain INTEGER)."""


def values_of(whole: DataclassInstance) -> dict[str, Any]:
    """The fields of ``whole`` as columns of the same names."""
    return {one.name: getattr(whole, one.name) for one in fields(whole)}


def row_as(cls: type[T], row: object) -> T:
    """What ``values_of`` made of a row, as ``cls`` again."""
    return cls(**{one.name: getattr(row, one.name) for one in fields(cls)})
