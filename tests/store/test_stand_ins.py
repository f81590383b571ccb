"""The store in memory, which tests of services use, has the calls of the store that it stands in for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from broker.domain.basics.access import EVERY_TEAM
from broker.store.engine import create_store
from tests.fakes.store import InMemoryUnitOfWork, Tables


def calls(repository: object) -> dict[str, list[tuple[str, Any, Any]]]:
    """Public methods with their parameters: name, kind and type."""
    return {
        name: [(one.name, one.kind, one.annotation) for one in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(repository, inspect.ismethod)
        if not name.startswith("_")
    }


async def test_stand_ins_have_the_calls_of_the_store(tmp_path: Path) -> None:
    store = create_store(f"sqlite:///{tmp_path / 'broker.db'}")
    real = vars(store.unit_of_work(EVERY_TEAM))
    standing_in = {
        name: repository
        for name, repository in vars(InMemoryUnitOfWork(Tables(), EVERY_TEAM)).items()
        if not name.startswith("_") and name != "scope"
    }
    assert {"offers", "plans", "reservations", "accounts", "rollups"} <= standing_in.keys()
    for name, repository in standing_in.items():
        stored = calls(real[name])
        for call, parameters in calls(repository).items():
            assert parameters == stored[call], f"{name}.{call}"
    await store.close()
