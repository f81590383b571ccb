"""A client-side time limit of statements: a PostgreSQL server that hangs keeps its connections open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from psycopg import AsyncConnection, OperationalError
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

T = TypeVar("T")
STATEMENT_LIMIT_S = 15.0
"""Limit of statements of requests, whose callers wait and can retry."""
JOB_STATEMENT_LIMIT_S = 600.0
"""Limit of statements of jobs, some of which read whole tables."""

_limit_s: ContextVar[float | None] = ContextVar("statement_limit_s", default=STATEMENT_LIMIT_S)


@contextmanager
def answered_within(limit_s: float | None) -> Iterator[None]:
    """A context in which a statement fails after ``limit_s`` without an answer, and its connection is closed.

    None: no limit. Whether the statement took effect is unknown, as after a lost connection.
    """
    token = _limit_s.set(limit_s)
    try:
        yield
    finally:
        _limit_s.reset(token)


class LimitedConnection(AsyncConnection[TupleRow]):
    """A connection with this limit. A server that hangs would not enforce ``statement_timeout``."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T:
        """The result of ``gen``. Raises OperationalError if the server does not answer in time."""
        try:
            return await super().wait(gen, interval, _limit_s.get() if timeout is None else timeout)
        except OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # a rollback would wait for the statement that hangs
            raise
