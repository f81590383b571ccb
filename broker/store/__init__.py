"""The store: tables and repositories on SQLite or PostgreSQL."""

from broker.store.engine import Store, create_store
from broker.store.unit_of_work import SqlUnitOfWork

__all__ = ["SqlUnitOfWork", "Store", "create_store"]
