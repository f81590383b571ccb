"""Where the sandbox keeps its state: one SQLite file, or memory.

Write-ahead log, and every answer leaves after its transaction committed: a killed sandbox comes back
as it was.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS instances (
  ordinal INTEGER PRIMARY KEY AUTOINCREMENT,
  provider TEXT NOT NULL, instance_id TEXT NOT NULL, stock_key TEXT NOT NULL,
  over_at_us INTEGER, body TEXT NOT NULL, UNIQUE (provider, instance_id));
CREATE TABLE IF NOT EXISTS documents (
  kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS calls (
  provider TEXT NOT NULL, operation TEXT NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (provider, operation));
"""


class Store:
    """Settings, ledger rows, JSON documents by (kind, name), and counts of calls.

    ``folder`` None keeps everything in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        path = ":memory:" if folder is None else str(folder / "sandbox.sqlite3")
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside last together, or none does when an exception leaves."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def setting(self, name: str) -> str | None:
        """A setting's value, or None."""
        row = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def keep_setting(self, name: str, value: str) -> None:
        """Sets a setting."""
        self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def next_number(self, name: str) -> int:
        """1, 2, 3 … per ``name``."""
        number = int(self.setting(f"number:{name}") or 0) + 1
        self.keep_setting(f"number:{name}", str(number))
        return number

    def put_row(
        self, provider: str, instance_id: str, stock_key: str, over_at_us: int | None, body: dict[str, Any]
    ) -> None:
        """Writes one ledger row; ``over_at_us``: epoch microseconds from which it holds nothing."""
        self._db.execute(
            "INSERT INTO instances (provider, instance_id, stock_key, over_at_us, body) VALUES (?,?,?,?,?)"
            " ON CONFLICT (provider, instance_id) DO UPDATE SET"
            " stock_key = excluded.stock_key, over_at_us = excluded.over_at_us, body = excluded.body",
            (provider, instance_id, stock_key, over_at_us, json.dumps(body)),
        )

    def rows(self, provider: str | None = None, live_after_us: int | None = None) -> list[dict[str, Any]]:
        """Bodies of ledger rows, oldest first; ``live_after_us`` leaves out what was over by then."""
        found = self._db.execute(
            "SELECT body FROM instances WHERE (?1 IS NULL OR provider = ?1)"
            " AND (?2 IS NULL OR over_at_us IS NULL OR over_at_us > ?2) ORDER BY ordinal",
            (provider, live_after_us),
        )
        return [json.loads(body) for (body,) in found]

    def row(self, provider: str, instance_id: str) -> dict[str, Any] | None:
        """One ledger row's body."""
        found = self._db.execute(
            "SELECT body FROM instances WHERE provider = ? AND instance_id = ?", (provider, instance_id)
        ).fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def put_document(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """Writes a document, replacing one of the same kind and name."""
        self._db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, name, json.dumps(body)))

    def document(self, kind: str, name: str) -> dict[str, Any] | None:
        """A document, or None."""
        found = self._db.execute(
            "SELECT body FROM documents WHERE kind = ? AND name = ?", (kind, name)
        ).fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def documents(self, kind: str) -> dict[str, dict[str, Any]]:
        """All documents of a kind by name, oldest first."""
        found = self._db.execute("SELECT name, body FROM documents WHERE kind = ? ORDER BY rowid", (kind,))
        return {name: json.loads(body) for name, body in found}

    def drop_document(self, kind: str, name: str) -> None:
        """Removes a document if it is there."""
        self._db.execute("DELETE FROM documents WHERE kind = ? AND name = ?", (kind, name))

    def drop_expired(self, kind: str, now: datetime) -> None:
        """Removes the documents of a kind whose ``expires`` is over."""
        for name, body in self.documents(kind).items():
            if datetime.fromisoformat(body["expires"]) <= now:
                self.drop_document(kind, name)

    def count_call(self, provider: str, operation: str) -> None:
        """Adds one call."""
        self._db.execute(
            "INSERT INTO calls VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
            (provider, operation),
        )

    def calls(self) -> dict[tuple[str, str], int]:
        """Calls so far by (provider, operation)."""
        found = self._db.execute("SELECT provider, operation, count FROM calls ORDER BY 1, 2")
        return {(provider, operation): count for provider, operation, count in found}
