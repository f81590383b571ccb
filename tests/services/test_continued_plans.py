"""A plan whose limit ended its search is continued as a new plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from broker.domain.basics.errors import Conflict, InputError, NotFound, NotPermitted
from broker.domain.market.offer import Offer
from broker.domain.planning.comparison import Variant
from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.planned_market import SAME_TIME
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import (
    BusinessStatus,
    InForce,
    PlannedAgain,
    PlanOptions,
    PlanRecord,
    PlanState,
    why_not_continued,
)
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, BOB, READER, a_record, a_request, an_offer, stop_early
from tests.services.test_planning import RemainingCapacity


class Planner:
    """Records what it continues, and continues it well."""

    def __init__(self) -> None:
        self.asked: list[tuple[datetime, PlanOptions, InForce]] = []

    def __call__(
        self,
        request: PlanRequest,
        offers: tuple[Offer, ...],
        as_of: datetime,
        options: PlanOptions,
        in_force: InForce,
    ) -> PlannedAgain:
        self.asked.append((as_of, options, in_force))
        return PlannedAgain(replace(stop_early(request, offers, as_of, options), status=PlanStatus.OPTIMAL))


async def stopped() -> tuple[RemainingCapacity, Planner, PlanRecord]:
    """A plan that its limit stopped."""
    planner = Planner()
    room = RemainingCapacity(stop_early, replan_call=planner)
    return room, planner, await room.service.run((await room.ask()).plan_id)


async def test_a_plan_is_continued_with_its_document_and_options() -> None:
    room, planner, old = await stopped()
    new = await room.service.request_continuation(ALICE, old.plan_id, 60.0)
    assert (new.state, new.continues, new.team, new.document) == (
        PlanState.QUEUED, old.plan_id, old.team, old.document,
    )  # fmt: skip
    assert new.options == replace(old.options, time_limit_s=60.0)
    old = await room.service.find_plan(ALICE, old.plan_id)
    assert old.continued_by == new.plan_id
    room.clock.advance(minutes=5)
    done = await room.service.run(new.plan_id)
    assert done.plan is not None
    assert done.plan.status is PlanStatus.OPTIMAL
    [(as_of, options, in_force)] = planner.asked
    assert (as_of, in_force.plan, in_force.same_market) == (NOON, old.plan, True)
    assert (in_force.is_continued, options.label) == (True, new.plan_id)
    assert done.market_sha256 == old.market_sha256 is not None


async def test_the_time_limit_is_that_of_the_plan_if_none_is_given() -> None:
    room, _, old = await stopped()
    assert (await room.service.request_continuation(ALICE, old.plan_id)).options == old.options


@pytest.mark.parametrize("moves", ["price", "time"])
async def test_a_market_that_moved_is_planned_for_now(moves: str) -> None:
    room, planner, old = await stopped()
    room.clock.advance(minutes=5 if moves == "price" else SAME_TIME.total_seconds() / 60 + 1)
    now = room.clock.now()
    price = "5" if moves == "price" else "4"
    room.tables.put_offers(
        *(replace(an_offer(n, p), observed_at=now) for n, p in (("a", "10"), ("b", price)))
    )
    await room.service.run((await room.service.request_continuation(ALICE, old.plan_id)).plan_id)
    [(as_of, _, in_force)] = planner.asked
    assert (as_of, in_force.same_market) == (now, False)


async def test_offers_that_were_only_seen_again_are_the_same_market() -> None:
    room, planner, old = await stopped()
    room.clock.advance(minutes=5)
    again = (replace(an_offer(n, p), observed_at=room.clock.now()) for n, p in (("b", "4"), ("a", "10")))
    room.tables.put_offers(*again)
    await room.service.run((await room.service.request_continuation(ALICE, old.plan_id)).plan_id)
    assert planner.asked[0][2].same_market


async def test_an_intention_goes_on_with_the_plan() -> None:
    room, _, old = await stopped()
    await room.service.set_intended(ALICE, old.plan_id, intended=True)
    new = await room.service.run((await room.service.request_continuation(ALICE, old.plan_id)).plan_id)
    assert new.is_intended
    assert not (await room.service.find_plan(ALICE, old.plan_id)).is_intended


async def test_who_may_not_continue_a_plan() -> None:
    room, _, old = await stopped()
    with pytest.raises(NotFound):
        await room.service.request_continuation(ALICE, "plan-unknown")
    with pytest.raises(NotPermitted):
        await room.service.request_continuation(READER, old.plan_id)
    with pytest.raises(NotFound):
        await room.service.request_continuation(BOB, old.plan_id)


async def test_a_finished_plan_alone_is_continued() -> None:
    room, _, old = await stopped()
    new = await room.service.request_continuation(ALICE, old.plan_id)
    with pytest.raises(Conflict, match="cannot be continued: it is queued"):
        await room.service.request_continuation(ALICE, new.plan_id)
    done = await room.service.run(new.plan_id)
    with pytest.raises(Conflict, match=r"proven within the gap of 0\.01"):
        await room.service.request_continuation(ALICE, done.plan_id)


async def test_a_large_document_needs_its_time() -> None:
    room, _, old = await stopped()
    many = a_request()
    many = replace(many, workloads=many.workloads * 60)
    room.service._read_request = lambda _: many
    with pytest.raises(InputError, match="/time_limit_s"):
        await room.service.request_continuation(ALICE, old.plan_id, 0.5)


def test_why_a_plan_cannot_be_continued() -> None:
    record = a_record(stop_early(a_request(), (an_offer("a", "10"),), NOON, PlanOptions()))
    assert record.plan is not None
    assert why_not_continued(record, BusinessStatus.DRAFT) is None
    assert why_not_continued(record, BusinessStatus.SUPERSEDED) is None
    proposal = replace(record, state=PlanState.PROPOSED)
    variant = replace(record, variant=Variant("compare-1", "plan-0", "later", 0), intended_by=None)
    infeasible = replace(record, plan=replace(record.plan, status=PlanStatus.INFEASIBLE))
    for refused, standing, said in (
        (record, BusinessStatus.RESERVED, "it was reserved"),
        (replace(record, reserved_at=NOON), BusinessStatus.DONE, "it was reserved"),
        (replace(record, state=PlanState.FAILED, plan=None), None, "it is failed"),
        (proposal, BusinessStatus.DRAFT, "it is proposed"),
        (variant, BusinessStatus.DRAFT, "one of a comparison"),
        (infeasible, BusinessStatus.DRAFT, "it is infeasible"),
    ):
        assert said in (why_not_continued(refused, standing) or "")
