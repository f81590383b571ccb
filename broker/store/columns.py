"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from broker.domain.basics.window import require_utc


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: stored in UTC, read back aware. SQLite keeps no zone, so it is added when read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuses naive times, converts the others to UTC."""
        return None if value is None else require_utc(value, "a stored instant")

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The instant, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def storable(text: str) -> str:
    """``text`` with what no database keeps (NUL, half a surrogate pair) replaced; may come from outside."""
    if text.isascii() and "\x00" not in text:
        return text
    whole = text.encode("utf-8", "replace").decode()
    return whole.replace("\x00", "\N{REPLACEMENT CHARACTER}")


class Prose(TypeDecorator[str]):
    """Free text that may quote an outsider."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replaces what the database would refuse."""
        return None if value is None else storable(value)


Identifier = String().with_variant(String(collation="C"), "postgresql")
"""A name that is compared and sorted byte by byte, whatever the database's locale."""

Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON document; a missing one is SQL NULL."""

Serial = BigInteger().with_variant(Integer, "sqlite")
"""A number that the database counts up (SQLite counts only plain INTEGER keys)."""
