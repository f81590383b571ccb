"""A market and a lab for each test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.sandbox import SandboxHandle
from tests.faults.broker_life import standing_market
from tests.faults.lab import Lab


@pytest.fixture(scope="session")
def market() -> Iterator[SandboxHandle]:
    """A sandbox market, its clock this process's own to move."""
    handle = standing_market(seed=11)
    yield handle
    handle.stop()


@pytest.fixture(scope="session")
def lab(
    market: SandboxHandle, migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Broker processes that may die, on SQLite files."""
    made = Lab(tmp_path_factory.mktemp("lab"), migrated_sqlite, market.url)
    yield made
    made.close()
