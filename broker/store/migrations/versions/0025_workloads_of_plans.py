"""How many workloads each plan asks for, so that what a team has on its way can be counted."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

PLANS = sa.table(
    "plans",
    sa.column("plan_id", sa.String),
    sa.column("state", sa.String),
    sa.column("document", sa.String),
    sa.column("workload_count", sa.Integer),
)


def upgrade() -> None:
    op.add_column("plans", sa.Column("workload_count", sa.Integer(), nullable=False, server_default="0"))
    connection = op.get_bind()
    on_their_way = PLANS.c.state.in_(("queued", "running"))
    for plan_id, document in connection.execute(
        sa.select(PLANS.c.plan_id, PLANS.c.document).where(on_their_way)
    ).all():
        counted = {"workload_count": len(json.loads(document).get("workloads", ()))}
        connection.execute(sa.update(PLANS).where(PLANS.c.plan_id == plan_id).values(counted))


def downgrade() -> None:
    op.drop_column("plans", "workload_count")
