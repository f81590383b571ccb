import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.basics.identity import make_tag
from broker.domain.holding.reservation import Idempotency, Lease, Order, ReservationState
from broker.domain.market.offer import CancelRule
from broker.domain.planning.workload import WorkloadKind
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, a_placement, a_plan, a_segment, an_offer, listed_terms, slot_terms
from tests.fakes.provider import Crash, FakeProvider, Fault
from tests.services.conftest import GRACE, House

S = ReservationState
EVERY_CLASS = pytest.mark.parametrize("idempotency", list(Idempotency))


def two_part_plan(house: House) -> None:
    run, fleet = an_offer("run", "10"), an_offer("fleet", "3")
    house.sell(run, fleet)
    house.store_plan(
        a_plan(
            a_placement(run, [a_segment(0, 10, 2)]),
            a_placement(fleet, [a_segment(0, 8)], "chat", WorkloadKind.SERVING),
        )
    )


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
@pytest.mark.parametrize("idempotency", [Idempotency.TAG, Idempotency.TOKEN])
async def test_a_lost_answer_is_found_out(idempotency: Idempotency, fault: Fault) -> None:
    house = House(idempotency=idempotency)
    house.sell(an_offer())
    house.provider.fail("reserve", fault, fault)
    await house.reservations.reserve_offer(ALICE, "o-1", 2)
    await house.settle()
    assert house.states() == [S.ACTIVE]
    assert len(house.provider.open_instances()) == 2
    house.assert_agreement()


async def test_a_provider_that_cannot_say_fails_closed_and_the_sweep_cleans_up() -> None:
    house = House(idempotency=Idempotency.NEITHER)
    house.sell(an_offer())
    house.provider.visible_after_s = 600
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(2)
    assert house.states() == [S.FAILED]
    assert len(house.provider.open_instances()) == 1
    await house.settle(12)
    assert house.provider.open_instances() == []


@EVERY_CLASS
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_plan_goes_on_after_a_crash_at_any_order(idempotency: Idempotency, at: int) -> None:
    house = House(idempotency=idempotency)
    two_part_plan(house)
    house.provider.fail("reserve", *[Fault.NONE] * at, Fault.CRASH)
    with pytest.raises(Crash):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    house.restart()
    await house.settle()
    assert house.states() == [S.ACTIVE, S.ACTIVE]
    assert len(house.provider.ledger) == 3
    house.assert_agreement()


@EVERY_CLASS
async def test_a_refusal_after_a_crash_gives_the_whole_plan_back(idempotency: Idempotency) -> None:
    house = House(idempotency=idempotency)
    two_part_plan(house)
    house.provider.fail("reserve", Fault.NONE, Fault.CRASH, Fault.NO_CAPACITY, Fault.NO_CAPACITY)
    with pytest.raises(Crash):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    house.restart()
    await house.settle()
    assert set(house.states()) <= {S.FAILED, S.RELEASED}
    assert house.provider.open_instances() == []


async def test_a_worker_that_is_still_buying_is_left_alone(house: House) -> None:
    two_part_plan(house)
    house.provider.fail("reserve", Fault.CRASH)
    with pytest.raises(Crash):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    report = await house.reconcile.run_once()
    assert report.actions == ()
    assert house.provider.writes() == 1


async def test_capacity_that_fails_after_the_order_gives_the_plan_back(house: House) -> None:
    house.provider.provision_s = 300
    two_part_plan(house)
    house.provider.fail("reserve", Fault.NONE, Fault.NO_CAPACITY_LATER)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    await house.settle()
    assert set(house.states()) <= {S.FAILED, S.RELEASED}
    assert house.provider.open_instances() == []


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.DOWN])
async def test_a_machine_whose_installation_failed_is_released(house: House, fault: Fault) -> None:
    """The seller lists it as failed and goes on billing it: nothing is usable, and nobody else ends it."""
    house.provider.provision_s = 600
    house.sell(an_offer())
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    (instance,) = house.provider.ledger
    house.provider.ledger[0] = replace(instance, failed=True)
    house.provider.fail("release", fault)
    await house.settle(3)
    assert house.provider.open_instances() == []
    assert house.states() == [S.FAILED]


