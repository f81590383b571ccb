from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.house import Home, House


@pytest.fixture
def house(tmp_path: Path, migrated_sqlite: Path) -> House:
    """A house on a migrated file of the test's own."""
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    return House(tmp_path / "broker.db")


@pytest.fixture
async def home(house: House) -> AsyncIterator[Home]:
    """A living application with no timetable, polled once."""
    async with house.open() as living:
        yield living
