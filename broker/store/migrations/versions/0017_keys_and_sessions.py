"""Keys may expire; a sign-in on the pages is a session of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("expires_at", INSTANT, nullable=True))
    op.create_index("ix_api_keys_created_at_key_id", "api_keys", ["created_at", "key_id"])
    op.create_table(
        "sessions",
        sa.Column("sha256", IDENTIFIER, nullable=False),
        sa.Column("key_id", IDENTIFIER, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.key_id"], name="fk_sessions_key_id_api_keys"),
        sa.PrimaryKeyConstraint("sha256", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_index("ix_api_keys_created_at_key_id", "api_keys")
    op.drop_column("api_keys", "expires_at")
