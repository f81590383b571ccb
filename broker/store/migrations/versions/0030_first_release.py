"""The schema of the first release. ``broker.store.schema`` makes it from the rows and only stamps it."""

from __future__ import annotations

revision = "0030"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
