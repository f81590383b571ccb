"""Spend rolled up by day, and months that are closed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
WORDS = ("workload", "kind", "provider", "sku", "tier", "offer_id", "gpu", "region")
SUMS = ("cents", "cash_cents", "gpu_seconds", "idle_gpu_seconds", "idle_cents")


def upgrade() -> None:
    op.create_table(
        "spend_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("cell", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        *(sa.Column(name, IDENTIFIER, nullable=False) for name in WORDS),
        sa.Column("correction", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("day", "cell", name=op.f("pk_spend_days")),
    )
    op.create_index(op.f("ix_spend_days_team_day"), "spend_days", ["team", "day"])
    op.create_table(
        "spend_bills",
        sa.Column("bill_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("cells", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("bill_id", name=op.f("pk_spend_bills")),
    )
    op.create_table(
        "closed_months",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("closed_at", INSTANT, nullable=False),
        sa.Column("closed_by", sa.String(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("cents", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", name=op.f("pk_closed_months")),
    )
    op.create_table(
        "closed_rows",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("month", "ordinal", name=op.f("pk_closed_rows")),
    )
    op.create_table(
        "closed_costs",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("billed_cents", sa.BigInteger(), nullable=False),
        sa.Column("effective_cents", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", "reservation_id", name=op.f("pk_closed_costs")),
    )
    op.add_column(
        "reservations", sa.Column("rolled_up", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_index(op.f("ix_reservations_rolled_up"), "reservations", ["rolled_up"])


def downgrade() -> None:
    op.drop_index(op.f("ix_reservations_rolled_up"), "reservations")
    op.drop_column("reservations", "rolled_up")
    for table in ("closed_costs", "closed_rows", "closed_months", "spend_bills", "spend_days"):
        op.drop_table(table)
