"""Column types that behave alike on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from broker.domain.basics.window import require_utc


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
