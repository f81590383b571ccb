"""The store: SQLite or PostgreSQL behind the repositories that the ports declare."""

from broker.store.engine import Store, create_store
from broker.store.unit_of_work import SqlUnitOfWork

__all__ = ["SqlUnitOfWork", "Store", "create_store"]
