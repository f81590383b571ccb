"""Webhooks have a format of their messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("format", sa.String(), server_default="json", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("webhooks") as table:
        table.drop_column("format")
