"""Budgets with their thresholds, and every word of finance on a plan."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("period", IDENTIFIER, nullable=False),
        sa.Column("limit_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("thresholds", DOCUMENT, nullable=False),
        sa.Column("starts_at", INSTANT, nullable=True),
        sa.Column("ends_at", INSTANT, nullable=True),
        sa.Column("set_by", sa.String(), nullable=False),
        sa.Column("set_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("team", "period", name=op.f("pk_budgets")),
    )
    op.create_table(
        "budget_alerts",
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("period", IDENTIFIER, nullable=False),
        sa.Column("starts_at", INSTANT, nullable=False),
        sa.Column("percent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("basis", IDENTIFIER, nullable=False),
        sa.PrimaryKeyConstraint(
            "team", "period", "starts_at", "percent", "basis", name=op.f("pk_budget_alerts")
        ),
    )
    op.add_column("plans", sa.Column("approval", IDENTIFIER, nullable=True))
    op.add_column("plans", sa.Column("decisions", DOCUMENT, nullable=True))
    op.create_index(op.f("ix_plans_approval_created_at"), "plans", ["approval", "created_at"])
    op.execute("UPDATE plans SET approval = 'approved' WHERE approved_by IS NOT NULL")
    op.execute(
        "UPDATE plans SET approval = 'waiting' "
        "WHERE approved_by IS NULL AND needs_approval AND state IN ('done', 'proposed')"
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_plans_approval_created_at"), "plans")
    op.drop_column("plans", "decisions")
    op.drop_column("plans", "approval")
    op.drop_table("budget_alerts")
    op.drop_table("budgets")
