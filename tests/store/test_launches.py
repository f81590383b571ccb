"""Our launches in the store."""

from __future__ import annotations

from dataclasses import replace

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.launches import LaunchOutcome
from broker.store import Store
from tests.domain.test_launches import tried
from tests.store.examples import HOUR, NOON


async def test_a_reservation_counts_once_for_each_outcome(store: Store) -> None:
    first = tried(LaunchOutcome.NO_CAPACITY)
    again = replace(first, asked_at=NOON, due_at=NOON)
    usable = tried(LaunchOutcome.USABLE)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.launches.add([first])
        await unit.launches.add([again, usable])
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert set(await unit.launches.find_since(NOON - HOUR)) == {first, usable}
        assert await unit.launches.find_since(NOON) == ()
