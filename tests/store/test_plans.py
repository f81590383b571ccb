"""Stored plans: guarded writes, pages, and which are current."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from ulid import ULID

from broker.domain.errors import ConcurrentChange, Conflict, InputError, NotFound
from broker.plan_ports import PlanRecord, PlanState
from broker.store import Store
from tests import strategies
from tests.depth import examples
from tests.store.examples import HOUR, NOON, plan_record


async def add(store: Store, *records: PlanRecord) -> None:
    async with store.unit_of_work() as unit:
        for record in records:
            await unit.plans.add(record)
        await unit.commit()


async def current(store: Store, team: str | None = None) -> list[str]:
    async with store.unit_of_work() as unit:
        return [record.plan_id for record in await unit.plans.find_current(team)]


@settings(max_examples=examples(8))
@given(strategies.plan_records)
async def test_any_record_comes_back_exactly(store: Store, drawn: PlanRecord) -> None:
    record = replace(drawn, plan_id=str(ULID()))
    await add(store, record)

    async with store.unit_of_work() as unit:
        assert await unit.plans.find(record.plan_id) == record


async def test_an_update_moves_the_version_on(store: Store) -> None:
    await add(store, plan_record("p", state=PlanState.QUEUED))

    async with store.unit_of_work() as unit:
        running = await unit.plans.update(replace(await unit.plans.find("p"), state=PlanState.RUNNING))
        failed = await unit.plans.update(replace(running, state=PlanState.FAILED, problem="no offers"))
        found = await unit.plans.find("p")
        await unit.commit()

    assert (running.version, failed.version) == (1, 2)
    assert found == failed


async def test_an_update_of_an_older_version_is_refused(store: Store) -> None:
    record = plan_record("p")
    await add(store, record)

    async with store.unit_of_work() as unit:
        await unit.plans.update(record)
        with pytest.raises(ConcurrentChange, match="plan p is not at version 0"):
            await unit.plans.update(record)


async def test_of_two_updates_at_once_one_wins(store: Store) -> None:
    await add(store, plan_record("p"))
    both_have_read = asyncio.Barrier(2)

    async def approve(who: str) -> str:
        async with store.unit_of_work() as unit:
            record = await unit.plans.find("p")
            await both_have_read.wait()
            await unit.plans.update(replace(record, approved_by=who, approved_at=NOON))
            await unit.commit()
        return who

    outcomes = await asyncio.gather(approve("ann"), approve("bob"), return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, str)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, ConcurrentChange)]
    async with store.unit_of_work() as unit:
        assert [(await unit.plans.find("p")).approved_by] == winners
    assert len(losers) == 1


async def test_an_id_is_taken_once(store: Store) -> None:
    await add(store, plan_record("p"))

    with pytest.raises(Conflict, match="plan p exists already"):
        await add(store, plan_record("p"))


async def test_an_unknown_plan_is_not_found(store: Store) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(NotFound, match="plan 'p' not found"):
            await unit.plans.find("p")


async def test_pages_follow_each_other_newest_first_without_gap_or_repeat(store: Store) -> None:
    records = [plan_record(f"p{n}", created_at=NOON + (n // 2) * HOUR) for n in range(5)]
    await add(store, *records, plan_record("other", team="ops"))

    seen, cursor = [], None
    async with store.unit_of_work() as unit:
        for _ in range(3):
            page = await unit.plans.find_page("research", 2, cursor)
            seen.append([record.plan_id for record in page.items])
            cursor = page.next_cursor
        everyone = await unit.plans.find_page(None, 10, None)

    assert seen == [["p4", "p3"], ["p2", "p1"], ["p0"]]
    assert cursor is None
    assert len(everyone.items) == 6


@pytest.mark.parametrize(
    "cursor", ["", "%%%", "bm90IGpzb24", "WzEsMl0", "W10", "é", "WyIyMDI2LTExLTIzIiwicCJd"]
)
async def test_an_unreadable_cursor_is_named(store: Store, cursor: str) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(InputError, match="cursor"):
            await unit.plans.find_page(None, 10, cursor)


async def test_current_is_the_newest_done_plan_of_each_team_and_set_of_workloads(store: Store) -> None:
    await add(
        store,
        plan_record("old", "train", "chat"),
        plan_record("new", "chat", "train", created_at=NOON + HOUR),
        plan_record("running", "chat", "train", created_at=NOON + 2 * HOUR, state=PlanState.RUNNING),
        plan_record("proposal", "chat", "train", created_at=NOON + 3 * HOUR, state=PlanState.PROPOSED),
        plan_record("alone", "chat"),
        plan_record("theirs", "chat", "train", team="ops"),
    )

    assert await current(store) == ["theirs", "new", "alone"]
    assert await current(store, "research") == ["new", "alone"]
    assert await current(store, "nobody") == []


async def test_a_superseded_plan_is_not_current_and_brings_no_older_one_back(store: Store) -> None:
    await add(
        store,
        plan_record("oldest", "train"),
        plan_record("old", "train", created_at=NOON + HOUR),
        plan_record("next", "train", "chat", created_at=NOON + 2 * HOUR, supersedes="old"),
    )

    assert await current(store) == ["next"]


async def test_only_a_done_plan_supersedes(store: Store) -> None:
    failed = plan_record("next", "chat", created_at=NOON + HOUR, state=PlanState.FAILED, supersedes="old")
    await add(store, plan_record("old", "train"), failed)

    assert await current(store) == ["old"]
