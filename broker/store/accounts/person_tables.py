"""The tables of people who sign in at an identity provider."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier
from broker.store.tables import Row


class PendingSignInRow(Row):
    """A sign-in that was sent to the provider, by the hash of its state."""

    __tablename__ = "pending_sign_ins"
    is_the_installations = True

    state_sha256: Mapped[str] = mapped_column(Identifier, primary_key=True)
    nonce: Mapped[str]
    verifier: Mapped[str]
    wanted: Mapped[str]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PersonSessionRow(Row):
    """A person's sign-in on the pages, by the hash of its token; what the provider gave is sealed."""

    __tablename__ = "person_sessions"

    sha256: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    subject: Mapped[str]
    name: Mapped[str]
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    confirmed_at: Mapped[datetime]
    due_at: Mapped[datetime]
    id_token: Mapped[str | None]
    refresh_token: Mapped[str | None]
