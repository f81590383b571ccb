"""Stored reservations: units, guarded writes, what is open, and what finance sees."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from ulid import ULID

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import ConcurrentChange, Conflict, NotFound
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState, Unit, UnitState
from broker.store import Store
from broker.store.holding.reservations import owed_span
from tests import strategies
from tests.depth import examples
from tests.store.examples import HOUR, NOON, offer, reservation


async def add(store: Store, *reservations: Reservation) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for one in reservations:
            await unit.reservations.add(one)
        await unit.commit()


@settings(max_examples=examples(8))
@given(strategies.reservations())
async def test_any_reservation_comes_back_exactly(store: Store, drawn: Reservation) -> None:
    stored = replace(drawn, reservation_id=str(ULID()))
    await add(store, stored)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.reservations.find(stored.reservation_id) == stored


async def test_an_update_replaces_units_and_moves_the_version_on(store: Store) -> None:
    await add(store, reservation("r"))
    units = (Unit(0, "tag-2", 1, UnitState.GONE), Unit(1, "tag-3", 2, UnitState.HELD, "i-3", NOON))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        before = await unit.reservations.find("r")
        written = await unit.reservations.update(replace(before, units=units, nodes=3))
        found = await unit.reservations.find("r")
        await unit.commit()

    assert written.version == 1
    assert found == written
    assert found.units == units


async def test_of_two_updates_at_once_one_wins(store: Store) -> None:
    await add(store, reservation("r"))
    both_have_read = asyncio.Barrier(2)

    async def release(reason: str) -> str:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            found = await unit.reservations.find("r")
            await both_have_read.wait()
            await unit.reservations.update(found.moved_to(ReservationState.RELEASING, reason))
            await unit.commit()
        return reason

    outcomes = await asyncio.gather(release("team"), release("finance"), return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, str)]
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.reservations.find("r")
    assert sum(isinstance(outcome, ConcurrentChange) for outcome in outcomes) == 1
    assert [found.reason] == winners
    assert len(found.units) == 1


async def test_an_id_is_taken_once_and_an_unknown_one_not_found(store: Store) -> None:
    await add(store, reservation("r"))

    with pytest.raises(Conflict, match="reservation r already exists"):
        await add(store, reservation("r"))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound, match="reservation 's' not found"):
            await unit.reservations.find("s")


async def test_pages_by_team_and_plan_count_reservations_not_units(store: Store) -> None:
    two_units = tuple(Unit(n, f"t{n}", 1, UnitState.HELD, f"i-{n}") for n in range(2))
    mine = [replace(reservation(f"r{n}", plan_id="p"), units=two_units) for n in range(3)]
    await add(store, *mine, reservation("other-plan"), reservation("theirs", team="ops", plan_id="p"))

    async with store.unit_of_work(TeamScope("research")) as unit:
        first = await unit.reservations.find_page(2, None, plan_id="p")
        second = await unit.reservations.find_page(2, first.next_cursor, plan_id="p")
    async with store.unit_of_work(EVERY_TEAM) as unit:
        everyone = await unit.reservations.find_page(10, None)

    assert first.items == (mine[2], mine[1])
    assert second.items == (mine[0],)
    assert second.next_cursor is None
    assert len(everyone.items) == 5


async def test_open_ones_come_oldest_first(store: Store) -> None:
    everything = [
        reservation(f"r{n}", state=state, created_at=NOON - n * HOUR)
        for n, state in enumerate(ReservationState)
    ]
    await add(store, *everything)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.reservations.find_open()

    assert found == tuple(one for one in reversed(everything) if one.state in OPEN_STATES)


async def test_what_was_never_held_is_nobodys_spend(store: Store) -> None:
    failed = reservation("failed", state=ReservationState.FAILED, reference=None)
    bought = reservation("bought", state=ReservationState.RELEASED)
    await add(store, failed, bought, reservation("held", state=ReservationState.HELD, reference=None))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.reservations.find_overlapping(None)

    assert {one.reservation_id for one in found} == {"bought", "held"}


@pytest.mark.parametrize(
    ("first_hour", "last_hour", "touches"),
    [(-2, 0, False), (-2, 1, True), (1, 2, True), (2, 3, False)],
)
async def test_windows_that_touch_do_not_overlap(
    store: Store, first_hour: int, last_hour: int, touches: bool
) -> None:
    await add(store, reservation("r", state=ReservationState.RELEASED))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        window = Window(NOON + first_hour * HOUR, NOON + last_hour * HOUR)
        found = await unit.reservations.find_overlapping(window)

    assert bool(found) is touches


async def test_an_open_one_has_no_end_in_sight(store: Store) -> None:
    await add(store, reservation("overrun"), reservation("endless", end=None))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.reservations.find_overlapping(Window(NOON + 99 * HOUR, NOON + 100 * HOUR))

    assert {one.reservation_id for one in found} == {"overrun", "endless"}


def test_money_is_owed_to_the_end_of_the_minimum_term_and_increment() -> None:
    released = replace(
        reservation("r", state=ReservationState.RELEASED, end=None),
        active_at=NOON + timedelta(minutes=10),
        released_at=NOON + timedelta(minutes=40),
    )
    committed = replace(released, offer=replace(offer(), min_hours=720.0))

    assert owed_span(released) == (NOON, NOON + timedelta(minutes=70))
    assert owed_span(committed) == (NOON, NOON + timedelta(minutes=10, hours=720))


async def test_a_reason_that_quotes_a_provider_can_be_stored(store: Store) -> None:
    await add(store, replace(reservation("r"), reason="out of \x00 capacity"))

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert (await unit.reservations.find("r")).reason == "out of \ufffd capacity"


async def test_what_was_seen_is_noted_beside_the_version(store: Store) -> None:
    seen_at = NOON + timedelta(hours=1)
    await add(store, reservation("r"), reservation("other"))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.note_seen([("r", 0)], seen_at)
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found, other = await unit.reservations.find("r"), await unit.reservations.find("other")
        assert (found.units[0].seen_at, other.units[0].seen_at) == (seen_at, None)
        assert found.version == 0
        kept = await unit.reservations.update(found)
        assert (await unit.reservations.find("r")).units[0].seen_at == seen_at
        assert kept.version == 1


async def test_what_is_being_written_is_not_waited_for(store: Store) -> None:
    if store._engine.dialect.name != "postgresql":
        pytest.skip("one writer at a time")
    await add(store, reservation("r"))
    async with store.unit_of_work(EVERY_TEAM) as writing, store.unit_of_work(EVERY_TEAM) as noting:
        await writing.reservations.update(await writing.reservations.find("r"))
        async with asyncio.timeout(60):
            await noting.reservations.note_seen([("r", 0)], NOON)
            await noting.commit()
        await writing.commit()


async def test_lost_orders_are_found_by_what_their_units_say(store: Store) -> None:
    """Failed, ordered, never answered: neither a refusal, nor what was held, nor what is long over."""
    gone = Unit(0, "tag", 1, UnitState.GONE, ordered_at=NOON, gone_at=NOON + HOUR)
    failed = replace(reservation("rsv-0"), state=ReservationState.FAILED, released_at=NOON + HOUR)
    rows = {
        "lost": replace(failed, units=(gone,)),
        "refused": replace(failed, units=(replace(gone, gone_at=None),)),
        "held": replace(failed, units=(replace(gone, reference="i-1"),)),
        "old": replace(failed, units=(gone,), released_at=NOON - HOUR),
        "open": replace(failed, units=(gone,), state=ReservationState.PENDING),
    }
    await add(store, *(replace(row, reservation_id=f"rsv-{name}") for name, row in rows.items()))
    async with store.unit_of_work(EVERY_TEAM) as uow:
        assert [row.reservation_id for row in await uow.reservations.find_lost(NOON)] == ["rsv-lost"]


async def test_tries_come_back(store: Store) -> None:
    row = replace(reservation("rsv-0"), tries=7, tried_at=NOON + HOUR)
    await add(store, row)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        found = await uow.reservations.find(row.reservation_id)
    assert (found.tries, found.tried_at) == (7, NOON + HOUR)


async def test_a_reservation_is_found_by_what_its_tags_begin_with(store: Store) -> None:
    rows = [
        replace(reservation(name), units=(Unit(0, tag, 1, UnitState.PLANNED),))
        for name, tag in (("r", "broker-i-abc-0-1"), ("s", "broker-i-abcd-0-1"), ("t", "broker-i-a_c-0-1"))
    ]
    await add(store, *rows)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = [
            [row.reservation_id for row in await unit.reservations.find_of_tags(stem)]
            for stem in ("broker-i-abc-", "broker-i-a_c-", "broker-i-x-")
        ]
    assert found == [["r"], ["t"], []]
