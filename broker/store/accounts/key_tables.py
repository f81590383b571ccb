"""The tables of API keys and of sign-in sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier
from broker.store.tables import Row


class ApiKeyRow(Row):
    """An API key or, with ``invited_until``, an invitation, identified by the hash of key or token."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "created_at", "key_id"),)

    key_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    name: Mapped[str]
    team: Mapped[str] = mapped_column(Identifier)
    scopes: Mapped[list[Any]]
    sha256: Mapped[str] = mapped_column(Identifier, unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    invited_until: Mapped[datetime | None]


class SessionRow(Row):
    """A sign-in session of the pages, identified by the hash of its token."""

    __tablename__ = "sessions"
    owner = ("key_id", ApiKeyRow)

    sha256: Mapped[str] = mapped_column(Identifier, primary_key=True)
    key_id: Mapped[str] = mapped_column(Identifier, ForeignKey("api_keys.key_id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
