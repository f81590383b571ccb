"""Files with a secret, which only their owner can read."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import make_url

from broker.domain.basics.errors import FieldProblem, InputError
from broker.settings import data_folder

OWNER_ONLY, OTHERS = 0o600, 0o077
LONGEST_SECRET_BYTES = 4096


def local_key_file(database_url: str) -> Path:
    """Path of the local administrator's key of a database.

    It is beside a SQLite file. For a server it is in the user's data folder, with a hash of the database's
    location.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        file = Path(url.database or "")
        return file.with_name(f"{file.name}.admin-key")
    place = json.dumps([url.host, url.port, url.database, dict(url.query)], sort_keys=True)
    return data_folder() / "admin-keys" / hashlib.sha256(place.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class KeptSecret:
    """The secret of a file (None: there is no file), and whether only its owner can read it."""

    secret: str | None = field(default=None, repr=False)
    is_private: bool = True


def read_secret(path: Path) -> KeptSecret:
    """The secret in ``path``. Raises InputError for a link, a folder, or a file of another user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return KeptSecret()
    except OSError as error:
        raise _not_ours(path, error.strerror or "not a file") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_ours(path, "not a regular file")
        if found.st_uid != os.geteuid():
            raise _not_ours(path, f"a file of user {found.st_uid}")
        text = os.read(descriptor, LONGEST_SECRET_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    return KeptSecret(text or None, is_private=not stat.S_IMODE(found.st_mode) & OTHERS)


def write_secret(path: Path, secret: str) -> None:
    """Writes a file that only its owner can ever read. Raises InputError if it cannot be written."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWNER_ONLY)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{secret}\n")
            made.replace(path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_ours(path, error.strerror or "a file that cannot be written") from error


def _not_ours(path: Path, found: str) -> InputError:
    expected = "a file of the user who runs the broker, or none; move this one away"
    return InputError(str(path), (FieldProblem("", found, expected),))
