"""Proposals that stand until a time, and who decided on them; looks by state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
COLUMNS = (
    ("mode", sa.String()),
    ("lapses_at", INSTANT),
    ("decided_at", INSTANT),
    ("decided_by", sa.String()),
)


def upgrade() -> None:
    for name, kind in COLUMNS:
        op.add_column("reoptimizations", sa.Column(name, kind, nullable=True))
    op.add_column("reoptimizations", sa.Column("version", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("reoptimizations") as table:
        table.alter_column("version", existing_type=sa.Integer(), server_default=None)
    op.create_index(op.f("ix_reoptimizations_state_started_at"), "reoptimizations", ["state", "started_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_reoptimizations_state_started_at"), "reoptimizations")
    op.drop_column("reoptimizations", "version")
    for name, _ in reversed(COLUMNS):
        op.drop_column("reoptimizations", name)
