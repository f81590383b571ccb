"""Who intends a draft, and since when a plan is bought."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("intended_by", sa.String(), nullable=True))
    op.add_column("plans", sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=True))
    plans = sa.table(
        "plans", sa.column("plan_id", sa.String), sa.column("reserved_at", sa.DateTime(timezone=True))
    )
    rows = sa.table(
        "reservations",
        sa.column("plan_id", sa.String),
        sa.column("state", sa.String),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    bought = sa.select(sa.func.min(rows.c.created_at)).where(
        rows.c.plan_id == plans.c.plan_id, rows.c.state != "failed"
    )
    op.execute(sa.update(plans).values(reserved_at=bought.scalar_subquery()))


def downgrade() -> None:
    op.drop_column("plans", "reserved_at")
    op.drop_column("plans", "intended_by")
