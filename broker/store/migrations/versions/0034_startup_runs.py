"""What became of the start of a unit's machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from broker.store.columns import Document

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservation_units", sa.Column("startup", Document))


def downgrade() -> None:
    """Reservations stay; what became of their starts is no longer known."""
    op.drop_column("reservation_units", "startup")
