"""The work of plans in closed months, by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "closed_work",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("plan_id", IDENTIFIER, nullable=False),
        sa.Column("workload", IDENTIFIER, nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("kind", sa.String(), nullable=True),
        sa.Column("cents", sa.BigInteger(), nullable=False),
        sa.Column("used_gpu_seconds", sa.BigInteger(), nullable=False),
        sa.Column("planned_gpu_seconds", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=True),
        sa.Column("is_used", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("day", "plan_id", "workload", name=op.f("pk_closed_work")),
    )
    op.create_index(op.f("ix_closed_work_month"), "closed_work", ["month"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_closed_work_month"), "closed_work")
    op.drop_table("closed_work")
