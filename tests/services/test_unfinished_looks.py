"""A look that was cut off says nothing of a plan: it is tried again, over restarts, until one is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.market.offer import Offer
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import InForce, LimitClock, PlanCall, PlannedAgain, PlanOptions
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.market.offers import OffersService
from broker.services.moving.reoptimize import ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from broker.store import Store
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import (
    ALICE,
    a_record,
    a_request,
    an_offer,
    anew,
    plan_on_cheapest,
    refuse_to_plan,
)
from tests.fakes.notifier import InlineExecutor, RecordingNotifier
from tests.fakes.provider import FakeProvider
from tests.fakes.store import Tables

S = ProposalState
WORDS = "2 of 2 workloads were not tried elsewhere"


@dataclass
class SlowPlanner:
    """Cut off where its guard is shorter than ``needs_s``: then it gives the plan in force, or what of
    ``found`` it has by then."""

    needs_s: float
    guards: list[float | None] = field(default_factory=list)
    found: PlanCall | None = None

    def __call__(
        self,
        request: PlanRequest,
        offers: tuple[Offer, ...],
        as_of: datetime,
        options: PlanOptions,
        in_force: InForce,
    ) -> PlannedAgain:
        assert options.limit_clock is LimitClock.WORK
        assert options.guard_s is not None
        self.guards.append(options.guard_s)
        if options.guard_s >= self.needs_s:
            return anew(plan_on_cheapest)(request, offers, as_of, options, in_force)
        if self.found is None:
            return PlannedAgain(in_force.plan, WORDS)
        return PlannedAgain(self.found(request, offers, as_of, options), WORDS)


@dataclass
class Scene:
    """A broker over any store; each service made is that of a process started anew."""

    units: UnitOfWorkFactory
    clock: FakeClock = field(default_factory=FakeClock)
    notifier: RecordingNotifier = field(default_factory=RecordingNotifier)

    def __post_init__(self) -> None:
        self.provider = FakeProvider(self.clock, offers=(an_offer("a", "10"), an_offer("b", "12")))
        self.offers = OffersService(self.units, {"fake": self.provider}, self.clock)

    def service(self, planner: SlowPlanner) -> ReoptimizeService:
        return ReoptimizeService(
            self.units,
            planner,
            PlanQueue(InlineExecutor()),
            self.clock,
            self.notifier,
            read_request=lambda document: a_request(),
        )

    async def begin(self) -> None:
        """A plan on ``a``, whose price then triples."""
        await self.offers.refresh()
        plan = plan_on_cheapest(a_request(), self.provider.offers, NOON, PlanOptions())
        async with self.units(EVERY_TEAM) as uow:
            await uow.plans.add(a_record(replace(plan, plan_id="plan-1")))
            await uow.commit()
        self.clock.advance(minutes=1)
        self.provider.offers = (an_offer("a", "30"), an_offer("b", "12"))
        await self.offers.refresh()

    async def states(self) -> Mapping[str, int]:
        page = await self.service(SlowPlanner(0)).find_reoptimizations(ALICE)
        return {
            state: sum(one.state is state for one in page.items) for state in {o.state for o in page.items}
        }

    async def wait_for_retry(self, look: Reoptimization) -> None:
        assert look.guard_s is not None
        self.clock.advance(seconds=look.guard_s)


@pytest.fixture
async def scene(store: Store) -> Scene:
    made = Scene(store.unit_of_work)
    await made.begin()
    return made


async def follow(scene: Scene) -> None:
    """The look is cut off twice, waits each time, survives two restarts, and ends in the proposal."""
    planner = SlowPlanner(needs_s=200)
    (first,) = await scene.service(planner).run("timetable")
    assert (first.state, first.guard_s, first.new_plan_id) == (S.UNFINISHED, 60.0, None)
    assert WORDS in first.reason
    assert await scene.service(planner).run_unfinished() == ()
    assert planner.guards == [60.0]

    await scene.wait_for_retry(first)
    (second,) = await scene.service(planner).run_unfinished()
    assert (second.state, second.guard_s) == (S.UNFINISHED, 120.0)
    await scene.wait_for_retry(second)
    (third,) = await scene.service(planner).run_unfinished()
    assert third.state is S.PROPOSED
    assert {move.to_offers for move in third.moves} == {("b",)}
    assert set(planner.guards) == {60.0, 120.0, 240.0}
    assert await scene.states() == {S.PROPOSED: 1, S.LAPSED: 2}
    scene.clock.advance(hours=1)
    assert await scene.service(planner).run_unfinished() == ()


async def test_what_was_cut_off_is_tried_with_twice_the_time_until_it_is_finished(scene: Scene) -> None:
    await follow(scene)
    async with scene.units(EVERY_TEAM) as uow:
        audit = await uow.accounts.find_audit(50, None)
    actions = [entry.action for entry in reversed(audit.items)]
    assert actions.count("reoptimization.unfinished") == 2
    assert actions[-1] == "reoptimization.proposed"


async def test_the_store_in_memory_keeps_it_alike() -> None:
    scene = Scene(Tables().unit_of_work)
    await scene.begin()
    await follow(scene)


async def test_any_other_look_at_the_plan_has_more_time_too(scene: Scene) -> None:
    planner = SlowPlanner(needs_s=100)
    await scene.service(planner).run("timetable")
    (look,) = await scene.service(planner).run("timetable")
    assert look.state is S.PROPOSED
    assert await scene.states() == {S.PROPOSED: 1, S.LAPSED: 1}


async def test_a_proposal_outlives_a_look_that_was_cut_off(scene: Scene) -> None:
    await scene.service(SlowPlanner(0)).run("timetable")
    await scene.service(SlowPlanner(1e9)).run("timetable")
    assert await scene.states() == {S.PROPOSED: 1, S.UNFINISHED: 1}


async def test_what_was_found_before_it_was_cut_off_is_proposed_and_the_rest_tried_again(
    scene: Scene,
) -> None:
    service = scene.service(SlowPlanner(1e9, found=plan_on_cheapest))
    proposal, rest = await service.run("timetable")
    assert (proposal.state, rest.state) == (S.PROPOSED, S.UNFINISHED)
    assert scene.notifier.events() == ["plan.proposed"]


async def test_a_fault_of_the_planner_finishes_nothing(scene: Scene) -> None:
    await scene.service(SlowPlanner(1e9)).run("timetable")
    failing = SlowPlanner(1e9, found=refuse_to_plan)
    await scene.service(failing).run("timetable")
    assert await scene.states() == {S.UNFINISHED: 1, S.FAILED: 1}


async def test_plans_whose_time_is_over_leave_the_queue(scene: Scene) -> None:
    planner = SlowPlanner(1e9)
    await scene.service(planner).run("timetable")
    scene.clock.advance(hours=48)
    assert await scene.service(planner).run_unfinished() == ()
    assert await scene.states() == {S.LAPSED: 1}
    assert planner.guards == [60.0]
