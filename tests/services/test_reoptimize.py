from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import ApprovalRequired, Conflict, NotFound, NotPermitted
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Doubt, Quarantined
from broker.domain.moving.reoptimization import ProposalState
from broker.domain.planning.plan import Obstacle, Plan, Unplaced
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.ports.planning import PlanCall, PlanOptions, PlanState
from broker.services.moving.reoptimize import ReoptimizeRules, ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ADMIN,
    ALICE,
    BOB,
    READER,
    a_placement,
    a_plan,
    a_record,
    a_request,
    a_segment,
    an_offer,
    anew,
    plan_on_cheapest,
    refuse_to_plan,
)
from tests.fakes.notifier import InlineExecutor
from tests.fakes.provider import Fault
from tests.services.conftest import House

seen: list[tuple[PlanRequest, datetime]] = []


def watching(request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions) -> Plan:
    seen.append((request, as_of))
    return plan_on_cheapest(request, offers, as_of, options)


def leaving_out(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    return a_plan(as_of=as_of, unplaced=(Unplaced("train", Obstacle.STOCK, "more stock"),))


def service_of(house: House, plan_call: PlanCall = plan_on_cheapest) -> ReoptimizeService:
    return ReoptimizeService(
        house.tables.unit_of_work,
        anew(plan_call),
        PlanQueue(InlineExecutor()),
        house.clock,
        house.notifier,
        read_request=lambda document: a_request(),
        rules=ReoptimizeRules(approval_limit_usd=Decimal(100)),
    )


@pytest.fixture
def planned(house: House) -> House:
    """A plan on ``a``: a run of 10 h and a service of 48 h at 10 USD, 580 USD in all; ``b`` costs 12."""
    house.sell(an_offer("a", "10"), an_offer("b", "12"))
    plan = plan_on_cheapest(a_request(), tuple(house.tables.offers.values()), NOON, PlanOptions())
    house.store_plan(replace(plan, plan_id="plan-1"))
    return house


async def test_nothing_changed_means_nothing_changes(planned: House) -> None:
    (look,) = await service_of(planned).run("timetable")
    assert (look.state, look.saving_usd, look.moves) == (ProposalState.UNCHANGED, Decimal(0), ())
    assert list(planned.tables.plans) == ["plan-1"]


async def test_a_price_drop_becomes_a_proposal_with_its_saving(planned: House) -> None:
    planned.sell(an_offer("b", "5"))
    (look,) = await service_of(planned).run("timetable")
    assert (look.before_usd, look.after_usd, look.saving_usd) == (Decimal(580), Decimal(290), Decimal(290))
    assert look.state is ProposalState.PROPOSED
    assert [(m.workload, m.from_offers, m.to_offers, m.saving_usd) for m in look.moves] == [
        ("train", ("a",), ("b",), Decimal(50)),
        ("chat", ("a",), ("b",), Decimal(240)),
    ]
    assert "a: price unchanged at $10.00 a node-hour; b: price unchanged at $5.00" in look.moves[0].why
    assert look.new_plan_id is not None
    proposal = planned.tables.plans[look.new_plan_id]
    assert (proposal.state, proposal.needs_approval) == (PlanState.PROPOSED, True)
    assert proposal.plan is not None
    assert proposal.plan.plan_id == look.new_plan_id
    assert planned.notifier.events() == ["plan.proposed"]


async def test_the_same_proposal_is_stored_once(planned: House) -> None:
    planned.sell(an_offer("b", "5"))
    service = service_of(planned)
    (first,), (second,) = await service.run("one"), await service.run("two")
    assert first.new_plan_id == second.new_plan_id
    assert len(planned.tables.plans) == 2


async def test_a_dearer_offer_counts_at_todays_price(planned: House) -> None:
    planned.sell(an_offer("a", "20"))
    (look,) = await service_of(planned).run("timetable")
    assert (look.before_usd, look.after_usd) == (Decimal(1160), Decimal(696))


async def test_small_savings_are_rejected_and_say_what_is_needed(planned: House) -> None:
    planned.sell(an_offer("b", "9.9"))
    (look,) = await service_of(planned).run("timetable")
    assert (look.state, look.new_plan_id) == (ProposalState.REJECTED, None)
    assert look.reason == (
        "train: saves $1.00, but a move must save $10.00; chat: saves $4.80, but a move must save $10.00"
    )


async def test_an_offer_that_went_away_calls_for_another(planned: House) -> None:
    del planned.tables.offers["a"]
    (look,) = await service_of(planned).run("timetable")
    assert (look.state, look.before_usd, look.saving_usd) == (ProposalState.PROPOSED, None, None)
    assert look.moves[0].why.startswith("a: no longer offered")
    assert "costs $20.00 more elsewhere" in look.moves[0].why


async def test_a_cheaper_price_that_nobody_believes_is_said_to_be_there(planned: House) -> None:
    planned.sell(an_offer("c", "11", provider="other"))
    cheap = an_offer("d", "1.04", provider="vast")
    for entry in (
        Quarantined(cheap, Doubt.OUTLIER, "far off", NOON),
        Quarantined(an_offer("e", "0.5", provider="vast"), Doubt.FLOOR, "released", NOON, released_at=NOON),
        Quarantined(an_offer("f", "90", provider="vast"), Doubt.JUMP, "dearer than what is paid", NOON),
    ):
        planned.tables.quarantine[entry.offer.offer_id] = entry
    (look,) = await service_of(planned).run("timetable")
    assert (look.state, look.reason) == (
        ProposalState.UNCHANGED,
        "the price at vast, $0.13 per GPU-hour, is in quarantine and was ignored (others ask $1.25 or more)",
    )


async def test_what_a_seller_refuses_is_looked_for_elsewhere(planned: House) -> None:
    """The service was to begin at one; its seller has none, and nobody else within the tolerance."""
    a, b = an_offer("a", "10"), an_offer("b", "12")
    planned.store_plan(a_plan(a_placement(a, [a_segment(1, 48)], "chat", WorkloadKind.SERVING)))
    await planned.reservations.reserve_plan(ALICE, "plan-1")
    planned.clock.advance(hours=1)
    planned.sell(*(replace(o, observed_at=planned.clock.now()) for o in (a, b)))
    planned.provider.fail("reserve", Fault.NO_CAPACITY)
    report = await planned.reconcile.run_once()
    (look,) = await service_of(planned).run_if_touched(report.sold_out)
    assert look.state is ProposalState.PROPOSED
    (move,) = [one for one in look.moves if one.workload == "chat"]
    assert move.to_offers == ("b",)
    assert "chat is short of 1 of 1 nodes from 23 Nov 13:00 UTC to 25 Nov 12:00 UTC" in move.why
    assert "it costs $94.00 more elsewhere" in move.why
    assert move.leaves == (planned.rows()[0].reservation_id,)


async def test_a_plan_that_leaves_more_out_is_rejected(planned: House) -> None:
    (look,) = await service_of(planned, leaving_out).run("timetable")
    assert (look.state, look.reason) == (ProposalState.REJECTED, "the new plan would not place train")


async def test_a_fault_of_the_planner_is_told(planned: House) -> None:
    (look,) = await service_of(planned, refuse_to_plan).run("timetable")
    assert (look.state, look.reason) == (ProposalState.FAILED, "unexpected ZeroDivisionError: a fault")


async def test_a_run_under_way_stays_and_its_money_is_bound(planned: House) -> None:
    await planned.reservations.reserve_plan(ALICE, "plan-1")
    planned.clock.advance(hours=4)
    planned.sell(
        an_offer("a", "10", observed_at=planned.clock.now()),
        an_offer("b", "5", observed_at=planned.clock.now()),
    )
    seen.clear()
    (look,) = await service_of(planned, watching).run("timetable")
    assert [workload.name for workload in seen[0][0].workloads] == ["chat"]
    assert seen[0][1] == planned.clock.now()
    assert (look.before_usd, look.after_usd) == (Decimal(440), Decimal(220))
    assert [move.workload for move in look.moves] == ["chat"]


async def test_a_proposal_that_is_reserved_takes_the_place_of_the_plan(planned: House) -> None:
    planned.sell(an_offer("b", "5"))
    (look,) = await service_of(planned).run("timetable")
    assert look.new_plan_id is not None
    with pytest.raises(ApprovalRequired):
        await planned.reservations.reserve_plan(ALICE, look.new_plan_id)
    proposal = planned.tables.plans[look.new_plan_id]
    planned.tables.plans[look.new_plan_id] = replace(proposal, approved_by="key-alice")
    await planned.reservations.reserve_plan(ALICE, look.new_plan_id)
    taken = planned.tables.plans[look.new_plan_id]
    assert (taken.state, taken.supersedes) == (PlanState.DONE, "plan-1")


async def test_a_proposal_waits_while_the_old_plan_holds(planned: House) -> None:
    await planned.reservations.reserve_plan(ALICE, "plan-1")
    planned.sell(an_offer("b", "5"))
    (look,) = await service_of(planned).run("timetable")
    assert look.new_plan_id is not None
    proposal = planned.tables.plans[look.new_plan_id]
    planned.tables.plans[look.new_plan_id] = replace(proposal, needs_approval=False)
    with pytest.raises(Conflict, match="still holds reservations"):
        await planned.reservations.reserve_plan(ALICE, look.new_plan_id)


def change(kind: ChangeKind, offer_id: str, before: str | None, after: str | None) -> OfferChange:
    was, now = (None if usd is None else Decimal(usd) for usd in (before, after))
    return OfferChange(kind, offer_id, "fake", NOON, was, now)


@pytest.mark.parametrize(
    ("moved", "looks"),
    [
        (change(ChangeKind.PRICE, "a", "10", "11"), 1),
        (change(ChangeKind.STOCK, "a", "10", "10"), 1),
        (change(ChangeKind.GONE, "a", "10", None), 1),
        (change(ChangeKind.PRICE, "b", "12", "11"), 1),
        (change(ChangeKind.NEW, "c", None, "30"), 1),
        (change(ChangeKind.PRICE, "b", "12", "13"), 0),
        (change(ChangeKind.GONE, "b", "12", None), 0),
    ],
)
async def test_changes_call_for_a_look_where_they_matter(
    planned: House, moved: OfferChange, looks: int
) -> None:
    service = service_of(planned)
    assert len(await service.run_if_touched([moved])) == looks
    assert await service.run_if_touched([]) == ()


async def test_plans_whose_time_is_over_are_left_alone(planned: House) -> None:
    planned.clock.advance(hours=48)
    assert await service_of(planned).run("timetable") == ()


async def test_teams_and_scopes(planned: House) -> None:
    service = service_of(planned)
    assert await service.run_for(BOB) == ()
    assert len(await service.run_for(ALICE)) == 1
    with pytest.raises(NotPermitted):
        await service.run_for(READER)
    assert len((await service.find_reoptimizations(ALICE)).items) == 1
    assert (await service.find_reoptimizations(BOB)).items == ()
    assert len((await service.find_reoptimizations(ADMIN)).items) == 1
    with pytest.raises(NotFound):
        await planned.reservations.reserve_plan(BOB, "plan-1")
    planned.tables.plans["plan-2"] = replace(
        a_record(a_plan(plan_id="plan-2")), created_at=NOON - timedelta(1)
    )
    assert len(await service.run("all")) == 1
