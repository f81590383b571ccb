"""Alembic's entry point: runs revisions on the connection of ``broker.store.schema``."""

from __future__ import annotations

from alembic import context

from broker.store.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
