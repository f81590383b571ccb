"""A market and a lab for each test: what one sells is not sold out, or over, because of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.sandbox import SandboxHandle
from tests.faults.broker_life import standing_market
from tests.faults.lab import Lab, postgres_databases, sqlite_files
from tests.postgres import PostgresServer


@pytest.fixture
def market() -> Iterator[SandboxHandle]:
    """A sandbox market, its clock this test's own to move."""
    handle = standing_market(seed=11)
    yield handle
    handle.stop()


@pytest.fixture
def lab(market: SandboxHandle, migrated_sqlite: Path, tmp_path: Path) -> Iterator[Lab]:
    """Broker processes that may die, on SQLite files."""
    made = Lab(tmp_path, sqlite_files(tmp_path, migrated_sqlite), market.url)
    yield made
    made.close()


@pytest.fixture
def lab_on_postgres(
    market: SandboxHandle, postgres_server: PostgresServer, migrated_postgres: str, tmp_path: Path
) -> Iterator[Lab]:
    """Broker processes that may die, on PostgreSQL databases."""
    made = Lab(tmp_path, postgres_databases(postgres_server, migrated_postgres), market.url)
    yield made
    made.close()
