"""Files of spend that are written in the background; why a plan needs an approval."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "exports",
        sa.Column("export_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("file_name", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("export_id", name=op.f("pk_exports")),
    )

    op.add_column("plans", sa.Column("approval_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("plans", "approval_reason")
    op.drop_table("exports")
