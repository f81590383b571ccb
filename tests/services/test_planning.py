from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest

from broker.domain.basics.errors import FieldProblem, InputError, NotFound, NotPermitted, TooManyPlans
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer, RateBasis, Tier
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import PlanCall, PlanOptions, PlanRecord, PlanState, ReplanCall
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningRules, PlanningService
from tests.fakes.clock import FakeClock
from tests.fakes.examples import (
    ADMIN,
    ALICE,
    BOB,
    READER,
    a_plan,
    a_record,
    a_request,
    an_offer,
    anew,
    plan_on_cheapest,
    refuse_to_plan,
)
from tests.fakes.notifier import InlineExecutor, RecordingEvents, RecordingNotifier
from tests.fakes.store import Tables


def read(document: str) -> PlanRequest:
    if document == "bad":
        raise InputError("stored", (FieldProblem("/x", "1", "2"),))
    return a_request()


class RemainingCapacity:
    """A planning service over fakes."""

    def __init__(
        self,
        plan_call: PlanCall = plan_on_cheapest,
        limit: str | None = None,
        rules: PlanningRules | None = None,
        replan_call: ReplanCall | None = None,
    ) -> None:
        self.clock, self.tables = FakeClock(), Tables()
        self.events, self.notifier = RecordingEvents(), RecordingNotifier()
        self.tables.put_offers(an_offer("a", "10"), an_offer("b", "4"))
        self.service = PlanningService(
            self.tables.unit_of_work,
            plan_call,
            PlanQueue(InlineExecutor()),
            self.clock,
            self.notifier,
            self.events,
            read_request=read,
            replan_call=replan_call or anew(plan_call),
            rules=rules or PlanningRules(approval_limit_usd=None if limit is None else Decimal(limit)),
        )

    async def ask(self, document: str = "{}") -> PlanRecord:
        return await self.service.request_plan(ALICE, document, a_request(), PlanOptions())


async def test_a_plan_is_queued_then_done() -> None:
    room = RemainingCapacity()
    record = await room.ask()
    assert (record.state, record.team) == (PlanState.QUEUED, "research")
    done = await room.service.run(record.plan_id)
    assert done.plan is not None
    assert (done.state, done.plan.plan_id) == (PlanState.DONE, record.plan_id)
    assert {placement.offer_id for placement in done.plan.placements} == {"b"}
    assert room.events.states(record.plan_id) == ["queued", "running", "done"]
    assert room.notifier.events() == ["plan.done"]
    assert [entry.action for entry in room.tables.audit] == ["plan.request", "plan.run", "plan.done"]
    assert await room.service.run(record.plan_id) == done


async def test_a_fault_of_the_planner_or_the_document_is_told() -> None:
    room = RemainingCapacity(refuse_to_plan)
    failed = await room.service.run((await room.ask()).plan_id)
    assert (failed.state, failed.problem) == (PlanState.FAILED, "unexpected ZeroDivisionError: a fault")
    failed = await room.service.run((await room.ask("bad")).plan_id)
    assert failed.problem == "stored: /x: found 1, expected 2"


async def test_a_plan_that_waited_beyond_its_horizon_is_not_made() -> None:
    room = RemainingCapacity()
    record = await room.ask()
    room.clock.advance(hours=48)
    failed = await room.service.run(record.plan_id)
    assert failed.state is PlanState.FAILED
    assert failed.problem == f"the horizon of {record.plan_id} ended at 2026-11-25 12:00 UTC"


async def test_stale_offers_are_left_out() -> None:
    room = RemainingCapacity()
    room.clock.advance(minutes=11)
    room.tables.put_offers(an_offer("a", "10", provider="alive"))
    room.tables.feeds["alive"] = FeedHealth("alive", room.clock.now(), None, None, None, 1, 0, 0.1)
    done = await room.service.run((await room.ask()).plan_id)
    assert done.plan is not None
    assert {placement.offer_id for placement in done.plan.placements} == {"a"}


