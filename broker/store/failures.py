"""Failures of the database: the only place where a driver's error becomes StoreUnavailable.

Callers get a fixed sentence without host, port, user and database. The driver's message is logged, and is the
cause of the raised error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import psycopg
import structlog
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from broker.domain.basics.errors import StoreUnavailable
from broker.repeats import Repeats

log = structlog.get_logger()
_repeats = Repeats()

NO_ANSWER = "the database does not answer"
FULL = "the database accepts no writes: its disk is full"
READ_ONLY = "the database accepts no writes: it is read-only"
LOCKED = "the database is busy: other transactions have locked the requested data"
NO_CONNECTION = "the database is busy: every connection to it is in use"
FILE_FAILS = "the database's file cannot be opened, read or written"
FAILED = "the database failed"

_BY_SQLITE_CODE: Mapping[int, str] = MappingProxyType(
    {
        sqlite3.SQLITE_FULL: FULL,
        sqlite3.SQLITE_READONLY: READ_ONLY,
        sqlite3.SQLITE_BUSY: LOCKED,
        sqlite3.SQLITE_LOCKED: LOCKED,
        sqlite3.SQLITE_CANTOPEN: FILE_FAILS,
        sqlite3.SQLITE_IOERR: FILE_FAILS,
    }
)
_BY_SQLSTATE: Mapping[str, str] = MappingProxyType(
    {
        "25006": READ_ONLY,  # a standby, or a server that is set to read-only
        "25P03": NO_ANSWER,  # the transaction was idle for too long
        "40001": LOCKED,
        "40P01": LOCKED,
        "53100": FULL,
        "53300": NO_CONNECTION,
        "55P03": LOCKED,
        "57P01": NO_ANSWER,
        "57P02": NO_ANSWER,
        "57P03": NO_ANSWER,
    }
)
"""Sentences by PostgreSQL error code (appendix A of its manual)."""
PRIMARY_CODE = 0xFF
_LOST_BEFORE = "8s2b"
"""SQLAlchemy's code of a transaction whose connection was lost in an earlier statement."""


def failure_of(error: BaseException | None) -> StoreUnavailable | None:
    """The error for callers if the database failed; None for every other error.

    The driver's message is logged, equal messages once a minute. Raise the result ``from`` the error.
    """
    said = _sentence(error)
    if said is None:
        return None
    detail = _detail(error)
    if (untold := _repeats.failed(said, detail)) is not None:
        log.warning("the database failed", told=said, error=detail, untold=untold)
    return StoreUnavailable(said)


@asynccontextmanager
async def failures_named() -> AsyncIterator[None]:
    """A context that raises StoreUnavailable if the database fails or does not answer in time."""
    try:
        yield
    except TimeoutError as error:
        raise StoreUnavailable(NO_ANSWER) from error
    except SQLAlchemyError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        raise failure from error


def _sentence(error: BaseException | None) -> str | None:
    if isinstance(error, PoolTimeoutError):
        return NO_CONNECTION
    if isinstance(error, PendingRollbackError):
        return NO_ANSWER if error.code == _LOST_BEFORE else None
    if not isinstance(error, DBAPIError):
        return None
    told = _by_code(error.orig)
    if told is not None:
        return told
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return NO_ANSWER
    if isinstance(error, OperationalError):
        return NO_ANSWER if isinstance(error.orig, psycopg.Error) else FAILED
    return None


def _by_code(cause: BaseException | None) -> str | None:
    if isinstance(cause, psycopg.Error):
        return _BY_SQLSTATE.get(cause.sqlstate or "")
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else _BY_SQLITE_CODE.get(code & PRIMARY_CODE)


def _detail(error: BaseException | None) -> str:
    """The driver's message, without the statement and its parameters."""
    return str(error.orig if isinstance(error, DBAPIError) else error)
