from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import (
    ApprovalRequired,
    Conflict,
    InputError,
    InsufficientCapacity,
    NotFound,
    NotPermitted,
    OrderRejected,
    OverBudget,
    StalePlan,
)
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, ReservationState
from broker.domain.market.offer import CancelRule
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.services.holding.reservations import ReservationsService
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ADMIN,
    ALICE,
    BOB,
    READER,
    a_placement,
    a_plan,
    a_request,
    a_segment,
    an_offer,
    listed_terms,
    slot_terms,
)
from tests.fakes.provider import Fault
from tests.services.conftest import House

ACTIVE, HELD, SCHEDULED = ReservationState.ACTIVE, ReservationState.HELD, ReservationState.SCHEDULED
FAILED, RELEASED = ReservationState.FAILED, ReservationState.RELEASED
SERVING = WorkloadKind.SERVING


def fleet_plan(house: House) -> Plan:
    """A run of two nodes now, and a fleet that grows from one node to two after four hours."""
    run, fleet = an_offer("run", "10"), an_offer("fleet", "3")
    house.sell(run, fleet)
    plan = a_plan(
        a_placement(run, [a_segment(0, 10, 2)]),
        a_placement(fleet, [a_segment(0, 4, 1), a_segment(4, 8, 2)], "chat", SERVING),
    )
    house.store_plan(plan)
    return plan


async def test_a_plan_is_held_and_what_starts_later_waits(house: House) -> None:
    fleet_plan(house)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert {(row.workload, row.nodes, row.state) for row in rows} == {
        ("chat", 1, SCHEDULED),
        ("chat", 1, ACTIVE),
        ("train", 2, ACTIVE),
    }
    assert len(house.provider.open_instances()) == 3
    assert all(i.tag.startswith("broker-test-rsv-") for i in house.provider.ledger)
    house.assert_agreement()


