"""One sandbox market and one broker server, as real processes, for all that talks to a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.processes import clean_environment, start_sandbox, start_server

KEY = "broker_live_client_0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Served:
    """A running broker: its address, a key that may do everything, and its market's address."""

    url: str
    market_url: str
    key: str = KEY

    @property
    def environment(self) -> dict[str, str]:
        """What a program finds that is to talk to it."""
        return clean_environment(BROKER_URL=self.url, BROKER_KEY=self.key)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Real processes on a SQLite file."""
    folder = tmp_path_factory.mktemp("served")
    sandbox = start_sandbox(folder)
    try:
        database = f"sqlite:///{folder / 'broker.db'}"
        server = start_server(
            folder, sandbox.url, database, KEY, BROKER_POLL_SECONDS="3600", BROKER_PLAN_TIME_LIMIT_S="4"
        )
        try:
            yield Served(server.url, sandbox.url)
        finally:
            server.stop()
    finally:
        sandbox.stop()
