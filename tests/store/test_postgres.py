"""The server that the tests start: no network port, good for other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.postgres import PostgresServer

CONNECT = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    print(connection.execute("SHOW listen_addresses").fetchone()[0] or "no network")
"""


def test_another_process_reaches_it_by_its_url(postgres_url_factory: Callable[[], str]) -> None:
    url = postgres_url_factory()
    command = [sys.executable, "-c", CONNECT, url]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert answer.stdout == "no network\n"


def test_it_ends_when_stopped() -> None:
    server = PostgresServer()
    process = server._server.get_postmaster_info().process
    server.stop()

    assert not process.is_running() or process.status() == "zombie"
    assert not server._folder.exists()