async def test_every_intent_is_stored_before_the_first_call(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    actions = [entry.action for entry in house.tables.audit]
    assert actions[:3] == ["reservation.intend"] * 3
    assert actions[3:5] == ["reservation.order", "reservation.held"]
    assert {entry.actor for entry in house.tables.audit} == {"key-alice"}


async def test_refused_capacity_leaves_nothing_held_and_says_what_it_cost(house: House) -> None:
    fleet_plan(house)
    house.provider.fail("reserve", Fault.NONE, Fault.NONE, Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity, match=r"no stock\. .* given back; cost \$13\.00"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.provider.open_instances() == []
    assert set(house.states()) <= {FAILED, RELEASED}
    assert "reservation.failed" in house.notifier.events()


async def test_a_window_that_nobody_takes_back_is_bought_last(house: House) -> None:
    block = an_offer("block", "40", window=listed_terms(NOON + timedelta(hours=1), 24), upfront="1920")
    free, fleet = an_offer("free", "9", window=slot_terms(NOON, 24)), an_offer("fleet", "3")
    house.sell(block, free, fleet)
    plan = a_plan(
        a_placement(block, [a_segment(1, 25, 2)]),
        a_placement(fleet, [a_segment(0, 8)], "chat", SERVING),
        a_placement(free, [a_segment(2, 6)], "other"),
    )
    house.store_plan(plan)
    house.provider.per_order = None
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert [instance.sku for instance in house.provider.ledger] == ["sku-free", "sku-fleet", "sku-block"]
    windows = [instance.window for instance in house.provider.ledger]
    assert windows[1] is None
    assert windows[2] is not None
    assert windows[2].hours == 24


async def test_the_dear_window_is_not_bought_when_the_cheap_part_fails(house: House) -> None:
    block = an_offer("block", "40", window=listed_terms(NOON + timedelta(hours=1), 24), upfront="1920")
    fleet = an_offer("fleet", "3")
    house.sell(block, fleet)
    house.store_plan(
        a_plan(
            a_placement(block, [a_segment(1, 25, 2)]),
            a_placement(fleet, [a_segment(0, 8)], "chat", SERVING),
        )
    )
    house.provider.fail("reserve", Fault.REJECTED)
    with pytest.raises(OrderRejected, match=r"cost \$0\.00"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.provider.ledger == []
    assert house.provider.calls.count("reserve") == 1


async def test_prices_past_the_tolerance_make_a_plan_stale(house: House) -> None:
    plan = fleet_plan(house)
    house.sell(an_offer("run", "10.5"))
    with pytest.raises(StalePlan, match=r"run .*\$200\.00 and costs \$210\.00"):
        await house.reservations.reserve_plan(ALICE, plan.plan_id)
    house.sell(an_offer("run", "10.1"))
    assert await house.reservations.reserve_plan(ALICE, plan.plan_id)


async def test_an_offer_that_went_away_makes_a_plan_stale(house: House) -> None:
    fleet_plan(house)
    del house.tables.offers["run"]
    with pytest.raises(StalePlan, match=r"run .* is no longer on sale"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.tables.reservations == {}


async def test_a_plan_over_the_limit_waits_for_finance(house: House) -> None:
    plan = fleet_plan(house)
    house.store_plan(plan, needs_approval=True)
    with pytest.raises(ApprovalRequired, match="waits for approval") as refused:
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert "approve" in refused.value.problems[0].expected


async def test_a_plan_is_not_reserved_twice_nor_by_others(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    with pytest.raises(Conflict, match="already"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    with pytest.raises(NotFound):
        await house.reservations.reserve_plan(BOB, "plan-1")
    with pytest.raises(NotPermitted):
        await house.reservations.reserve_plan(READER, "plan-1")
    assert len(house.provider.ledger) == 3


@pytest.mark.parametrize(
    ("now_usd", "budget", "refused"),
    [
        ("10", "236", False),
        ("10", "235.99", True),
        ("10.1", "238", False),  # $2 dearer than planned, which the tolerance allows
        ("10.1", "237.99", True),
        ("10.1", "236", True),  # the plan as it was made would fit
        ("9", "216", False),  # and here it would not
        ("9", "215.99", True),
    ],
)
async def test_a_budget_holds_at_todays_prices(
    house: House, now_usd: str, budget: str, refused: bool
) -> None:
    assert fleet_plan(house).cost_usd == 236
    house.sell(an_offer("run", now_usd))
    house.request = a_request(budget=budget)
    service = ReservationsService(*house.parts(), read_request=lambda document: house.request)
    if not refused:
        assert await service.reserve_plan(ALICE, "plan-1")
        return
    with pytest.raises(OverBudget, match=rf"\$\d+\.00 now, the budget is \${Decimal(budget):.2f}"):
        await service.reserve_plan(ALICE, "plan-1")
    assert house.provider.ledger == []


async def test_a_run_that_begins_late_keeps_its_length_within_patience(house: House) -> None:
    run = an_offer("run", "10")
    house.sell(run)
    house.store_plan(a_plan(a_placement(run, [a_segment(0, 10)])))
    house.clock.advance(minutes=30)
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert row.end == NOON + timedelta(hours=10, minutes=30)
    house.store_plan(a_plan(a_placement(run, [a_segment(0, 10)]), plan_id="plan-2"))
    house.clock.advance(hours=1)
    with pytest.raises(StalePlan, match="should have started"):
        await house.reservations.reserve_plan(ALICE, "plan-2")


async def test_a_fleet_whose_time_is_over_is_not_reserved_as_nothing(house: House) -> None:
    house.sell(an_offer("fleet", "10"))
    served = a_placement(an_offer("fleet", "10"), [a_segment(0, 10)], kind=WorkloadKind.SERVING)
    house.store_plan(a_plan(served))
    house.clock.advance(hours=10)
    with pytest.raises(StalePlan, match="all that plan plan-1 holds is over"):
        await house.reservations.reserve_plan(ALICE, "plan-1")


@pytest.mark.parametrize("idempotency", [Idempotency.TAG, Idempotency.NEITHER])
async def test_a_lost_answer_stops_the_buying(idempotency: Idempotency) -> None:
    house = House(idempotency=idempotency)
    fleet_plan(house)
    house.provider.fail("reserve", Fault.LOST_AFTER)
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert [row.state for row in rows].count(ReservationState.UNKNOWN) == 1
    assert len(house.provider.ledger) == 1


async def test_a_token_makes_the_same_call_safe_at_once() -> None:
    house = House(idempotency=Idempotency.TOKEN)
    fleet_plan(house)
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert ReservationState.UNKNOWN not in house.states()
    assert len(house.provider.ledger) == 3
    house.assert_agreement()


async def test_one_offer_is_held_until_it_is_released(house: House) -> None:
    house.sell(an_offer("o-1", stock=4))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2, workload="dev")
    assert (row.state, row.end, len(row.provider_references)) == (ACTIVE, None, 2)
    with pytest.raises(NotFound):
        await house.reservations.release(BOB, row.reservation_id)
    house.clock.advance(minutes=5)
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is RELEASED
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is RELEASED
    assert house.provider.open_instances() == []
    assert house.provider.calls.count("release") == 2


async def test_what_is_not_bought_yet_just_ends(house: House) -> None:
    house.sell(an_offer("o-1"))
    start = house.clock.now() + timedelta(hours=2)
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, start, start + timedelta(hours=1))
    assert row.state is SCHEDULED
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is RELEASED
    assert house.provider.calls == []


async def test_a_window_that_cannot_be_cancelled_says_so_and_waits_for_its_end(house: House) -> None:
    block = an_offer("block", "40", window=listed_terms(NOON + timedelta(hours=1), 24), upfront="1920")
    house.sell(block)
    row = await house.reservations.reserve_offer(ALICE, "block", 1)
    left = await house.reservations.release(ALICE, row.reservation_id)
    assert left.state is ReservationState.RELEASING
    assert "stays paid" in left.reason
    assert "release" not in house.provider.calls
    assert (await house.reservations.release(ALICE, row.reservation_id)) == left


async def test_stock_is_not_sold_twice(house: House) -> None:
    offer = an_offer("o-1", stock=3)
    house.sell(offer)
    await house.reservations.reserve_offer(ALICE, "o-1", 2)
    with pytest.raises(Conflict, match="1 left of the provider's 3"):
        await house.reservations.reserve_offer(BOB, "o-1", 2)
    later = house.clock.now() + timedelta(seconds=1)
    house.set_time(an_offer("o-1", stock=2), later)
    assert (await house.reservations.reserve_offer(BOB, "o-1", 2)).state is ACTIVE


@pytest.mark.parametrize(
    ("nodes", "start_h", "end_h", "pointer"),
    [(0, None, None, "/nodes"), (9, None, None, "/nodes"), (1, -5, 5, "/start"), (1, 2, 1, "/end")],
)
async def test_bad_wishes_name_the_field(
    house: House, nodes: int, start_h: float | None, end_h: float | None, pointer: str
) -> None:
    house.sell(an_offer("o-1", stock=8))
    start = None if start_h is None else NOON + timedelta(hours=start_h)
    end = None if end_h is None else NOON + timedelta(hours=end_h)
    with pytest.raises(InputError) as caught:
        await house.reservations.reserve_offer(ALICE, "o-1", nodes, start, end)
    assert [problem.pointer for problem in caught.value.problems] == [pointer]
    assert house.tables.reservations == {}


async def test_windows_are_sold_as_they_are_listed(house: House) -> None:
    terms = listed_terms(NOON + timedelta(hours=1), 24)
    house.sell(an_offer("block", window=terms, stock=None))
    wrong_end = NOON + timedelta(hours=3)
    with pytest.raises(InputError, match="a whole listed window"):
        await house.reservations.reserve_offer(ALICE, "block", 1, NOON + timedelta(hours=1), wrong_end)
    row = await house.reservations.reserve_offer(ALICE, "block", 2)
    assert (row.state, row.start, row.end) == (SCHEDULED, terms.segments[0].start, terms.segments[0].end)
    left = await house.reservations.release(ALICE, row.reservation_id)
    assert left.state is ReservationState.RELEASING
    assert "release" not in house.provider.calls


async def test_asked_ordered_granted_and_usable_stand_apart(house: House) -> None:
    terms = replace(slot_terms(NOON, 240), durations_hours=(24.0, 48.0), teardown_s=1800)
    house.sell(an_offer("slots", price="10", window=terms, stock=None))
    begin = NOON + timedelta(hours=2, minutes=10)
    until = begin + timedelta(hours=12)
    with pytest.raises(InputError, match=r"covers the requested time"):
        await house.reservations.reserve_offer(ALICE, "slots", 2, begin, until)
    row = await house.reservations.reserve_offer(ALICE, "slots", 2, begin, until, outward=True)
    ordered = Window(NOON + timedelta(hours=2), NOON + timedelta(hours=26))
    assert Window(row.start, row.end or until) == ordered
    assert (row.wish.start, row.wish.end) == (begin, until)
    assert row.granted == ordered
    assert row.usable == Window(ordered.start, ordered.end - timedelta(minutes=30))
    assert row.use is not None
    assert (row.use.unwanted_hours, row.use.unwanted_usd) == (12.0, Decimal("240.00"))


async def test_what_a_seller_grants_later_is_stored_when_it_is_seen(house: House) -> None:
    house.sell(an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.RESELL), stock=None))
    begin = NOON + timedelta(hours=2)
    row = await house.reservations.reserve_offer(ALICE, "slots", 1, begin, begin + timedelta(hours=4))
    later = Window(begin, begin + timedelta(hours=3))
    house.provider.ledger[0] = replace(house.provider.ledger[0], window=later)
    assert (await house.reconcile.run_once()).actions == ((row.reservation_id, "Grant"),)
    seen = await house.reservations.find_reservation(ALICE, row.reservation_id)
    assert (seen.granted, seen.end) == (later, begin + timedelta(hours=4))
    assert (await house.reconcile.run_once()).actions == ()


async def test_slots_follow_the_sellers_grid(house: House) -> None:
    house.sell(an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.RESELL), stock=None))
    begin = NOON + timedelta(hours=2)
    with pytest.raises(InputError, match="multiple of 1"):
        await house.reservations.reserve_offer(ALICE, "slots", 1, begin, begin + timedelta(minutes=90))
    with pytest.raises(InputError, match="a window within"):
        await house.reservations.reserve_offer(ALICE, "slots", 1, begin, begin + timedelta(hours=48))
    row = await house.reservations.reserve_offer(ALICE, "slots", 1, begin, begin + timedelta(hours=2))
    assert row.state is SCHEDULED


async def test_lists_show_the_own_team(house: House) -> None:
    house.sell(an_offer("o-1"))
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.reservations.reserve_offer(BOB, "o-1", 1)
    assert len((await house.reservations.find_reservations(ALICE)).items) == 1
    assert len((await house.reservations.find_reservations(ADMIN)).items) == 2


async def test_a_seller_that_lacks_a_setting_is_not_called(house: House) -> None:
    house.sell(an_offer("o-1", stock=4))
    house.provider.barred_because = (
        "nothing was ordered, a setting is missing: BROKER_FAKE_SSH_KEY (a public key)"
    )
    with pytest.raises(OrderRejected, match="BROKER_FAKE_SSH_KEY"):
        await house.reservations.reserve_offer(ALICE, "o-1", 2)
    assert house.provider.calls.count("reserve") == 0
    assert house.provider.ledger == []
    assert house.states() == [ReservationState.FAILED]


async def test_what_is_held_at_a_seller_that_lacks_a_setting_is_released(house: House) -> None:
    house.sell(an_offer("o-1", stock=4))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    house.provider.barred_because = "nothing was ordered, a setting is missing"
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(4)
    assert house.provider.open_instances() == []
