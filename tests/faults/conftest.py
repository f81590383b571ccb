"""A market and a lab for each test: what one sells is not sold out, or over, because of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.sandbox import SandboxHandle
from tests.faults.broker_life import standing_market
from tests.faults.lab import Lab


@pytest.fixture
def market() -> Iterator[SandboxHandle]:
    """A sandbox market, its clock this test's own to move."""
    handle = standing_market(seed=11)
    yield handle
    handle.stop()


@pytest.fixture
def lab(market: SandboxHandle, migrated_sqlite: Path, tmp_path: Path) -> Iterator[Lab]:
    """Broker processes that may die, on SQLite files."""
    made = Lab(tmp_path, migrated_sqlite, market.url)
    yield made
    made.close()