async def test_what_is_held_becomes_active_and_ends_with_its_time(house: House) -> None:
    house.provider.provision_s = 300
    two_part_plan(house)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert {row.state for row in rows} == {S.HELD}
    await house.settle(3)
    assert set(house.states()) == {S.ACTIVE}
    writes = house.provider.writes()
    await house.settle(5)
    assert house.provider.writes() == writes, "a reconciler at rest writes nothing"
    house.clock.advance(hours=10)
    await house.settle(2)
    assert set(house.states()) == {S.RELEASED}
    assert house.provider.open_instances() == []


async def test_what_is_scheduled_is_bought_when_due_and_retried_while_there_is_none(house: House) -> None:
    house.sell(an_offer())
    start = NOON + timedelta(hours=1)
    await house.reservations.reserve_offer(ALICE, "o-1", 1, start, start + timedelta(hours=4))
    await house.settle(5)
    assert house.provider.ledger == []
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    house.clock.advance(hours=1)
    await house.reconcile.run_once()
    assert (house.states(), house.rows()[0].reason) == ([S.SCHEDULED], "fake: no stock")
    await house.settle(1)
    assert house.states() == [S.ACTIVE]
    house.assert_agreement()


async def test_what_never_came_fails_at_the_end_of_its_time(house: House) -> None:
    house.sell(an_offer())
    start = NOON + timedelta(hours=1)
    await house.reservations.reserve_offer(ALICE, "o-1", 1, start, start + timedelta(hours=1))
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 50)
    house.clock.advance(hours=1)
    await house.settle(25)
    assert house.states() == [S.FAILED]


async def test_release_while_provisioning_is_asked_again(house: House) -> None:
    house.provider.provision_s = 600
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is S.RELEASING
    await house.settle(2)
    assert house.states() == [S.RELEASING]
    assert "provisioning" in house.rows()[0].reason
    await house.settle(4)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.CRASH])
async def test_a_release_that_went_wrong_is_finished(house: House, fault: Fault) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    house.provider.fail("release", fault)
    try:
        await house.reservations.release(ALICE, row.reservation_id)
    except Crash:
        house.restart()
    await house.settle(4)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


async def test_a_block_ends_by_itself(house: House) -> None:
    house.provider.per_order = None
    house.sell(an_offer("block", window=listed_terms(NOON + timedelta(hours=1), 4), stock=None))
    row = await house.reservations.reserve_offer(ALICE, "block", 2)
    await house.settle(2)
    assert house.states() == [S.SCHEDULED]
    house.clock.advance(hours=2)
    await house.settle(1)
    assert house.states() == [S.ACTIVE]
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(2)
    assert house.states() == [S.RELEASING]
    house.clock.advance(hours=4)
    await house.settle(2)
    assert house.states() == [S.RELEASED]
    assert "release" not in house.provider.calls


async def test_a_window_that_can_be_left_is_released_early(house: House) -> None:
    house.sell(an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.ANY_TIME), stock=None))
    row = await house.reservations.reserve_offer(
        ALICE, "slots", 1, NOON + timedelta(hours=1), NOON + timedelta(hours=9)
    )
    await house.reservations.release(ALICE, row.reservation_id)
    assert house.states() == [S.RELEASED]


async def test_strays_are_released_after_their_grace_and_others_leases_never(house: House) -> None:
    house.sell(an_offer())
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    for tag in (make_tag("test", "rsv-lost", 0), "somebody-else", make_tag("other", "rsv-lost", 0)):
        await house.provider.reserve(Order(tag, an_offer(), 1))
    report = await house.reconcile.run_once()
    assert [lease.tag for lease in report.orphans] == [make_tag("test", "rsv-lost", 0)]
    assert report.released == ()
    house.clock.advance(seconds=GRACE.total_seconds())
    report = await house.reconcile.run_once()
    assert len(report.released) == 1
    assert len(house.provider.open_instances()) == 3
    assert [line.action for line in house.tables.audit[-2:]] == ["lease.release_stray", "reservation.gone"]


