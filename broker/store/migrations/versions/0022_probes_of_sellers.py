"""What the last probe of each seller found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("feeds", sa.Column("probe", DOCUMENT, nullable=True))


def downgrade() -> None:
    op.drop_column("feeds", "probe")
