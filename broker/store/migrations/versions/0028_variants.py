"""Plans can be variants of another plan, in a comparison."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("plans", sa.Column("comparison_id", IDENTIFIER, nullable=True))
    op.add_column("plans", sa.Column("variant", DOCUMENT, nullable=True))
    op.create_index(op.f("ix_plans_comparison_id"), "plans", ["comparison_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_plans_comparison_id"), "plans")
    with op.batch_alter_table("plans") as table:
        table.drop_column("variant")
        table.drop_column("comparison_id")
