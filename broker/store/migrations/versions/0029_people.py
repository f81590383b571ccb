"""Sign-ins under way at an identity provider, and sessions of people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "pending_sign_ins",
        sa.Column("state_sha256", IDENTIFIER, nullable=False),
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("verifier", sa.String(), nullable=False),
        sa.Column("wanted", sa.String(), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name=op.f("pk_pending_sign_ins")),
    )
    op.create_index(op.f("ix_pending_sign_ins_expires_at"), "pending_sign_ins", ["expires_at"])
    op.create_table(
        "person_sessions",
        sa.Column("sha256", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("confirmed_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("id_token", sa.String()),
        sa.Column("refresh_token", sa.String()),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_person_sessions")),
    )
    op.create_index(op.f("ix_person_sessions_expires_at"), "person_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("person_sessions")
    op.drop_table("pending_sign_ins")
