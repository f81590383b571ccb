"""Stored plans: guarded writes, pages, and which are current."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import ConcurrentChange, Conflict, InputError, NotFound
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.planning.comparison import AssumedPrices, Variant
from broker.domain.spend.approvals import Decision, Verdict
from broker.ports.planning import BusinessStatus, OtherPlans, PlanRecord, PlanState
from broker.store import Store
from tests import strategies
from tests.depth import examples
from tests.fakes.examples import a_plan
from tests.fakes.store import Tables
from tests.store.examples import HOUR, NOON, plan_record, reservation


async def add(store: Store, *records: PlanRecord) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for record in records:
            await unit.plans.add(record)
        await unit.commit()


async def current(store: Store, team: str | None = None) -> list[str]:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        return [record.plan_id for record in await unit.plans.find_current(team)]


@settings(max_examples=examples(8))
@given(strategies.plan_records)
async def test_any_record_comes_back_exactly(store: Store, drawn: PlanRecord) -> None:
    record = replace(drawn, plan_id=str(ULID()))
    await add(store, record)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.plans.find(record.plan_id) == record


async def test_an_update_moves_the_version_on(store: Store) -> None:
    await add(store, plan_record("p", state=PlanState.QUEUED))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        running = await unit.plans.update(replace(await unit.plans.find("p"), state=PlanState.RUNNING))
        failed = await unit.plans.update(replace(running, state=PlanState.FAILED, problem="no offers"))
        found = await unit.plans.find("p")
        await unit.commit()

    assert (running.version, failed.version) == (1, 2)
    assert found == failed


async def test_an_update_of_an_older_version_is_refused(store: Store) -> None:
    record = plan_record("p")
    await add(store, record)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.update(record)
        with pytest.raises(ConcurrentChange, match="plan p is not at version 0"):
            await unit.plans.update(record)


async def test_of_two_updates_at_once_one_wins(store: Store) -> None:
    await add(store, plan_record("p"))
    both_have_read = asyncio.Barrier(2)

    async def approve(who: str) -> str:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            record = await unit.plans.find("p")
            await both_have_read.wait()
            await unit.plans.update(replace(record, approved_by=who, approved_at=NOON))
            await unit.commit()
        return who

    outcomes = await asyncio.gather(approve("ann"), approve("bob"), return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, str)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, ConcurrentChange)]
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert [(await unit.plans.find("p")).approved_by] == winners
    assert len(losers) == 1


async def test_an_id_is_taken_once(store: Store) -> None:
    await add(store, plan_record("p"))

    with pytest.raises(Conflict, match="plan p already exists"):
        await add(store, plan_record("p"))


async def test_an_unknown_plan_is_not_found(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound, match="plan 'p' not found"):
            await unit.plans.find("p")


async def test_pages_follow_each_other_newest_first_without_gap_or_repeat(store: Store) -> None:
    records = [plan_record(f"p{n}", created_at=NOON + (n // 2) * HOUR) for n in range(5)]
    await add(store, *records, plan_record("other", team="ops"))

    seen, cursor = [], None
    async with store.unit_of_work(TeamScope("research")) as unit:
        for _ in range(3):
            page = await unit.plans.find_page(2, cursor)
            seen.append([record.plan_id for record in page.items])
            cursor = page.next_cursor
    async with store.unit_of_work(EVERY_TEAM) as unit:
        everyone = await unit.plans.find_page(10, None)

    assert seen == [["p4", "p3"], ["p2", "p1"], ["p0"]]
    assert cursor is None
    assert len(everyone.items) == 6


@pytest.mark.parametrize(
    "cursor", ["", "%%%", "bm90IGpzb24", "WzEsMl0", "W10", "é", "WyIyMDI2LTExLTIzIiwicCJd"]
)
async def test_an_unreadable_cursor_is_named(store: Store, cursor: str) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(InputError, match="cursor"):
            await unit.plans.find_page(10, cursor)


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


async def hold(store: Store, *rows: Reservation) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for row in rows:
            await unit.reservations.add(row)
        await unit.commit()


async def statuses(store: Store) -> dict[str, BusinessStatus]:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        records = (await unit.plans.find_page(100, None)).items
        return dict(await unit.plans.find_business_statuses(records))


def made(record: PlanRecord) -> PlanRecord:
    return replace(record, plan=a_plan(plan_id=record.plan_id))


async def test_what_holds_capacity_stays_in_force_whatever_is_planned_after_it(store: Store) -> None:
    """A plan of the same document takes nothing's place: what was made after the held one was reserved is a
    draft that buys a second time; what was made before, and left, is replaced."""
    held = replace(made(plan_record("held", "train")), reserved_at=NOON + 2 * HOUR)
    left = made(plan_record("left", "train", created_at=NOON + HOUR))
    again = made(plan_record("again", "train", created_at=NOON + 3 * HOUR))
    await add(store, held, left)
    await hold(store, reservation("r", plan_id="held"))
    assert await statuses(store) == {"held": BusinessStatus.RESERVED, "left": BusinessStatus.SUPERSEDED}

    await add(store, again)
    assert await current(store) == ["held"]
    assert await statuses(store) == {
        "held": BusinessStatus.RESERVED,
        "left": BusinessStatus.SUPERSEDED,
        "again": BusinessStatus.DRAFT,
    }
    async with store.unit_of_work(EVERY_TEAM) as unit:
        others = await unit.plans.find_others([held, left, again])
    assert others == {
        "held": OtherPlans(draft="again"),
        "left": OtherPlans(held="held", draft="again"),
        "again": OtherPlans(held="held"),
    }
    assert others["left"].replaced_by == "held"


async def test_a_draft_beside_what_is_held_counts_where_somebody_intends_it(store: Store) -> None:
    held = replace(made(plan_record("held", "train")), reserved_at=NOON)
    again = replace(made(plan_record("again", "train", created_at=NOON + HOUR)), intended_by="key-1")
    newest = made(plan_record("newest", "train", created_at=NOON + 2 * HOUR))
    await add(store, held, again, newest)
    await hold(store, reservation("r", plan_id="held"))

    assert await current(store) == ["again", "held"]
    assert (await statuses(store))["again"] is BusinessStatus.DRAFT
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.withdraw_intentions(held)
        assert not (await unit.plans.find("again")).is_intended
        assert [one.plan_id for one in await unit.plans.find_current()] == ["held"]


async def test_a_plan_that_took_the_place_of_one_that_holds_is_in_force(store: Store) -> None:
    moved = plan_record("moved", "train", created_at=NOON + HOUR, supersedes="held")
    held = replace(made(plan_record("held", "train")), reserved_at=NOON)
    await add(store, held, replace(made(moved), reserved_at=NOON))
    await add(store, made(plan_record("newer", "train", created_at=NOON + 2 * HOUR)))
    await hold(store, reservation("r", plan_id="held"))

    assert await current(store) == ["moved"]
    assert (await statuses(store))["moved"] is BusinessStatus.RESERVED


@pytest.mark.parametrize("state", [ReservationState.RELEASED, ReservationState.RELEASING])
async def test_a_plan_that_is_over_is_done_and_brings_no_older_draft_back(
    store: Store, state: ReservationState
) -> None:
    over = replace(made(plan_record("over", "train", created_at=NOON + HOUR)), reserved_at=NOON + HOUR)
    await add(store, made(plan_record("older", "train")), over)
    await hold(store, reservation("r", plan_id="over", state=state))

    assert await current(store) == []
    assert await statuses(store) == {"over": BusinessStatus.DONE, "older": BusinessStatus.SUPERSEDED}


async def test_a_rejected_plan_is_not_in_force(store: Store) -> None:
    no = Decision(Verdict.REJECTED, "finance", NOON)
    rejected = replace(made(plan_record("no", "train", created_at=NOON + HOUR)), needs_approval=True)
    waiting = replace(made(plan_record("ask", "chat")), needs_approval=True)
    await add(store, rejected.decided(no), waiting, made(plan_record("before", "train")))

    assert await current(store) == ["before", "ask"]
    assert await statuses(store) == {
        "no": BusinessStatus.REJECTED,
        "ask": BusinessStatus.WAITING,
        "before": BusinessStatus.DRAFT,
    }


async def test_records_that_did_not_change_are_not_read_again(store: Store) -> None:
    await add(store, made(plan_record("a", "train")), made(plan_record("b", "chat")))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        first = await unit.plans.find_current()
        await unit.plans.update(replace(first[0], intended_by="key-1"))
        second = await unit.plans.find_current(None, first)
    assert (second[0].is_intended, second[0].version) == (True, 1)
    assert second[1] is first[1]


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 6), max_size=6))
async def test_the_store_in_memory_and_that_in_a_database_agree(
    store: Store, drawn: list[tuple[int, int, int, int, int, int]]
) -> None:
    """Each tuple is a plan: its team and names, state, intention, predecessor, what became of it, and whether
    it is a variant."""
    ids = [str(ULID()) for _ in drawn]
    team = f"team-{ULID()}"
    records, rows = [], []
    for at, (names, state, wish, before, held, variant) in enumerate(drawn):
        record = plan_record(
            ids[at],
            *(["train"] if names % 2 else ["train", "chat"]),
            team=team,
            created_at=NOON + at * HOUR,
            state=PlanState.PROPOSED if state == 3 else PlanState.DONE,
            supersedes=ids[at - 1] if before == 3 and at else None,
        )
        record = replace(made(record), intended_by="key-1" if wish == 1 else None, needs_approval=wish > 1)
        if wish == 3:
            record = record.decided(Decision(Verdict.REJECTED, "finance", NOON))
        if variant == 3:
            record = replace(record, variant=Variant("compare-1", ids[0], "x", at))
        if held:
            record = replace(record, reserved_at=NOON)
            state_of = [ReservationState.ACTIVE, ReservationState.RELEASED, ReservationState.FAILED][held - 1]
            rows.append(reservation(str(ULID()), plan_id=ids[at], state=state_of, team=team))
        records.append(record)
    tables = Tables()
    async with tables.unit_of_work(EVERY_TEAM) as unit:
        for record in records:
            await unit.plans.add(record)
        for row in rows:
            await unit.reservations.add(row)
        await unit.commit()
    await add(store, *records)
    await hold(store, *rows)
    async with tables.unit_of_work(EVERY_TEAM) as unit:
        expected = [one.plan_id for one in await unit.plans.find_current(team)]
        stands = await unit.plans.find_business_statuses(records)
    assert await current(store, team) == expected
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.plans.find_business_statuses(records) == stands


async def test_a_variant_takes_no_plans_place_until_it_is_chosen(store: Store) -> None:
    variants = [
        replace(
            made(plan_record(f"variant-{at}", "chat", created_at=NOON + HOUR)),
            variant=Variant("compare-1", "base", name, at, AssumedPrices(Decimal("1.2")) if at else None),
        )
        for at, name in enumerate(("more traffic", "dearer"))
    ]
    await add(store, made(plan_record("base", "chat")), *reversed(variants))
    assert await current(store) == ["base"]
    assert await statuses(store) == dict.fromkeys(("base", "variant-0", "variant-1"), BusinessStatus.DRAFT)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.plans.find_comparison("compare-1")
        assert [record.plan_id for record in found] == ["variant-0", "variant-1"]
        assert [record.variant for record in found] == [record.variant for record in variants]
        await unit.plans.update(replace(found[0], intended_by="key-1"))
        await unit.commit()
    assert await current(store) == ["variant-0"]
    assert (await statuses(store))["base"] is BusinessStatus.SUPERSEDED

    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound, match="compare-2"):
            await unit.plans.find_comparison("compare-2")


async def test_only_a_done_plan_supersedes(store: Store) -> None:
    failed = plan_record("next", "chat", created_at=NOON + HOUR, state=PlanState.FAILED, supersedes="old")
    await add(store, plan_record("old", "train"), failed)

    assert await current(store) == ["old"]


async def test_cancelled_plans_are_found_and_never_taken_up(store: Store) -> None:
    states = {
        "a": PlanState.QUEUED,
        "b": PlanState.CANCELLED,
        "c": PlanState.RUNNING,
        "d": PlanState.CANCELLED,
    }
    await add(store, *(plan_record(name, state=state) for name, state in states.items()))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.plans.find_cancelled(("a", "b", "c", "unknown")) == ("b",)
        assert {record.plan_id for record in await unit.plans.claim_unfinished()} == {"a", "c"}


async def test_a_cancelled_plan_is_not_written_over(store: Store) -> None:
    await add(store, plan_record("p", state=PlanState.QUEUED))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        seen = await unit.plans.find("p")
        await unit.plans.update(replace(seen, state=PlanState.CANCELLED))
        await unit.commit()

    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(ConcurrentChange):
            await unit.plans.update(replace(seen, state=PlanState.DONE))
        assert (await unit.plans.find("p")).state is PlanState.CANCELLED


async def test_plans_that_wait_are_counted_by_age(store: Store) -> None:
    later = NOON + HOUR
    await add(
        store,
        plan_record("b", state=PlanState.QUEUED),
        plan_record("c", state=PlanState.QUEUED, team="other"),
        plan_record("a", state=PlanState.QUEUED, created_at=later),
        plan_record("done"),
    )
    async with store.unit_of_work(EVERY_TEAM) as unit:
        older = {name: await unit.plans.count_older_queued(await unit.plans.find(name)) for name in "abc"}
    assert older == {"b": 0, "c": 1, "a": 2}
