"""One process per SQLite file: an advisory lock on a file beside it, which ends with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from broker.domain.basics.errors import Conflict

_held_here: set[Path] = set()


class FileLock:
    """Holds a lock on ``<database>.lock`` until it is released or the process ends.

    Symbolic links are resolved first. Raises Conflict if another process has the lock, and for a file with
    several hard links.

    It is a POSIX record lock, which forked worker processes do not inherit; workers that outlive a killed
    broker do not block the next one. The system would grant it twice within one process, so this class
    records which locks the process holds.
    """

    def __init__(self, database: Path) -> None:
        real = database.resolve()
        if real.exists() and real.stat().st_nlink > 1:
            raise Conflict(
                f"the database {database} has {real.stat().st_nlink} hard links, but the lock that keeps "
                "other brokers away depends on the file's name; remove all links but one"
            )
        self._path = real.with_name(real.name + ".lock")
        if self._path in _held_here:
            raise _in_use(database, str(os.getpid()))
        self._file = self._path.open("a+")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            raise _in_use(database, holder) from error
        _held_here.add(self._path)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Releases the lock. Releasing it twice is no error."""
        if not self._file.closed:
            _held_here.discard(self._path)
            self._file.close()


def holder_of(database: Path) -> str | None:
    """The id of the process that holds the lock of ``database``; None if none does."""
    real = database.resolve()
    path = real.with_name(real.name + ".lock")
    if path in _held_here:
        return str(os.getpid())
    try:
        with path.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return file.read().strip() or "unknown"
    except OSError:
        return None
    return None


def _in_use(database: Path, holder: str) -> Conflict:
    return Conflict(
        f"the database {database} is in use by process {holder or 'unknown'}: a SQLite file serves one "
        "broker at a time. Stop that one, or give BROKER_DATABASE_URL another file or a PostgreSQL URL"
    )