async def test_spot_without_a_told_rate_is_planned_with_the_prior() -> None:
    seen: list[Offer] = []

    def watching(
        request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
    ) -> Plan:
        seen.extend(offers)
        return plan_on_cheapest(request, offers, as_of, options)

    room = RemainingCapacity(watching)
    told = replace(an_offer("told", "9"), tier=Tier.SPOT, interruptions_per_hour=0.2)
    room.tables.put_offers(replace(an_offer("silent", "9"), tier=Tier.SPOT), told)
    await room.service.run((await room.ask()).plan_id)
    rates = {offer.offer_id: (offer.interruptions_per_hour, offer.rate_basis) for offer in seen}
    assert rates["silent"] == (0.05, RateBasis.ASSUMED)
    assert rates["told"] == (0.2, None)
    assert rates["b"] == (None, None)


async def test_what_a_crash_cut_off_is_run_again() -> None:
    room = RemainingCapacity()
    mine = await room.ask()
    cut_off = replace(mine, plan_id="plan-0", state=PlanState.RUNNING)
    room.tables.plans.update({"plan-0": cut_off, "plan-1": a_record(a_plan())})
    assert await room.service.claim_left_over() == ("plan-0",)
    assert room.tables.plans["plan-0"].state is PlanState.QUEUED
    assert await room.service.claim_left_over() == ()
    assert (await room.service.run("plan-0")).state is PlanState.DONE
    assert room.tables.plans[mine.plan_id].state is PlanState.QUEUED


async def test_a_plan_over_the_limit_needs_finance() -> None:
    room = RemainingCapacity(limit="100")
    record = await room.ask()
    assert record.approval is None
    done = await room.service.run(record.plan_id)
    assert (done.needs_approval, done.approval) == (True, ApprovalState.WAITING)


async def test_a_team_has_so_much_on_its_way_at_once() -> None:
    room = RemainingCapacity(rules=PlanningRules(plans_at_once=2, workloads_at_once=5))
    two = '{"workloads": [{}, {}]}'
    first = await room.ask(two)
    await room.ask(two)
    with pytest.raises(
        TooManyPlans, match="3 plans queued or running, but BROKER_TEAM_PLANS_AT_ONCE allows 2"
    ):
        await room.ask("{}")
    await room.service.cancel(ALICE, first.plan_id)
    await room.service.request_plan(ADMIN, two, replace(a_request(), team="product"), PlanOptions())
    with pytest.raises(TooManyPlans) as refused:
        await room.ask('{"workloads": [{}, {}, {}, {}]}')
    assert refused.value.facts == {
        "team": "research",
        "limit": "BROKER_TEAM_WORKLOADS_AT_ONCE",
        "unit": "workloads",
        "found": 6,
        "allowed": 5,
        "retry_after_s": 10,
    }
    assert len(room.tables.plans) == 3
    await room.ask("{}")
    tight = RemainingCapacity(rules=PlanningRules(workloads_at_once=1))
    with pytest.raises(InputError, match=r"/workloads: found 2 workloads, expected at most 1 \(BROKER_TEAM"):
        await tight.ask(two)


async def test_teams_are_apart() -> None:
    room = RemainingCapacity()
    record = await room.ask()
    with pytest.raises(NotFound):
        await room.service.find_plan(BOB, record.plan_id)
    assert (await room.service.find_plans(BOB)).items == ()
    assert (await room.service.find_plans(ADMIN)).items == (record,)
    assert await room.service.find_current_plans(ALICE) == ()
    with pytest.raises(NotPermitted):
        await room.service.request_plan(BOB, "{}", a_request(), PlanOptions())
    with pytest.raises(NotPermitted):
        await room.service.request_plan(READER, "{}", a_request(), PlanOptions())


def test_the_limit_is_passed_not_met() -> None:
    rules = PlanningRules(Decimal(100))
    assert not rules.over_limit(Decimal(100))
    assert rules.over_limit(Decimal("100.01")) == (
        "it costs $100.01, which is over the limit of $100.00 per plan or order",
    )
