"""Several broker processes on one database: capacities, workers, leaders, and claims of rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
INSTANT = sa.DateTime(timezone=True)
CLAIMED = ("plans", "reservations")


def upgrade() -> None:
    op.create_table(
        "capacities",
        sa.Column("capacity_id", IDENTIFIER, nullable=False),
        sa.Column("takings", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("capacity_id", name=op.f("pk_capacities")),
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", IDENTIFIER, nullable=False),
        sa.Column("alive_until", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "leaders",
        sa.Column("work", IDENTIFIER, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", IDENTIFIER, nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("work", name=op.f("pk_leaders")),
    )
    for table in CLAIMED:
        op.add_column(table, sa.Column("claimed_by", IDENTIFIER, nullable=True))
        op.add_column(table, sa.Column("claimed_until", INSTANT, nullable=True))
    op.add_column("remembered_answers", sa.Column("claimed_by", IDENTIFIER, nullable=True))
    op.add_column("remembered_answers", sa.Column("effects", DOCUMENT, nullable=True))


def downgrade() -> None:
    op.drop_column("remembered_answers", "effects")
    op.drop_column("remembered_answers", "claimed_by")
    for table in CLAIMED:
        op.drop_column(table, "claimed_until")
        op.drop_column(table, "claimed_by")
    for table in ("leaders", "workers", "capacities"):
        op.drop_table(table)
