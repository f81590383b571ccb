"""Files that keep a secret: for their owner alone, from their first instant."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.domain.basics.errors import InputError
from broker.settings import data_folder
from broker.store.accounts.key_files import local_key_file, read_secret, write_secret


def test_what_is_written_is_read_and_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "key"
    assert read_secret(file).secret is None
    before = os.umask(0)
    try:
        for secret in ("first", "second"):
            write_secret(file, secret)
            assert (read_secret(file).secret, read_secret(file).is_private) == (secret, True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]
    assert "second" not in repr(read_secret(file))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_what_others_could_read_is_told(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    write_secret(file, "secret")
    file.chmod(mode)
    assert not read_secret(file).is_private
    write_secret(file, "other")
    assert read_secret(file).is_private


def test_a_link_a_folder_and_what_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(InputError, match=f"{name}: .*a file of the user who runs the broker"):
            read_secret(tmp_path / name)
    with pytest.raises(InputError):
        write_secret(tmp_path / "folder", "secret")
    with pytest.raises(InputError):
        write_secret(tmp_path / "target" / "key", "secret")
    write_secret(tmp_path / "link", "new")
    assert (tmp_path / "target").read_text() == "secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "target"]


def test_the_file_is_beside_a_sqlite_file_and_one_a_database_of_a_server() -> None:
    assert local_key_file("sqlite+aiosqlite:////a/b.db") == Path("/a/b.db.admin-key")
    one = local_key_file("postgresql://ada:secret@db.example:5432/broker")
    assert one.parent == data_folder() / "admin-keys"
    assert one == local_key_file("postgresql+psycopg://bob:other@db.example:5432/broker")
    assert one != local_key_file("postgresql://ada:secret@db.example:5432/other")
    for word in ("ada", "secret", "example"):
        assert word not in str(one.name)
