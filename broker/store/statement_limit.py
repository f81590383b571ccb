"""How long a statement may go unanswered: a PostgreSQL server that hangs keeps its connections open."""

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
"""For statements of calls, whose callers wait and can ask again."""
JOB_STATEMENT_LIMIT_S = 600.0
"""For statements of jobs, some of which go through whole tables."""

_limit_s: ContextVar[float | None] = ContextVar("statement_limit_s", default=STATEMENT_LIMIT_S)


@contextmanager
def answered_within(limit_s: float | None) -> Iterator[None]:
    """Here a statement that is not answered within ``limit_s`` fails, and its connection is closed.

    None: no limit. Whether what was sent took place is unknown, as after a connection that is lost.
    """
    token = _limit_s.set(limit_s)
    try:
        yield
    finally:
        _limit_s.reset(token)


class LimitedConnection(AsyncConnection[TupleRow]):
    """A connection that keeps the limit: ``statement_timeout`` would have to be kept by what hangs."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T:
        """What ``gen`` gives; OperationalError where the server does not answer in time."""
        try:
            return await super().wait(gen, interval, _limit_s.get() if timeout is None else timeout)
        except OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # it still waits: a rollback would wait behind it
            raise
