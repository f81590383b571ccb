"""One process a SQLite file: an advisory lock beside it that ends with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from broker.domain.basics.errors import Conflict

_held_here: set[Path] = set()


class FileLock:
    """Holds ``<database>.lock`` until released or the process ends, however it ends.

    The name is that of the file itself, whatever symbolic link led there. Conflict where another process has
    it, and for a file of several names.

    A POSIX record lock: worker processes that are forked do not inherit it, so a killed broker
    whose workers linger does not block the next. The system grants it again within one process,
    hence the set of those held here.
    """

    def __init__(self, database: Path) -> None:
        real = database.resolve()
        if real.exists() and real.stat().st_nlink > 1:
            raise Conflict(
                f"the database {database} has {real.stat().st_nlink} names (hard links), and the lock that "
                "keeps other brokers away goes by the name: remove all but one"
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
        """Lets others in; twice is no error."""
        if not self._file.closed:
            _held_here.discard(self._path)
            self._file.close()


def _in_use(database: Path, holder: str) -> Conflict:
    return Conflict(
        f"the database {database} is in use by process {holder or 'unknown'}: a SQLite file serves one "
        "broker at a time. Stop that one, or give BROKER_DATABASE_URL another file or a PostgreSQL URL"
    )
