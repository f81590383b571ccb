"""Several broker processes on one database: stock in turns, claims of rows, taken-over keys, one leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice

import psycopg
import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import create_async_engine

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry, IdempotencyKey, RememberedAnswer
from broker.domain.basics.errors import ConcurrentChange, LeadershipLost, OverQuota
from broker.domain.holding.holding_orders import Intent, free_nodes
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel
from broker.domain.planning.workload import Quota
from broker.ports.planning import PlanState
from broker.services.planning.quota_gate import QuotaGate
from broker.store import Store, create_store
from broker.store.leader import STUCK_S, Leadership, LockedLeadership, find_epoch
from broker.store.unit_of_work import written_in
from tests.postgres import PostgresServer
from tests.store.examples import HOUR, NOON, offer, plan_record, reservation

ASKED = RememberedAnswer("research", "k", "POST /v1/reservations", "cd" * 32, NOON)
CLAIM = IdempotencyKey(ASKED.team, ASKED.key, ASKED.route)


@pytest.fixture
async def pair(postgres_server: PostgresServer, migrated_postgres: str) -> AsyncIterator[tuple[Store, Store]]:
    """Two stores on one PostgreSQL database, as two processes would open it; both are alive."""
    url = postgres_server.create_database(migrated_postgres)
    stores = create_store(url), create_store(url)
    for store in stores:
        await store.say_alive()
    yield stores
    for store in stores:
        await store.close()
    postgres_server.drop_database(url)


async def take(store: Store, wish: Intent, name: str, *quotas: Quota) -> bool:
    """Reserves as the service does: asks what is left, and what quotas leave, then stores the intent."""
    async with store.unit_of_work(EVERY_TEAM) as unit:
        try:
            known = await QuotaGate(quotas).find_competing(unit, [wish], "research", None)
        except OverQuota:
            return False
        free = free_nodes(wish, known)
        if free is not None and free < wish.nodes:
            return False
        planned = Unit(0, f"broker-ab-{name}-0-1", wish.nodes, UnitState.PLANNED)
        taken = reservation(name, state=ReservationState.PENDING, start=wish.start, end=wish.end)
        await unit.reservations.add(replace(taken, offer=wish.offer, nodes=wish.nodes, units=(planned,)))
        await unit.commit()
    return True


def wish(of: Offer, nodes: int = 1, start: datetime = NOON, end: datetime | None = None) -> Intent:
    return Intent(of, nodes, start, end)


async def test_many_takers_in_two_processes_get_what_there_is(pair: tuple[Store, Store]) -> None:
    stocked = offer(stock=Stock(StockLevel.HIGH, 5))
    got = await asyncio.gather(*(take(pair[n % 2], wish(stocked), f"r{n}") for n in range(24)))
    assert sum(got) == 5


async def test_a_quota_is_taken_in_turns_across_offers(pair: tuple[Store, Store]) -> None:
    offers = [offer(name, gpus_per_node=8, stock=Stock(StockLevel.HIGH)) for name in ("a", "b", "c")]
    quota = Quota(offers[0].provider, gpus=40)
    wishes = [wish(offers[n % 3]) for n in range(18)]
    got = await asyncio.gather(*(take(pair[n % 2], w, f"r{n}", quota) for n, w in enumerate(wishes)))
    assert sum(got) == 5


async def test_sizes_cut_from_one_pool_are_taken_together(pair: tuple[Store, Store]) -> None:
    pool = Stock(StockLevel.HIGH, 2, GpuPool("p", 16))
    big = offer("big", gpus_per_node=8, stock=pool)
    small = offer("small", gpus_per_node=4, stock=replace(pool, nodes=4))
    wishes = [wish(big if n % 2 else small) for n in range(16)]
    got = await asyncio.gather(*(take(pair[n // 2 % 2], w, f"r{n}") for n, w in enumerate(wishes)))
    gpus = sum(w.offer.sku.gpus_per_node for w, taken in zip(wishes, got, strict=True) if taken)
    assert gpus == 16


async def test_sellers_of_one_data_centre_sell_its_gpus_once(pair: tuple[Store, Store]) -> None:
    """Each seller counts the same 16 GPUs; what is taken at one is taken from the other."""
    pool = Stock(StockLevel.HIGH, 2, GpuPool("verda/FIN-02/H100-SXM-80GB/on_demand", 16))
    own = offer("own", provider="verda", stock=pool)
    resold = offer("resold", provider="prime_intellect", stock=replace(pool, nodes=None))
    wishes = [wish(own if n % 2 else resold) for n in range(8)]
    got = await asyncio.gather(*(take(pair[n // 2 % 2], w, f"r{n}") for n, w in enumerate(wishes)))
    assert sum(got) == 2


async def test_windows_that_do_not_meet_are_sold_beside_each_other(store: Store) -> None:
    stocked = offer(stock=Stock(StockLevel.HIGH, 2))
    morning = [wish(stocked, 1, NOON, NOON + 2 * HOUR) for _ in range(3)]
    evening = [wish(stocked, 1, NOON + 2 * HOUR, NOON + 4 * HOUR) for _ in range(3)]
    got = await asyncio.gather(*(take(store, w, f"r{n}") for n, w in enumerate([*morning, *evening])))
    assert (sum(got[:3]), sum(got[3:])) == (2, 2)
    assert not await take(store, wish(stocked, 1, NOON + HOUR, NOON + 3 * HOUR), "across")


async def claim(store: Store, reservation_id: str) -> bool:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        claimed = await unit.reservations.claim(reservation_id)
        await unit.commit()
    return claimed


async def add(store: Store, row: Reservation) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.add(row)
        await unit.commit()


async def test_a_row_is_claimed_by_one_until_it_dies(pair: tuple[Store, Store]) -> None:
    first, second = pair
    await add(first, reservation("r"))
    assert [await claim(first, "r"), await claim(second, "r"), await claim(first, "r")] == [True, False, True]
    await first.say_gone()
    assert await claim(second, "r")
    await first.say_alive()
    assert not await claim(first, "r")


async def test_a_row_that_another_is_claiming_is_passed_over(pair: tuple[Store, Store]) -> None:
    first, second = pair
    await add(first, reservation("r"))
    async with first.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.reservations.claim("r")
        assert not await asyncio.wait_for(claim(second, "r"), 60)


async def test_a_purchase_is_left_to_who_makes_it_until_its_next_state(pair: tuple[Store, Store]) -> None:
    first, second = pair
    await add(first, reservation("r", state=ReservationState.PENDING))
    assert not await claim(second, "r")
    async with first.unit_of_work(EVERY_TEAM) as unit:
        row = await unit.reservations.find("r")
        await unit.reservations.update(row.moved_to(ReservationState.HELD))
        await unit.commit()
    assert await claim(second, "r")


async def test_unfinished_plans_are_inherited_from_the_dead_alone(pair: tuple[Store, Store]) -> None:
    first, second = pair
    async with first.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("p", state=PlanState.RUNNING))
        await unit.plans.add(plan_record("done"))
        await unit.commit()

    async def inherit(store: Store) -> list[str]:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            found = await unit.plans.claim_unfinished()
            await unit.commit()
        return [record.plan_id for record in found]

    assert (await inherit(second), await inherit(first)) == ([], ["p"])
    await first.say_gone()
    assert await inherit(second) == ["p"]


async def remember(store: Store) -> RememberedAnswer | None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        standing = await unit.accounts.remember(ASKED)
        await unit.commit()
    return standing


async def take_over(store: Store) -> tuple[str, ...] | None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        effects = await unit.accounts.take_over(CLAIM)
        await unit.commit()
    return effects


async def bind(store: Store, *effects: str) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.bind(CLAIM, effects)
        await unit.commit()


async def test_a_key_goes_to_one_heir_with_what_was_stored_under_it(pair: tuple[Store, Store]) -> None:
    first, second = pair
    assert await remember(first) is None
    await bind(first, "r1")
    await bind(first, "r2")
    assert await take_over(second) is None
    await first.say_gone()
    assert await take_over(second) == ("r1", "r2")
    with pytest.raises(ConcurrentChange, match="taken over by another process"):
        await bind(first, "r3")
    async with first.unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.complete(replace(ASKED, status=500, body="late", headers="{}"))
        await unit.accounts.forget(ASKED.team, ASKED.key, ASKED.route)
        await unit.commit()
    standing = await remember(first)
    assert standing is not None
    assert standing.status is None


async def test_a_key_that_is_let_go_is_forgotten_unless_something_was_stored(store: Store) -> None:
    for effects in ((), ("r1",)):
        assert await remember(store) is None
        if effects:
            await bind(store, *effects)
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.accounts.let_go(CLAIM)
            await unit.commit()
    assert await remember(store) is not None
    assert await take_over(store) == ("r1",)


async def test_work_of_an_older_epoch_is_not_written(store: Store) -> None:
    seat = store.seat()
    first, second = await seat.take(), await seat.take()
    assert (first, second) == (1, 2)
    with written_in(first), pytest.raises(LeadershipLost, match="of epoch 1; it is epoch 2 now"):
        await add(store, reservation("late"))
    with written_in(second):
        await add(store, reservation("in-time"))
    await add(store, reservation("asked-for"))
    await seat.leave()

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.reservations.find_open()
    assert {row.reservation_id for row in found} == {"in-time", "asked-for"}


async def taken(seat: Leadership) -> int:
    """The epoch, once the server has noticed that the one before is gone."""
    async with asyncio.timeout(60):
        while (epoch := await seat.take()) is None:
            await asyncio.sleep(0.02)
    return epoch


async def test_one_of_two_has_the_seat_and_the_next_has_the_next_epoch(pair: tuple[Store, Store]) -> None:
    first, second = (store.seat() for store in pair)
    epoch = await first.take()
    assert epoch == 1
    assert await second.take() is None
    assert not await second.has_passed()
    await first.tell_passed()
    assert await second.has_passed()
    await first.keep()

    await first.leave()
    assert await taken(second) == 2
    assert not await second.has_passed()
    with pytest.raises(LeadershipLost):
        await first.keep()
    await second.keep()
    for seat in (first, second):
        await seat.leave()
        await seat.leave()


async def test_the_next_leader_waits_for_a_commit_of_the_one_before(pair: tuple[Store, Store]) -> None:
    """So nothing of an older epoch is ever written after the first write of a newer one."""
    first, second = (store.seat() for store in pair)
    epoch = await first.take()
    with written_in(epoch):
        async with pair[0].unit_of_work(EVERY_TEAM) as unit:
            await unit.reservations.add(reservation("r"))
            assert await find_epoch(unit._session) == epoch
            await first.leave()
            taking = asyncio.create_task(taken(second))
            await asyncio.sleep(0.3)
            assert not taking.done()
            await unit.commit()
    assert await taking == 2
    with written_in(epoch), pytest.raises(LeadershipLost):
        await add(pair[0], reservation("late"))
    await second.leave()


def renewals(database_url: str) -> Iterator[datetime]:
    """When the session that has the seat began a statement, each time that it began another."""
    asked = "SELECT query_start FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory'"
    deadline, before = time.monotonic() + 60, None
    with psycopg.connect(database_url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            found = connection.execute(asked).fetchone()
            assert found is not None, "nobody has the seat any more"
            if found[0] != before:
                before = found[0]
                yield before
    raise AssertionError("the seat was not renewed")


async def test_the_seat_is_renewed_while_the_loop_stands_still_and_no_connection_is_free(
    pair: tuple[Store, Store],
) -> None:
    seat, engine = pair[0].seat(), pair[0]._engine
    assert await seat.take() == 1
    held = [await engine.connect() for _ in range(15)]  # all that its pool gives
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    assert len(list(islice(renewals(url), 3))) == 3  # nothing else runs in this loop meanwhile
    await seat.keep()
    other = pair[1].seat()
    assert await other.take() is None
    for connection in held:
        await connection.close()
    await seat.leave()
    await other.leave()


async def test_a_process_whose_loop_stands_still_for_long_gives_the_seat_up(
    pair: tuple[Store, Store],
) -> None:
    at_s = [0.0]
    engine = create_async_engine(pair[0]._engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    stuck, other = LockedLeadership(engine, "stuck", now=lambda: at_s[0]), pair[1].seat()
    assert await stuck.take() == 1
    at_s[0] += STUCK_S
    assert await other.take() is None
    at_s[0] += 1
    assert await taken(other) == 2
    with pytest.raises(LeadershipLost, match="stood still for 61 s"):
        await stuck.keep()
    for seat in (stuck, other):
        await seat.leave()


async def kept_for_ever(seat: Leadership) -> None:
    while True:
        await seat.keep()
        await asyncio.sleep(0.02)


async def test_who_loses_the_seat_with_its_connection_is_told_and_takes_it_again(
    pair: tuple[Store, Store], postgres_server: PostgresServer
) -> None:
    seat, engine = pair[0].seat(), pair[0]._engine
    assert await seat.take() == 1
    postgres_server.end_connections(engine.url.set(drivername="postgresql").render_as_string(False))
    async with asyncio.timeout(60):
        with pytest.raises(LeadershipLost, match="the database does not answer"):
            await kept_for_ever(seat)
    assert await taken(seat) == 2
    await seat.leave()


async def ask_for_plan(store: Store, name: str, team: str, allowed: int) -> bool:
    """Asks for a plan as the service does: stores the wish, then counts what the team has on its way."""
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record(name, "a", "b", team=team, state=PlanState.QUEUED))
        plans, workloads = await unit.plans.count_on_their_way(team)
        if plans > allowed:
            return False
        assert workloads == 2 * plans
        await unit.commit()
    return True


async def test_a_team_passes_its_limit_of_plans_at_no_process(pair: tuple[Store, Store]) -> None:
    wishes = [(f"{team}-{n}", team) for n in range(12) for team in ("research", "product")]
    asked = (ask_for_plan(pair[n % 2], name, team, 4) for n, (name, team) in enumerate(wishes))
    assert sum(await asyncio.gather(*asked)) == 8


async def test_a_team_passes_its_limit_of_plans_by_no_request(store: Store) -> None:
    asked = await asyncio.gather(*(ask_for_plan(store, f"p-{n}", "research", 4) for n in range(12)))
    assert sum(asked) == 4
    async with store.unit_of_work(EVERY_TEAM) as unit:
        done = await unit.plans.find(f"p-{asked.index(True)}")
        await unit.plans.update(replace(done, state=PlanState.CANCELLED))
        assert await unit.plans.count_on_their_way("research") == (3, 6)
        assert await unit.plans.count_on_their_way("product") == (0, 0)


async def test_events_are_taken_by_one_process_alone(pair: tuple[Store, Store]) -> None:
    """Who takes events that another is about to finish would tell of objects in an order of its own."""

    async def taken_later() -> int:
        async with pair[1].unit_of_work(EVERY_TEAM) as unit:
            return len(await unit.webhooks.take_events(10))

    async with pair[0].unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.add_audit(AuditEntry(NOON, "a", "plan.done", "plan", "p1", "research"))
        await unit.commit()
    async with pair[0].unit_of_work(EVERY_TEAM) as unit:
        assert len(await unit.webhooks.take_events(10)) == 1
        later = asyncio.create_task(taken_later())
        async with pair[0]._engine.connect() as watching:
            while not await watching.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not later.done(), "it does not wait"
                await asyncio.sleep(0.01)
        await unit.commit()
    assert await later == 0


async def test_orders_that_ask_budgets_wait_for_those_of_other_processes(pair: tuple[Store, Store]) -> None:
    """What the first stores counts in the budget that the second asks."""

    async def ordered_later() -> None:
        async with pair[1].unit_of_work(EVERY_TEAM) as unit:
            await unit.reservations.take_turn()

    async with pair[0].unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.take_turn()
        later = asyncio.create_task(ordered_later())
        async with pair[0]._engine.connect() as watching:
            while not await watching.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not later.done(), "it does not wait"
                await asyncio.sleep(0.01)
    await later
