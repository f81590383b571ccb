"""Reports of probes no longer tell new fields; each provider is probed again within a day."""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE feeds SET probe = NULL")


def downgrade() -> None:
    """The reports come again with the next probes."""
