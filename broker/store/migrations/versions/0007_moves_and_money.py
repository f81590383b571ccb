"""What a reservation takes the place of; what a seller billed for a window, and gave back for leaving it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
COLUMNS = ("paid_micro_usd", "credit_micro_usd")


def upgrade() -> None:
    op.add_column("reservations", sa.Column("replaces", DOCUMENT, nullable=True))
    for name in COLUMNS:
        op.add_column("reservation_units", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("reservation_units", name)
    op.drop_column("reservations", "replaces")
