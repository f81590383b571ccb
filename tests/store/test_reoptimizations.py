"""Stored re-optimizations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from ulid import ULID

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.store import Store
from tests import strategies
from tests.depth import examples
from tests.store.examples import HOUR, NOON


async def add(store: Store, *reoptimizations: Reoptimization) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for one in reoptimizations:
            await unit.reoptimizations.add(one)
        await unit.commit()


@settings(max_examples=examples(8))
@given(strategies.reoptimizations)
async def test_any_comes_back_exactly(store: Store, drawn: Reoptimization) -> None:
    stored = replace(drawn, reoptimization_id=str(ULID()), team=str(ULID()))
    await add(store, stored)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        page = await unit.reoptimizations.find_page(stored.team, 10, None)

    assert page.items == (stored,)


async def test_pages_come_newest_first(store: Store) -> None:
    many = [
        Reoptimization(f"x{n}", "research", "p", "price", NOON + n * HOUR, ProposalState.UNCHANGED)
        for n in range(3)
    ]
    await add(store, *many, replace(many[0], reoptimization_id="y", team="ops"))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        first = await unit.reoptimizations.find_page("research", 2, None)
        second = await unit.reoptimizations.find_page("research", 2, first.next_cursor)
        everyone = await unit.reoptimizations.find_page(None, 10, None)

    assert [*first.items, *second.items] == many[::-1]
    assert second.next_cursor is None
    assert len(everyone.items) == 4


async def test_an_id_is_taken_once(store: Store) -> None:
    one = Reoptimization("x", "research", "p", "price", NOON, ProposalState.UNCHANGED)
    await add(store, one)

    with pytest.raises(Conflict, match="re-optimization x already exists"):
        await add(store, one)
