"""Versions of plans are summed from an index: whether any was written since, without reading them."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

INDEX = "ix_plans_team_version"


def upgrade() -> None:
    op.create_index(INDEX, "plans", ["team", "version"])


def downgrade() -> None:
    op.drop_index(INDEX, table_name="plans")
