"""Whatever goes wrong in whatever order: once faults stop, ledger and tables agree."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import BrokerError
from broker.domain.holding.reservation import Idempotency, ReservationState
from broker.domain.planning.workload import WorkloadKind
from tests.depth import examples
from tests.fakes.examples import ALICE, a_placement, a_plan, a_segment, an_offer, slot_terms
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

FAULTS = {
    "reserve": list(Fault),
    "release": [Fault.NONE, Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.CRASH_BEFORE, Fault.CRASH],
    "list": [Fault.NONE, Fault.DOWN],
    "find": [Fault.NONE, Fault.DOWN],
}
STEP = st.one_of(
    st.tuples(
        st.just("fault"), st.sampled_from([(op, fault) for op, many in FAULTS.items() for fault in many])
    ),
    st.tuples(st.sampled_from(["plan", "offer", "later", "release", "reconcile"]), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.integers(1, 90)),
)


async def _plan(house: House, number: int) -> None:
    now = house.clock.now()
    run, fleet = an_offer("run", observed_at=now), an_offer("fleet", "3", observed_at=now)
    slots = an_offer("slots", window=slot_terms(now, 48), observed_at=now)
    house.sell(run, fleet, slots)
    plan_id = f"plan-{len(house.tables.plans)}"
    placements = [
        a_placement(run, [a_segment(0, 2, 2, now)]),
        a_placement(fleet, [a_segment(0, 1, 1, now), a_segment(1, 3, 2, now)], "chat", WorkloadKind.SERVING),
        a_placement(slots, [a_segment(1, 4, 1, now)], "batch"),
    ]
    house.store_plan(a_plan(*placements[: 1 + number % 3], plan_id=plan_id, as_of=now))
    await house.reservations.reserve_plan(ALICE, plan_id)


async def _step(house: House, name: str, value: object) -> None:
    match name, value:
        case "fault", (operation, fault):
            house.provider.fail(str(operation), Fault(str(fault)))
        case "advance", int(minutes):
            house.clock.advance(minutes=minutes)
        case "plan", int(number):
            await _plan(house, number)
        case "offer", int(number):
            house.sell(an_offer("one", observed_at=house.clock.now()))
            await house.reservations.reserve_offer(ALICE, "one", 1 + number % 2)
        case "later", int(number):
            house.sell(an_offer("one", observed_at=house.clock.now()))
            start = house.clock.now() + timedelta(minutes=20 * (1 + number))
            await house.reservations.reserve_offer(ALICE, "one", 1, start, start + timedelta(hours=1))
        case "release", int(number):
            if house.rows():
                row = house.rows()[number % len(house.rows())]
                await house.reservations.release(ALICE, row.reservation_id)
        case _:
            await house.reconcile.run_once()


async def _live(house: House, steps: list[tuple[str, object]]) -> None:
    for name, value in steps:
        try:
            await _step(house, name, value)
        except Crash:
            house.restart()
        except BrokerError:
            continue
    house.provider.faults.clear()
    await house.settle(25)
    for _ in range(3):
        await house.reconcile.run_once()


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    steps=st.lists(STEP, min_size=1, max_size=25),
    idempotency=st.sampled_from(Idempotency),
    provision_s=st.sampled_from([0, 300]),
    visible_after_s=st.sampled_from([0, 60]),
)
def test_ledger_and_tables_agree_once_faults_stop(
    steps: list[tuple[str, object]], idempotency: Idempotency, provision_s: int, visible_after_s: int
) -> None:
    house = House(idempotency=idempotency)
    house.provider.provision_s = provision_s
    house.provider.visible_after_s = visible_after_s
    asyncio.run(_live(house, steps))
    house.assert_agreement()
    in_doubt = {ReservationState.PENDING, ReservationState.UNKNOWN, ReservationState.RELEASING}
    assert not in_doubt & set(house.states())
    writes = house.provider.writes()
    asyncio.run(house.reconcile.run_once())
    assert house.provider.writes() == writes, "a reconciler at rest writes nothing"
