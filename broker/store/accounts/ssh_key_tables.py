"""The table of public SSH keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier, Prose
from broker.store.tables import Row


class SshKeyRow(Row):
    """A public SSH key of a team (``person`` null), or of a person in it."""

    __tablename__ = "ssh_keys"
    __table_args__ = (Index(None, "created_at", "key_id"),)

    key_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier, index=True)
    person: Mapped[str | None]
    name: Mapped[str]
    public_key: Mapped[str] = mapped_column(Prose)
    created_at: Mapped[datetime]
    created_by: Mapped[str]
