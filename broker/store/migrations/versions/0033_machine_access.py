"""Public SSH keys, the setup of reservations, and how their machines are entered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from broker.store.columns import Document, Identifier, Prose, UtcDateTime

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ssh_keys",
        sa.Column("key_id", Identifier, nullable=False),
        sa.Column("team", Identifier, nullable=False),
        sa.Column("person", sa.String),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("public_key", Prose, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_ssh_keys"),
    )
    op.create_index("ix_ssh_keys_team", "ssh_keys", ["team"])
    op.create_index("ix_ssh_keys_created_at_key_id", "ssh_keys", ["created_at", "key_id"])
    op.add_column("reservations", sa.Column("setup", Document))
    op.add_column("reservation_units", sa.Column("machines", Document))
    op.add_column("reservation_units", sa.Column("access_note", Prose, nullable=False, server_default=""))


def downgrade() -> None:
    """Reservations stay; keys and ways in are no longer known."""
    for name in ("machines", "access_note"):
        op.drop_column("reservation_units", name)
    op.drop_column("reservations", "setup")
    op.drop_table("ssh_keys")