async def test_a_double_of_a_held_lease_is_a_stray(house: House) -> None:
    house.sell(an_offer())
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.provider.reserve(Order(house.provider.ledger[0].tag, an_offer(), 1))
    await house.settle(8)
    house.assert_agreement()


async def test_the_sweep_reports_only_and_knows_its_cap(house: House) -> None:
    for ordinal in range(3):
        await house.provider.reserve(Order(make_tag("test", "rsv-lost", ordinal), an_offer(), 1))
    parts = house.parts()
    watching = ReconcileService(*parts, rules=ReconcileRules(orphan_grace=timedelta(0), report_only=True))
    report = await watching.run_once()
    assert (len(report.orphans), report.released) == (3, ())
    capped = ReconcileService(*parts, rules=ReconcileRules(orphan_grace=timedelta(0), max_orphans=2))
    report = await capped.run_once()
    assert (len(report.released), report.alarm) == (2, True)


class Silent(FakeProvider):
    async def list_leases(self) -> Sequence[Lease]:
        await asyncio.Event().wait()
        return ()


async def test_nobody_waits_for_a_provider_whose_list_does_not_come(house: House) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    house.provider.preempt(row.provider_references[0])
    reservers = {"fake": house.provider, "silent": Silent(house.clock, provider="silent")}
    parts = house.parts(reservers)
    service = ReconcileService(*parts, rules=ReconcileRules(list_limit_s=0.05, second_look=timedelta(0)))
    async with asyncio.timeout(60):
        report = await service.run_once()
    assert [action for _, action in report.actions] == ["Lost"]
    assert [unread.provider for unread in report.unread] == ["silent"]


async def test_a_provider_that_cannot_be_listed_is_left_alone(house: House) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    house.provider.preempt(row.provider_references[0])
    house.provider.fail("list", Fault.DOWN)
    report = await house.reconcile.run_once()
    assert report.errors == ("fake: down",)
    assert house.states() == [S.ACTIVE]
    house.provider.fail("find", Fault.DOWN)
    report = await house.reconcile.run_once()
    assert report.actions[0][1] == "failed"
    assert house.states() == [S.ACTIVE]


async def test_a_paused_worker_that_wakes_late_leaves_no_double(house: House) -> None:
    """Its order is sent after the reconciler has given it up and bought under another tag."""
    house.sell(an_offer())
    real = house.provider.reserve

    async def paused(order: Order) -> object:
        house.provider.reserve = real  # type: ignore[method-assign]
        await house.settle(4)
        return await real(order)

    house.provider.reserve = paused  # type: ignore[method-assign, assignment]
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert row.state is S.ACTIVE
    assert len(house.provider.ledger) == 2
    house.assert_agreement()


async def test_a_release_that_overtakes_an_order_wins(house: House) -> None:
    house.sell(an_offer())
    real = house.provider.reserve

    async def slow(order: Order) -> object:
        await house.reservations.release(ALICE, house.rows()[0].reservation_id)
        return await real(order)

    house.provider.reserve = slow  # type: ignore[method-assign, assignment]
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(3)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


async def test_an_un_cancellable_window_waits_for_what_must_be_bought_first(house: House) -> None:
    block = an_offer("block", "40", window=listed_terms(NOON + timedelta(hours=1), 24))
    fleet = replace(an_offer("fleet", "3"))
    house.sell(block, fleet)
    house.store_plan(
        a_plan(
            a_placement(block, [a_segment(1, 25, 2)]),
            a_placement(fleet, [a_segment(0, 8)], "chat", WorkloadKind.SERVING),
        )
    )
    house.provider.fail("reserve", Fault.LOST_BEFORE, Fault.NO_CAPACITY)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    await house.settle()
    assert house.provider.ledger == []
    assert set(house.states()) == {S.FAILED}
