"""Reservations are found by the pool of GPUs that they take from, whoever sold them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INDEX = "ix_reservations_pool_id"


def upgrade() -> None:
    op.add_column("reservations", sa.Column("pool_id", IDENTIFIER, nullable=True))
    rows = sa.table(
        "reservations",
        sa.column("reservation_id", sa.String),
        sa.column("pool_id", sa.String),
        sa.column("offer", sa.JSON),
    )
    connection = op.get_bind()
    for reservation_id, offer in connection.execute(sa.select(rows.c.reservation_id, rows.c.offer)).all():
        pool = (offer.get("stock") or {}).get("pool")
        if pool:
            here = sa.update(rows).where(rows.c.reservation_id == reservation_id)
            connection.execute(here.values(pool_id=pool["pool_id"]))
    op.create_index(INDEX, "reservations", ["pool_id"])


def downgrade() -> None:
    op.drop_index(INDEX, table_name="reservations")
    op.drop_column("reservations", "pool_id")
